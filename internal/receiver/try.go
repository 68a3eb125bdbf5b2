package receiver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"usher/internal/signature"
	"usher/internal/wire"
)

const (
	// maxAnswer is how much usher reads of an answer: a connection whose answer is read to its end can be used again.
	maxAnswer   = 64 << 10
	maxDecision = 1 << 20 // the largest answer to a question, which usher holds in memory for the sender
)

// A Try is the result of one try.
type Try struct {
	Status     int // of the receiver's answer; zero: no usable answer, see Err
	Err        error
	RetryAfter time.Duration // how long the receiver asked to wait
	Excerpt    string        // of the answer's body, safe to show, if it is not a 2xx; not set by Ask

	// Header says what Body is, and Body is the whole answer to a question; not set by Try.
	Header http.Header
	Body   []byte
}

// Try sends a webhook once: its id, its body, and the headers that are the same in each try.
func (r *Receiver) Try(ctx context.Context, id string, header http.Header, body []byte) Try {
	start := time.Now()
	// A 2xx means accepted, even if the body ends with an error. usher still waits for the body,
	// because the receiver may work on the webhook until then.
	t, _ := r.try(ctx, id, header, body, maxAnswer)
	if !t.Accepted() && t.Header.Get("Content-Encoding") == "" {
		t.Excerpt = r.excerpt(t.Body, header)
	}
	t.Header, t.Body = nil, nil
	r.count(t.Result(), t.Status, start)
	return t
}

// Ask sends a question once, and returns the receiver's whole answer. An incomplete answer is an error: it must not
// look like a decision. If ctx is cancelled, the try says nothing about the receiver, and is not counted.
func (r *Receiver) Ask(ctx context.Context, id string, header http.Header, body []byte) Try {
	start := time.Now()
	t, err := r.try(ctx, id, header, body, maxDecision+1)
	if err != nil {
		t = Try{Err: fmt.Errorf("%w: %w", unusable("the receiver's answer ended too early"), err)}
	} else if len(t.Body) > maxDecision {
		t = Try{Err: unusable(fmt.Sprintf("the receiver's answer is larger than %d bytes", maxDecision))}
	}
	switch {
	case ctx.Err() == context.Canceled:
	case t.Err == nil && t.Status < 500:
		r.count("ok", t.Status, start) // also a 4xx: the receiver has decided
	default:
		r.count(t.Result(), t.Status, start)
	}
	return t
}

// try makes one request and reads up to limit bytes of the answer. The error is that of reading the
// answer's body.
func (r *Receiver) try(ctx context.Context, id string, header http.Header, body []byte, limit int64) (Try, error) {
	defer r.begin()()
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout, tooSlow(r.Timeout))
	defer cancel()
	resp, err := r.send(ctx, id, header, body)
	if err == context.DeadlineExceeded {
		err = cmp.Or(context.Cause(ctx), err)
	}
	if err != nil {
		return Try{Err: err}, nil
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	about := make(http.Header) // the other headers are dropped: there may be thousands
	for _, name := range []string{"Content-Type", "Content-Encoding"} {
		about[name] = resp.Header.Values(name)
	}
	return Try{Status: resp.StatusCode, RetryAfter: wire.RetryAfter(resp.Header), Header: about, Body: said}, err
}

func (r *Receiver) count(result string, status int, start time.Time) {
	if r.Tried != nil {
		r.Tried(result, status, time.Since(start))
	}
}

// Fenced returns a context for a Try that calls may right before each write, and sends nothing more if may returns
// false. The hazard: a process can be suspended at any time, and when it continues, another replica may deliver this
// webhook. (A suspension between may and the system call is still possible.) It works with NewTransport's only.
func Fenced(ctx context.Context, may func() bool) context.Context {
	return wire.With(ctx, wire.Call{Fence: func() error {
		if !may() {
			return errFenced
		}
		return nil
	}})
}

// errFenced is the error of a write that may has prevented. The receiver gets no complete request.
var errFenced = errors.New("no longer this replica's to deliver")

// ErrUnsigned says that the signing secret cannot be used, so nothing was sent: people might make their receivers
// accept unsigned webhooks.
var ErrUnsigned = errors.New("the signing secret can't be used")

// send makes one request. It has its own timestamp and signature.
func (r *Receiver) send(ctx context.Context, id string, header http.Header, body []byte) (*http.Response, error) {
	var keys [][]byte
	if r.ForwardSigningKey != nil {
		var err error
		if keys, err = signature.ParseKeys(r.ForwardSigningKey()); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnsigned, err)
		}
	}
	target := *r.URL
	target.User = nil
	req := (&http.Request{
		Method: http.MethodPost, URL: &target, Host: target.Host, Header: header.Clone(),
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}).WithContext(ctx)
	signature.Stamp(req.Header, id, time.Now(), body, keys...)
	r.authorize(req.Header, body)
	return r.Transport.RoundTrip(req)
}

// Accepted reports whether the receiver has accepted the webhook.
func (t Try) Accepted() bool { return t.Status/100 == 2 }

// tooSlow is a [context.DeadlineExceeded] that says after how long.
type tooSlow time.Duration

func (d tooSlow) Error() string { return fmt.Sprintf("no answer within %v", time.Duration(d)) }

func (tooSlow) Is(target error) bool { return target == context.DeadlineExceeded }

// TimedOut reports whether the receiver did not answer in time.
func (t Try) TimedOut() bool {
	var timeout net.Error
	return errors.Is(t.Err, context.DeadlineExceeded) || errors.As(t.Err, &timeout) && timeout.Timeout()
}

// Result is the try's name in metrics.
func (t Try) Result() string {
	switch {
	case t.Accepted():
		return "ok"
	case t.Status != 0:
		return "status"
	case t.TimedOut():
		return "timeout"
	}
	return "error"
}

// Why returns a sentence for the sender that says why a try failed. It does not quote network errors,
// which contain addresses that the sender must not see. The log has them.
func (r *Receiver) Why(t Try) string {
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

// unusable is an error that says what is wrong with a receiver's answer. The sender may see it: it
// contains no address.
type unusable string

func (u unusable) Error() string { return string(u) }
