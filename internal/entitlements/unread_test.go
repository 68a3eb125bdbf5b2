package entitlements

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"usher/internal/guard"
	"usher/internal/snapshot"
)

// However many callers ask for all flags of a large tenant and read nothing of the answers, usher needs
// little memory for them. Some get a 503 instead. When the callers have gone there is room again.
func TestAnswersThatNobodyReads(t *testing.T) {
	var features []snapshot.Feature
	for n := range 1000 { // few and long: they are made quickly, and nobody who reads slowly is cut off meanwhile
		features = append(features, snapshot.Feature{Code: fmt.Sprintf("f%d", n), Limit: snapshot.Unlimited, Value: strings.Repeat("v", 10<<10)})
	}
	large := Answer{Snapshot: snapshot.Snapshot{Known: true, Features: features}}
	cfg := config(t)
	cfg.Lookup = func(context.Context, string, *string) (Answer, error) { return large, nil }
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	srv := guard.NewServer(New(cfg), log)
	go srv.Serve(guard.Listener(socket, nil, guard.Patience, log))
	defer srv.Close()
	ask := func(request string) (net.Conn, *http.Response) {
		conn, err := net.Dial("tcp", socket.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, request)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		return conn, resp
	}
	const bulk = `{"context":{"targetingKey":"acme"}}`
	flags := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", flagURL, len(bulk), bulk)
	all := "GET /v1/entitlements/acme HTTP/1.1\r\nHost: localhost\r\n\r\n"

	before, answers := inUse(), make(map[int]int)
	var unread []net.Conn
	for range 12 {
		for _, request := range []string{flags, all} {
			conn, resp := ask(request)
			unread = append(unread, conn)
			if answers[resp.StatusCode]++; resp.StatusCode == 503 && resp.Header.Get("Retry-After") == "" {
				t.Error("without Retry-After")
			}
		}
	}
	if used := inUse() - before; used > guard.MaxAnswers+16<<20 {
		t.Errorf("%d MB are in use", used>>20)
	}
	if answers[200] < 5 || answers[503] == 0 || answers[200]+answers[503] != 24 {
		t.Errorf("%v", answers)
	}
	if conn, resp := ask("GET /v1/check?tenant=acme&feature=f1 HTTP/1.1\r\nHost: localhost\r\n\r\n"); resp.StatusCode != 204 {
		t.Errorf("a check meanwhile: %s", resp.Status)
	} else {
		conn.Close()
	}
	for _, conn := range unread {
		conn.Close()
	}
	for {
		conn, resp := ask(flags)
		body, err := io.ReadAll(resp.Body)
		conn.Close()
		if resp.StatusCode == 200 && err == nil && strings.Count(string(body), `"key":`) == 3*len(features) {
			return
		}
		if resp.StatusCode != 503 {
			t.Fatalf("%s, %d bytes, %v", resp.Status, len(body), err)
		}
	}
}

// An answer that is being made needs little besides what is made of it, which has a limit: very
// many may be made at once.
func TestAnAnswerThatIsBeingMade(t *testing.T) {
	s := snapshot.Snapshot{Known: true, Features: make([]snapshot.Feature, 48_000)}
	for n := range s.Features {
		s.Features[n].Code = fmt.Sprintf("f%d", n)
	}
	before := inUse()
	next, stop := iter.Pull((&Answer{Snapshot: s}).evaluateAll())
	defer stop()
	if _, any := next(); !any {
		t.Fatal("no flags")
	}
	if used := inUse() - before; used > 64<<10 {
		t.Errorf("%d KB are in use", used>>10)
	}
}

// inUse returns how much memory the process needs now.
func inUse() int64 {
	for range 2 { // a pool keeps what it has for one more
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
