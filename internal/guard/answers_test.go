package guard

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

const largeAnswer = 60 << 10

// readers serves answers on connections in memory, which hold nothing: what nobody reads stays in usher. made gets a
// value when an answer is made.
func readers(t *testing.T, handler http.HandlerFunc) (ask func(request string) *bufio.Reader, hangUp func(), all *memory, made chan error) {
	t.Helper()
	all, made = &memory{limit: 100 << 10}, make(chan error, 10)
	log, way := slog.New(slog.DiscardHandler), make(pipes)
	srv := NewServer(boundAnswers(all, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handler != nil {
			handler(w, r)
			return
		}
		w.Header().Set("Etag", `"1"`)
		w.Header().Set("Cache-Control", "no-store")
		if r.URL.Path == "/small" {
			io.WriteString(w, "small")
			return
		}
		var err error
		for range largeAnswer >> 10 {
			if _, err = io.WriteString(w, strings.Repeat("x", 1<<10)); err != nil {
				break
			}
		}
		made <- err
	}), func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503); io.WriteString(w, "full") }), log)
	go srv.Serve(Listener(way, nil, Patience, log))
	t.Cleanup(func() { srv.Close() })
	var last net.Conn
	return func(request string) *bufio.Reader {
		here, there := net.Pipe()
		way <- there
		t.Cleanup(func() { here.Close() })
		last = here
		go io.WriteString(here, request+" HTTP/1.1\r\nHost: a\r\n\r\n")
		return bufio.NewReader(here)
	}, func() { last.Close() }, all, made
}

func answerOf(t *testing.T, r *bufio.Reader, method string) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// An answer that nobody reads takes its room, and nothing else: what it was made by has ended. Without room
// there is a 503, but small answers always have some. Who reads, or goes, gives the room back.
func TestAnswersHaveABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, hangUp, all, made := readers(t, nil)
		unread := ask("GET /large")
		if err := <-made; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if used := all.used.Load(); used < largeAnswer-smallAnswer || used > largeAnswer+answerPiece {
			t.Errorf("%d bytes are taken", used)
		}
		resp, body := answerOf(t, ask("GET /large"), "GET")
		if err := <-made; resp.StatusCode != 503 || body != "full" || resp.Header.Get("Retry-After") != "1" || resp.Header.Get("Etag") != "" || resp.Header.Get("Cache-Control") != "no-store" || err != errNoRoom {
			t.Errorf("without room: %s %v %.20s, %v", resp.Status, resp.Header, body, err)
		}
		if resp, body := answerOf(t, ask("GET /small"), "GET"); resp.StatusCode != 200 || body != "small" {
			t.Errorf("a small one: %s %s", resp.Status, body)
		}
		if resp, body := answerOf(t, unread, "GET"); resp.StatusCode != 200 || len(body) != largeAnswer || resp.ContentLength != largeAnswer || resp.Header.Get("Etag") == "" {
			t.Errorf("read late: %s, %d bytes of %d", resp.Status, len(body), resp.ContentLength)
		}
		ask("GET /large")
		<-made
		synctest.Wait()
		hangUp()
		synctest.Wait()
		if used := all.used.Load(); used != 0 {
			t.Errorf("%d bytes are not given back", used)
		}
		if resp, body := answerOf(t, ask("HEAD /large"), "HEAD"); resp.StatusCode != 200 || resp.ContentLength != largeAnswer || body != "" {
			t.Errorf("HEAD: %s, %d bytes", resp.Status, resp.ContentLength)
		}
	})
}

// A handler that flushes streams: its writes wait for the reader, and take no room.
func TestStreamedAnswersTakeNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := 0
		ask, _, all, _ := readers(t, func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "begin")
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			for range 200 {
				n, _ := io.WriteString(w, strings.Repeat("x", 1<<10))
				written += n
			}
		})
		unread := ask("GET /")
		synctest.Wait()
		if written > 16<<10 || all.used.Load() != 0 {
			t.Errorf("%d bytes are written, %d taken", written, all.used.Load())
		}
		if resp, body := answerOf(t, unread, "GET"); resp.StatusCode != 200 || len(body) != len("begin")+200<<10 || resp.ContentLength != -1 {
			t.Errorf("%s, %d bytes of %d", resp.Status, len(body), resp.ContentLength)
		}
	})
}

// A handler learns that its reader has gone. One that panics, or that says nothing, does what it does elsewhere.
func TestAnswersThatAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := make(chan bool)
		ask, hangUp, all, _ := readers(t, func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, strings.Repeat("x", largeAnswer))
			switch r.URL.Path {
			case "/gone":
				<-r.Context().Done()
				gone <- true
			case "/panics":
				panic(http.ErrAbortHandler)
			}
		})
		ask("GET /gone")
		synctest.Wait()
		hangUp()
		<-gone
		if _, err := http.ReadResponse(ask("GET /panics"), nil); err == nil {
			t.Error("an answer that panicked was sent")
		}
		synctest.Wait()
		if used := all.used.Load(); used != 0 {
			t.Errorf("%d bytes are not given back", used)
		}
		ask, _, _, _ = readers(t, func(http.ResponseWriter, *http.Request) {})
		if resp, _ := answerOf(t, ask("GET /"), "GET"); resp.StatusCode != 200 || resp.ContentLength != 0 {
			t.Errorf("nothing said: %s", resp.Status)
		}
		ask, _, _, _ = readers(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
		if resp, _ := answerOf(t, ask("GET /"), "GET"); resp.StatusCode != 204 || resp.Header.Get("Content-Length") != "" {
			t.Errorf("no content: %s %v", resp.Status, resp.Header)
		}
	})
}
