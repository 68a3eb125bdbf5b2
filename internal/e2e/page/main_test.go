// Package page tests the admin page of the whole program: what it says over HTTP, what a person sees
// and does in a real browser, and what the pages of others can't do to usher from there. It has tests
// only.
package page

import (
	"context"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"usher/internal/command"
	"usher/internal/sandbox"
	"usher/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, func() { closeBrowser() }) }

// What the tests of this package use of testkit, by shorter names.
var (
	newService = testkit.NewService
	snapshot   = testkit.Snapshot
	get        = testkit.Get
	post       = testkit.Post
	wantCall   = testkit.WantCall
)

// start runs usher in this process until the test ends.
func start(t *testing.T, environ []string, args ...string) *testkit.Usher {
	t.Helper()
	return testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int {
		return command.Main(ctx, command.Process{Args: args, Environ: environ, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr})
	})
}

// watched is a program with an inbox, and a receiver whose answers can be held back.
type watched struct {
	*testkit.Usher
	receiver *sandbox.Receiver
	hold     atomic.Pointer[chan struct{}] // a delivery waits until it is closed
	gate     string
	admin    string
}

func startWatched(t *testing.T, extra ...string) *watched {
	t.Helper()
	w := &watched{receiver: sandbox.NewReceiver()}
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if hold := w.hold.Load(); hold != nil {
			<-*hold
		}
		w.receiver.ServeHTTP(rw, r)
	}))
	t.Cleanup(srv.Close)
	w.Usher = start(t, newService(t).Environ(append([]string{
		"USHER_WEBHOOK_FORWARD_URL=" + srv.URL + "/provisioning", "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_INBOX=file:" + filepath.Join(t.TempDir(), "inbox.db"),
	}, extra...)...))
	w.gate, w.admin = w.URL(t, "webhooks")+"/webhooks", w.URL(t, "admin")
	w.Ready(t)
	return w
}

// holdUp has deliveries wait for release: what a page says of one is gone from there as soon as that one is over.
func (w *watched) holdUp(t *testing.T) (release func()) {
	hold := make(chan struct{})
	w.hold.Store(&hold)
	release = sync.OnceFunc(func() { w.hold.Store(nil); close(hold) })
	t.Cleanup(release)
	return release
}

// send posts snapshots of a tenant, with so many users, and waits until they are delivered.
func (w *watched) send(t *testing.T, tenant string, users ...int) {
	t.Helper()
	for _, n := range users {
		if status, decision, answer := post(t, w.gate, snapshot(tenant, n)); status != 200 || decision != "queued" {
			t.Fatalf("%d %s %s", status, decision, answer)
		}
	}
	testkit.Eventually(t, "delivered", func() bool {
		_, metrics := get(t, w.admin+"/metrics")
		return strings.Contains(metrics, "\nusher_inbox_pending 0\n")
	})
}

// words is the text of a page, with one space between any two words: for what takes no browser.
func (w *watched) words(t *testing.T, path string) string {
	t.Helper()
	status, page := get(t, w.admin+path)
	if status != 200 {
		t.Fatalf("%s: %d %s", path, status, page)
	}
	text := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " ")
	return strings.Join(strings.Fields(html.UnescapeString(text)), " ")
}
