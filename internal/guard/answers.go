package guard

import (
	"errors"
	"net/http"
	"strconv"
)

// MaxAnswers limits the memory for the answers of one port: those that are being made, and those that nobody
// has read yet.
const MaxAnswers = 64 << 20

const (
	// smallAnswer always has room, of every answer: the socket takes it, even if nobody reads.
	smallAnswer = 16 << 10
	// answerPiece is how much of an answer is sent, and given back, at once.
	answerPiece = 32 << 10
)

var errNoRoom = errors.New("the memory for answers is used up")

// Answers returns a handler whose answers together take no more memory than limit. Each answer of
// next is made in memory first, and then sent: so next ends, and lets go of what it made the answer
// from, whether somebody reads or not. If there is no room for all of it, full answers instead; it
// writes little, and a 503.
//
// A handler that calls Flush streams. What it has written is sent, and from then on its writes go to the
// connection, and wait for the reader. It must hold little meanwhile.
func Answers(limit int64, next http.Handler, full http.HandlerFunc) http.Handler {
	return boundAnswers(&memory{limit: limit}, next, full)
}

func boundAnswers(all *memory, next http.Handler, full http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &pending{ResponseWriter: w, of: all}
		defer a.release() // deferred, because next may panic
		next.ServeHTTP(a, r)
		if !a.failed {
			a.send(true)
			return
		}
		about := []string{"Content-Length", "Content-Encoding", "Content-Disposition", "Etag", "Last-Modified"}
		for _, name := range about {
			w.Header().Del(name)
		}
		w.Header().Set("Retry-After", "1")
		full(w, r)
	})
}

// pending is an answer that is being made.
type pending struct {
	http.ResponseWriter
	of *memory

	status  int // zero: none yet
	pieces  [][]byte
	size    int   // of pieces
	taken   int64 // of the memory
	streams bool
	failed  bool // there was no room
}

// Unwrap is for http.ResponseController.
func (a *pending) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *pending) WriteHeader(status int) {
	switch {
	case a.streams || status < 200: // the answer is still to come after a 1xx
		a.ResponseWriter.WriteHeader(status)
	case a.status == 0:
		a.status = status
	}
}

func (a *pending) Write(p []byte) (n int, err error) {
	if a.streams {
		return a.ResponseWriter.Write(p)
	}
	if a.status == 0 {
		a.status = http.StatusOK
	}
	for n < len(p) && !a.failed {
		n += a.add(p[n:])
	}
	if a.failed {
		return n, errNoRoom
	}
	return n, nil
}

// add adds what fits into a piece.
func (a *pending) add(p []byte) int {
	last := len(a.pieces) - 1
	if last < 0 || len(a.pieces[last]) == answerPiece {
		a.pieces = append(a.pieces, nil)
		last++
	}
	p = p[:min(len(p), answerPiece-len(a.pieces[last]))]
	before := cap(a.pieces[last])
	if len(a.pieces) > 1 && before == 0 {
		a.pieces[last] = make([]byte, 0, answerPiece)
	}
	a.pieces[last] = append(a.pieces[last], p...)
	a.size += len(p)
	if grown := int64(cap(a.pieces[last]) - before); a.size > smallAnswer && !a.take(grown) {
		a.failed = true
		a.release()
	}
	return len(p)
}

func (a *pending) take(n int64) bool {
	if a.of.used.Add(n) > a.of.limit {
		a.of.used.Add(-n)
		return false
	}
	a.taken += n
	return true
}

// release drops what was not sent, and gives its memory back.
func (a *pending) release() {
	a.of.used.Add(-a.taken)
	a.taken, a.pieces = 0, nil
}

// FlushError is Flush for http.ResponseController.
func (a *pending) FlushError() error {
	if a.failed {
		return errNoRoom
	}
	a.send(false)
	a.streams = true
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// send sends all pieces, and gives its memory back. whole says that it is the whole answer.
func (a *pending) send(whole bool) {
	if a.status == 0 || a.streams {
		return // nothing was said yet, and net/http says 200; or all has gone already
	}
	if h := a.Header(); whole && a.size > 0 && h.Get("Content-Length") == "" {
		h.Set("Content-Length", strconv.Itoa(a.size))
	}
	a.ResponseWriter.WriteHeader(a.status)
	for i, piece := range a.pieces {
		if _, err := a.ResponseWriter.Write(piece); err != nil {
			break // the reader has gone
		}
		a.pieces[i] = nil
		sent := min(int64(cap(piece)), a.taken)
		a.of.used.Add(-sent)
		a.taken -= sent
	}
	a.release()
}
