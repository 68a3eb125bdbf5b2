package sandbox

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// A Fault says how an endpoint fails. The zero Fault is no fault.
//
// First comes the Delay. Then, depending on what is set, there is no answer (Hang), the connection is
// closed (HangUp), the fault has its own answer (Status, Body), or the real answer follows.
type Fault struct {
	Delay  time.Duration // before anything is answered
	Status int           // answered instead of the real status; 200 if only Body is set
	Body   string        // answered instead of the real body
	Header http.Header   // added to the fault's own answer, such as Retry-After
	Hang   bool          // no answer at all, until the request's context ends
	HangUp bool          // connection closed without an answer; with Status or Body: in the middle of it

	// Times ends the fault after so many requests, Until at that time; zero means never.
	Times int
	Until time.Time
}

func (f Fault) none() bool {
	return f.Delay <= 0 && !f.ownAnswer() && !f.Hang && !f.HangUp || !f.Until.IsZero() && !time.Now().Before(f.Until)
}

// ownAnswer reports whether the fault replaces the real answer.
func (f Fault) ownAnswer() bool { return f.Status != 0 || f.Body != "" }

// answer is what a handler's logic returns.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func jsonAnswer(status int, v any) answer {
	return answer{status, http.Header{"Content-Type": {"application/json; charset=utf-8"}}, append(encode(v), '\n')}
}

func encode(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own types: a bug in this package
	}
	return body
}

// textAnswer is the answer to a request that no client should send.
func textAnswer(status int, text string) answer {
	return answer{status, http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, []byte(text + "\n")}
}

// faults are those of a handler, by the name of the part that fails.
type faults struct {
	mu sync.Mutex
	of map[string]Fault // guarded by mu
}

func (s *faults) set(part string, f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = make(map[string]Fault)
	}
	s.of[part] = f
}

// take returns the fault for one request, that of the first part that fails, and counts the request.
func (s *faults) take(parts ...string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, part := range parts {
		f := s.of[part]
		if f.none() {
			continue
		}
		switch left := f; f.Times {
		case 0: // it ends when somebody says so
		case 1:
			delete(s.of, part)
		default:
			left.Times--
			s.of[part] = left
		}
		return f
	}
	return Fault{}
}

// serve answers as the fault says, otherwise with the refusal, if there is one, or with the result of
// work. Just before, it calls sent with the status: 0 if there will be no complete answer.
//
// The request's body must have been read to its end. Only then does net/http notice that the client
// has gone, and a delay or hang can end.
func (f Fault) serve(w http.ResponseWriter, r *http.Request, refusal *answer, work func() answer, sent func(status int)) {
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
	if f.HangUp { // it announces one byte more than it sends
		a.header.Set("Content-Length", strconv.Itoa(len(a.body)+1))
		a.write(w)
		_ = http.NewResponseController(w).Flush()
		abort()
	}
	sent(a.status)
	a.write(w)
}

func (f Fault) answer() answer {
	a := answer{cmp.Or(f.Status, http.StatusOK), http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, []byte(f.Body)}
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
