package sandbox

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// A Fault says how an endpoint fails. The zero Fault is no fault.
//
// The endpoint first waits for the Delay. Then, depending on what is set, it never answers (Hang), closes
// the connection (HangUp), answers with Status and Body, or gives the real answer.
type Fault struct {
	Delay  time.Duration // before anything is answered
	Status int           // answered instead of the real status; 200 if only Body is set
	Body   string        // answered instead of the real body
	Header http.Header   // added to an answer with Status or Body, for example Retry-After
	Hang   bool          // do not answer, until the request's context ends
	HangUp bool          // close the connection without an answer or, with Status or Body, in the middle of it

	// Times ends the fault after so many requests, and Until at that time. If both are zero the fault
	// lasts until it is replaced.
	Times int
	Until time.Time
}

func (f Fault) none() bool {
	return f.Delay <= 0 && !f.ownAnswer() && !f.Hang && !f.HangUp || !f.Until.IsZero() && !time.Now().Before(f.Until)
}

// ownAnswer reports whether the fault has an answer of its own, in place of the real one.
func (f Fault) ownAnswer() bool { return f.Status != 0 || f.Body != "" }

// answer is an HTTP answer that has not been written yet.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func jsonAnswer(status int, v any) answer {
	return answer{status, http.Header{"Content-Type": {"application/json; charset=utf-8"}}, append(encode(v), '\n')}
}

// encode writes compact JSON without needless escapes, as the service does: the SDK's receivers hash what
// JSON.stringify makes of the body that they have parsed.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // our own types: a bug in this package
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// textAnswer is a plain answer, for requests that the published interface does not describe.
func textAnswer(status int, text string) answer {
	return answer{status, http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, []byte(text + "\n")}
}

// faults are the faults of a handler, by the part that fails.
type faults struct {
	mu     sync.Mutex
	byPart map[string]Fault // guarded by mu
}

func (s *faults) set(part string, f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byPart == nil {
		s.byPart = make(map[string]Fault)
	}
	s.byPart[part] = f
}

// take returns the fault for one request: that of the first of these parts that has one. It counts the
// request towards Times.
func (s *faults) take(parts ...string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, part := range parts {
		f := s.byPart[part]
		if f.none() {
			continue
		}
		switch left := f; f.Times {
		case 0: // no limit
		case 1:
			delete(s.byPart, part)
		default:
			left.Times--
			s.byPart[part] = left
		}
		return f
	}
	return Fault{}
}

// serve answers as the fault says. Without a fault it answers with refusal, if that is not nil, or with the
// result of work. Right before it writes the answer it calls sent with the status, or with 0 if there will
// be no complete answer.
//
// The caller must have read the request's body to its end: only then does net/http notice that the client
// has hung up, which ends a Delay or Hang.
func (f Fault) serve(
	w http.ResponseWriter, r *http.Request, refusal *answer, work func() answer, sent func(status int),
) {
	abort := func() { sent(0); panic(http.ErrAbortHandler) }
	if f.Hang || f.Delay > 0 {
		var over <-chan time.Time // nil: never
		if !f.Hang {
			over = time.After(f.Delay)
		}
		select {
		case <-over:
		case <-r.Context().Done():
			abort()
		}
	}
	var a answer
	switch {
	case f.ownAnswer():
		a = f.answer()
	case f.HangUp:
		abort()
	case refusal != nil:
		a = *refusal
	default:
		a = work()
	}
	if f.HangUp { // announce one byte more than follows
		a.header.Set("Content-Length", strconv.Itoa(len(a.body)+1))
		a.write(w)
		_ = http.NewResponseController(w).Flush()
		abort()
	}
	sent(a.status)
	a.write(w)
}

func (f Fault) answer() answer {
	plain := http.Header{"Content-Type": {"text/plain; charset=utf-8"}}
	a := answer{cmp.Or(f.Status, http.StatusOK), plain, []byte(f.Body)}
	if json.Valid(a.body) {
		a.header.Set("Content-Type", "application/json; charset=utf-8")
	}
	maps.Copy(a.header, f.Header)
	return a
}

func (a answer) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // an error means that the client has gone
}

// readPost reads the body of a POST. If the method is wrong or the body cannot be read, it returns the
// answer that refuses the request.
func readPost(w http.ResponseWriter, r *http.Request, limit int64) (body []byte, refusal *answer) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	switch _, tooLarge := errors.AsType[*http.MaxBytesError](err); {
	case r.Method != http.MethodPost:
		refusal = new(textAnswer(http.StatusMethodNotAllowed, "method not allowed"))
		refusal.header.Set("Allow", http.MethodPost)
	case tooLarge:
		refusal = new(textAnswer(http.StatusRequestEntityTooLarge, "body too large"))
	case err != nil:
		refusal = new(textAnswer(http.StatusBadRequest, "body ended too early"))
	}
	return body, refusal
}
