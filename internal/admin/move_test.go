package admin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/testkit"
	"usher/internal/testkit/inboxtest"
)

// The body of an import may be larger than that of other requests.
func TestImportsALargeFile(t *testing.T) {
	h := New(port(inboxtest.Open(t)))
	var all []testkit.ExportedWebhook
	for n := range 2000 {
		tenant := fmt.Sprint("tenant-", n)
		all = append(all, testkit.ExportedWebhook{Tenant: tenant, State: 3, Body: inboxtest.Snapshot("", tenant, "users=5")})
	}
	file := testkit.Export(all...)
	if status, answer := ask(h, "POST", "/api/import", file); status != http.StatusOK {
		t.Errorf("%d bytes: %d %s", len(file), status, answer)
	}
}

// timed is a connection that records its deadlines.
type timed struct {
	*httptest.ResponseRecorder
	read, write []time.Time
}

func (c *timed) SetReadDeadline(at time.Time) error  { c.read = append(c.read, at); return nil }
func (c *timed) SetWriteDeadline(at time.Time) error { c.write = append(c.write, at); return nil }

// A caller that stops sending in the middle must not keep a transaction open. One that reads an export slowly
// may: like every port, the admin port cuts off only callers that take nothing.
func TestMovesDoNotStall(t *testing.T) {
	h := New(port(inboxtest.Open(t)))
	in := &timed{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(in, httptest.NewRequest("POST", "http://localhost/api/import", strings.NewReader(testkit.Export())))
	if in.Code != http.StatusOK || len(in.read) < 2 || in.read[len(in.read)-1].IsZero() {
		t.Errorf("import: %d, deadlines %v", in.Code, in.read)
	}
	out := &timed{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(out, httptest.NewRequest("POST", "http://localhost/api/export", nil))
	if out.Code != http.StatusOK || len(out.write) != 0 {
		t.Errorf("export: %d, deadlines %v", out.Code, out.write)
	}
}

// pouring is a file that arrives in pieces.
type pouring struct {
	pieces   int
	size     int
	pause    time.Duration
	deadline time.Time
}

func (f *pouring) SetReadDeadline(at time.Time) error { f.deadline = at; return nil }
func (f *pouring) Header() http.Header                { return nil }
func (f *pouring) WriteHeader(int)                    {}
func (f *pouring) Write(p []byte) (int, error)        { return len(p), nil }
func (f *pouring) Read(p []byte) (int, error) {
	if f.pieces == 0 {
		return 0, io.EOF
	}
	if left := time.Until(f.deadline); left < f.pause {
		time.Sleep(left)
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(f.pause)
	f.pieces--
	return min(f.size, len(p)), nil
}

// All webhooks wait for an import. So a file that hardly arrives does not go on for long, whereas one that
// only takes its time does.
func TestImportDoesNotWaitForASlowFile(t *testing.T) {
	for _, tt := range []struct {
		name    string
		file    pouring
		ok      bool
		atMost  time.Duration
		reading time.Duration // between the pieces: the inbox is busy with them
	}{
		{"steady", pouring{pieces: 1000, size: 64 << 10, pause: 100 * time.Millisecond}, true, time.Hour, 0},
		{"begins late", pouring{pieces: 1, size: 100, pause: 20 * time.Second}, true, time.Hour, 0},
		{"an inbox that is slow", pouring{pieces: 100, size: 100, pause: time.Millisecond}, true, 2 * time.Hour, time.Minute},
		{"a byte now and then", pouring{pieces: 1000, size: 1, pause: 4 * time.Second}, false, 15 * time.Second, 0},
		{"a trickle", pouring{pieces: 100_000, size: 100, pause: 100 * time.Millisecond}, false, 15 * time.Second, 0},
		{"never begins", pouring{pieces: 1, size: 100, pause: time.Hour}, false, time.Minute, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			from := &stream{conn: http.NewResponseController(&tt.file), from: &tt.file}
			var err error
			for p := make([]byte, 256<<10); err == nil; time.Sleep(tt.reading) {
				_, err = from.Read(p)
			}
			if took := time.Since(start); (err == io.EOF) != tt.ok || took > tt.atMost {
				t.Errorf("%s: %v after %v", tt.name, err, took)
			}
		})
	}
}

// thenRead calls first for its first read.
type thenRead struct {
	first func([]byte) (int, error)
	io.Reader
}

func (r *thenRead) Read(p []byte) (int, error) {
	if first := r.first; first != nil {
		r.first = nil
		return first(p)
	}
	return r.Reader.Read(p)
}

// As long as nothing of the file has arrived, nobody waits for it.
func TestImportWaitsForItsFile(t *testing.T) {
	b := inboxtest.Open(t)
	h := New(port(b))
	file, write := io.Pipe()
	done, begun := make(chan int), make(chan bool)
	first := func(p []byte) (int, error) { close(begun); return 0, nil }
	go func() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "http://localhost/api/import", &thenRead{first, file}))
		done <- w.Code
	}()
	<-begun
	b.Take("", "acme", inboxtest.Snapshot("", "acme", "users"))
	b.Erase("", "acme") // it is empty again
	io.WriteString(write, testkit.Export())
	write.Close()
	if status := <-done; status != http.StatusOK {
		t.Errorf("got %d", status)
	}
}

// An export is an action: no link and no form of another site can take one in the name of the person who is signed in.
func TestExportIsAnAction(t *testing.T) {
	b := inboxtest.Open(t)
	b.Take("", "acme", inboxtest.Snapshot("", "acme", "users"))
	h := New(port(b))
	link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	for _, tc := range []struct {
		method string
		header []string
		status int
	}{
		{"GET", nil, 405},
		{"HEAD", nil, 405},
		{"GET", link, 405},
		{"POST", link, 403},
		{"POST", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"POST", []string{"Origin", "https://evil.example"}, 403},
		{"POST", []string{"Origin", "null"}, 403},
		{"POST", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"POST", nil, 200},
	} {
		before, err := b.Actions(context.Background(), 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		status, body := ask(h, tc.method, "/api/export", "", tc.header...)
		after, err := b.Actions(context.Background(), 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		if done := tc.status == 200; status != tc.status || strings.Contains(body, "acme") != done || (len(after) == len(before)+1) != done {
			t.Errorf("%s %v: %d, %d actions, %.100s", tc.method, tc.header, status, len(after)-len(before), body)
		}
	}
}

// Nor does a link of another site download a payload, which has customers' contacts; a link of this port does.
func TestNoLinkDownloadsAPayload(t *testing.T) {
	b := inboxtest.Open(t)
	b.Take("", "acme", inboxtest.Snapshot("", "acme", "users"))
	h := New(port(b))
	for site, want := range map[string]int{"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200} {
		if status, body := ask(h, "GET", "/webhooks/1/payload", "", "Sec-Fetch-Site", site, "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"); status != want {
			t.Errorf("%s: %d %s", site, status, body)
		}
	}
}
