//go:build unix

package command

import (
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"usher/internal/testkit"
)

func TestCheckLooksAtTheInbox(t *testing.T) {
	t.Parallel()
	run := func(jetStream bool) string {
		opts := &server.Options{Host: "127.0.0.1", Port: -1, JetStream: jetStream, StoreDir: t.TempDir(), NoSigs: true, NoLog: true}
		s, err := server.NewServer(opts)
		if err != nil {
			t.Fatal(err)
		}
		go s.Start()
		t.Cleanup(s.Shutdown)
		testkit.Eventually(t, "a server", func() bool { return s.Addr() != nil })
		return s.Addr().String()
	}
	service := testkit.NewService(t)
	_, receiver := testkit.NewLedger(t)
	for address, want := range map[string]string{
		run(true):              "ok    inbox: the stream USHER will be made (replicas: 1)",
		run(false):             "FAIL  inbox: the servers have no JetStream: enable it in their configuration, for this account",
		testkit.FreeAddress(t): "FAIL  inbox: ",
	} {
		p := start(t, service.Environ("USHER_WEBHOOK_FORWARD_URL="+receiver, "USHER_WEBHOOK_INBOX=nats://"+address), "check")
		<-p.Ended
		if out := p.Stdout.String(); !strings.Contains(out, want) {
			t.Errorf("%s\n%s", out, p.Stderr.String())
		}
	}
}

// check says of a file what usher will find, and leaves nothing behind.
func TestCheckLooksAtTheFile(t *testing.T) {
	t.Parallel()
	service := testkit.NewService(t)
	_, receiver := testkit.NewLedger(t)
	dir := t.TempDir()
	look := func(path, want string) {
		t.Helper()
		p := start(t, service.Environ("USHER_WEBHOOK_FORWARD_URL="+receiver, "USHER_WEBHOOK_INBOX=file:"+path), "check")
		<-p.Ended
		if out := p.Stdout.String(); !strings.Contains(out, want) {
			t.Errorf("%s: %s", path, out)
		}
	}
	look(dir+"/none/inbox.db", "FAIL  inbox: USHER_WEBHOOK_INBOX: ")
	look(dir+"/inbox.db", "ok    inbox: "+dir+"/inbox.db will be made")
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("left behind: %v %v", files, err)
	}
	p := start(t, service.Environ("USHER_WEBHOOK_FORWARD_URL="+receiver, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_INBOX=file:"+dir+"/inbox.db"))
	p.Ready(t)
	look(dir+"/inbox.db", "ok    inbox: "+dir+"/inbox.db is in use")
	p.Stop()
	<-p.Ended
	look(dir+"/inbox.db", "ok    inbox: "+dir+"/inbox.db is there")
}

// While nothing could be read from the servers nobody says that nothing is there.
func TestInboxThatWasNeverReached(t *testing.T) {
	t.Parallel()
	service := testkit.NewService(t)
	_, receiver := testkit.NewLedger(t)
	p := start(t, service.Environ("USHER_WEBHOOK_FORWARD_URL="+receiver, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_INBOX=nats://"+testkit.FreeAddress(t)))
	admin := p.URL(t, "admin")
	for path, want := range map[string]int{"/api/webhooks": 503, "/api/webhooks/1": 503, "/readyz": 503, "/healthz": 200} {
		if status, body := testkit.Get(t, admin+path); status != want || want == 503 && !strings.Contains(body, "refused") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if _, metrics := testkit.Get(t, admin+"/metrics"); strings.Contains(metrics, "\nusher_inbox_pending") || !strings.Contains(metrics, "\nusher_inbox_delivering 0") {
		t.Error("the metrics seem to know")
	}
}
