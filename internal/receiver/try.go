package receiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"usher/internal/text"
	"usher/internal/wire"
	"usher/webhookgate/signature"
)

const (
	maxAnswer   = 64 << 10 // how much of a receiver's answer is read, so that the connection can be used again
	maxExcerpt  = 1 << 10  // how much of it others get to see
	maxDecision = 1 << 20  // the largest answer to a question; it is kept in memory for the sender
)

// An Attempt is the result of one try.
type Attempt struct {
	Status     int // zero: there was no answer that can be used; see Err
	Err        error
	RetryAfter time.Duration // what the receiver asked for
	Excerpt    string        // of its answer

	// Header and Body are the whole answer to a question.
	Header http.Header
	Body   []byte
}

// Try sends a webhook once, and counts that: its id, the headers that do not differ from try to
// try, its body.
func (r *Receiver) Try(ctx context.Context, id string, header http.Header, body []byte) Attempt {
	start := time.Now()
	// A 2xx means accepted, whatever follows. usher still waits for the body: before its end
	// the receiver may not be finished.
	t, _ := r.try(ctx, id, header, body, maxAnswer)
	if t.Header.Get("Content-Encoding") == "" {
		t.Excerpt = text.Clip(string(t.Body), maxExcerpt)
	}
	t.Header, t.Body = nil, nil
	r.count(t.Result(), start)
	return t
}

// Ask sends a question once, and counts that. It returns the receiver's whole answer: half an answer
// must not look like a decision. A try that ctx has ended says nothing about the receiver, and is
// not counted.
func (r *Receiver) Ask(ctx context.Context, id string, header http.Header, body []byte) Attempt {
	start := time.Now()
	t, err := r.try(ctx, id, header, body, maxDecision+1)
	if err != nil {
		t = Attempt{Err: fmt.Errorf("%w: %w", unusable("the receiver's answer ended too early"), err)}
	} else if len(t.Body) > maxDecision {
		t = Attempt{Err: unusable(fmt.Sprintf("the receiver's answer is larger than %d bytes", maxDecision))}
	}
	switch {
	case ctx.Err() != nil:
	case t.Err == nil && t.Status < 500:
		r.count("ok", start) // a no is an answer, too
	default:
		r.count(t.Result(), start)
	}
	return t
}

// try makes one request and reads up to limit bytes of the answer. The error is that of reading it.
func (r *Receiver) try(ctx context.Context, id string, header http.Header, body []byte, limit int64) (Attempt, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	resp, err := r.send(ctx, id, header, body)
	if err != nil {
		return Attempt{Err: err}, nil
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	return Attempt{Status: resp.StatusCode, RetryAfter: wire.RetryAfter(resp.Header), Header: resp.Header, Body: said}, err
}

func (r *Receiver) count(result string, start time.Time) {
	if r.Tried != nil {
		r.Tried(result, time.Since(start))
	}
}

// Fenced returns a context for a Try that asks may right before each write, and sends nothing
// if may says no. The hazard: a process can be stopped at any time. When it continues it does
// what it was about to do, before it learns that another replica now delivers. A stop between
// the last look and the system call remains possible. Fenced works with NewTransport only;
// another transport has to do this itself.
func Fenced(ctx context.Context, may func() bool) context.Context {
	return wire.With(ctx, wire.Call{Fence: func() error {
		if !may() {
			return errFenced
		}
		return nil
	}})
}

// errFenced is why a write did not happen. The receiver then gets no complete request.
var errFenced = errors.New("no longer this replica's to deliver")

// ErrUnsigned: nothing is sent while the signing secret cannot be used. If a receiver got
// unsigned webhooks for a while, somebody might make it accept them.
var ErrUnsigned = errors.New("the signing secret can't be used")

// send makes one request: the same webhook as always, with its own timestamp and signature.
func (r *Receiver) send(ctx context.Context, id string, header http.Header, body []byte) (*http.Response, error) {
	var key []byte
	if r.SignSecret != nil {
		var err error
		if key, err = signature.ParseKey(r.SignSecret()); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnsigned, err)
		}
	}
	target := *r.URL
	target.User = nil
	req := (&http.Request{
		Method:        http.MethodPost,
		URL:           &target,
		Host:          target.Host,
		Header:        header.Clone(),
		ContentLength: int64(len(body)),
		Body:          io.NopCloser(bytes.NewReader(body)),
	}).WithContext(ctx)
	signature.Stamp(req.Header, key, id, time.Now(), body)
	if user := r.URL.User; user != nil { // not stored with the webhook, which may wait for longer than the password is valid
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	return r.Transport.RoundTrip(req)
}

// Accepted reports whether the receiver has accepted the webhook.
func (t Attempt) Accepted() bool { return t.Status/100 == 2 }

// TimedOut reports whether there was no answer in time.
func (t Attempt) TimedOut() bool {
	var timeout net.Error
	return errors.Is(t.Err, context.DeadlineExceeded) || errors.As(t.Err, &timeout) && timeout.Timeout()
}

// Result is the try's name in metrics.
func (t Attempt) Result() string {
	switch {
	case t.Accepted():
		return "ok"
	case t.Status != 0:
		return "status"
	case t.TimedOut():
		return "timeout"
	default:
		return "error"
	}
}

// Why says why a try failed, in words for the sender. Network errors stay in the log: they
// contain addresses that the sender must not see.
func (r *Receiver) Why(t Attempt) string {
	var wrong unusable
	odd := new(wire.AnswerError)
	switch {
	case t.Status != 0:
		return "the receiver answered " + strings.TrimSpace(fmt.Sprint(t.Status, " ", http.StatusText(t.Status)))
	case t.TimedOut():
		return fmt.Sprintf("the receiver did not answer within %v", r.Timeout)
	case errors.As(t.Err, &wrong):
		return wrong.Error()
	case errors.As(t.Err, &odd):
		return "the receiver's answer can't be used: " + odd.Error()
	default:
		return "the receiver could not be reached"
	}
}

// unusable says what is wrong with a receiver's answer. It contains no address: the sender may
// read it.
type unusable string

func (u unusable) Error() string { return string(u) }
