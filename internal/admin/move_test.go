package admin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"usher/internal/testkit/inboxtest"
)

// The body of an import may be larger than that of other requests.
func TestImportsALargeFile(t *testing.T) {
	h := New(port(inboxtest.Open(t)))
	var file strings.Builder
	for n := range 2000 {
		file.WriteString(inboxtest.Snapshot("", fmt.Sprint("tenant-", n), "users=5") + "\n")
	}
	if status, answer := ask(h, "POST", "/api/import", file.String()); status != http.StatusOK {
		t.Errorf("%d bytes: %d %s", file.Len(), status, answer)
	}
}

// timed is a connection that records its deadlines.
type timed struct {
	*httptest.ResponseRecorder
	read, write []time.Time
}

func (c *timed) SetReadDeadline(at time.Time) error  { c.read = append(c.read, at); return nil }
func (c *timed) SetWriteDeadline(at time.Time) error { c.write = append(c.write, at); return nil }

// A caller that stops sending or reading in the middle must not keep a transaction open forever.
func TestMovesDoNotStall(t *testing.T) {
	h := New(port(inboxtest.Open(t)))
	in := &timed{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(in, httptest.NewRequest("POST", "http://localhost/api/import", strings.NewReader(inboxtest.Snapshot("", "acme", "users")+"\n")))
	if in.Code != http.StatusOK || len(in.read) < 2 || in.read[len(in.read)-1].IsZero() {
		t.Errorf("import: %d, deadlines %v", in.Code, in.read)
	}
	out := &timed{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(out, httptest.NewRequest("POST", "http://localhost/api/export", nil))
	if out.Code != http.StatusOK || len(out.write) < 2 || out.write[0].IsZero() || !out.write[len(out.write)-1].IsZero() {
		t.Errorf("export: %d, deadlines %v", out.Code, out.write)
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
		before, err := b.Actions(0, 10)
		if err != nil {
			t.Fatal(err)
		}
		status, body := ask(h, tc.method, "/api/export", "", tc.header...)
		after, err := b.Actions(0, 10)
		if err != nil {
			t.Fatal(err)
		}
		if done := tc.status == 200; status != tc.status || strings.Contains(body, "acme") != done || (len(after) == len(before)+1) != done {
			t.Errorf("%s %v: %d, %d actions, %.100s", tc.method, tc.header, status, len(after)-len(before), body)
		}
	}
}
