//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"usher/internal/testkit"
)

// inboxOf runs the built usher inbox against a running usher, and returns its exit code and all that it prints.
func inboxOf(t *testing.T, p *testkit.Usher, args ...string) (int, string) {
	t.Helper()
	c := startProcess(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(p.URL(t, "admin"), "http://")}, append([]string{"inbox"}, args...)...)
	<-c.Ended
	return c.Code, c.Stdout.String() + c.Stderr.String()
}

// What is paused stays so over a restart, however usher ended; what is discarded or erased is never delivered.
func TestActsOnTheBinary(t *testing.T) {
	t.Parallel()
	receiver, receiverURL := testkit.NewLedger(t)
	environ := testkit.NewService(t).Environ("USHER_WEBHOOK_FORWARD_URL="+receiverURL, "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"))
	p := startProcess(t, environ)
	does := func(want string, args ...string) {
		t.Helper()
		if code, out := inboxOf(t, p, args...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("usher inbox %s: %d\n%s\nwant %q", strings.Join(args, " "), code, out, want)
		}
	}
	send := func(tenant string, users int) {
		t.Helper()
		if status, _, answer := testkit.Post(t, p.URL(t, "webhooks")+"/webhooks", testkit.Snapshot(tenant, users)); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	send("acme", 1)
	testkit.Eventually(t, "delivered", func() bool { return receiver.Last("acme") == 1 })
	does("paused: tenant crm/acme; to resume: usher inbox resume --tenant crm/acme\n", "pause", "--tenant", "acme")
	does("paused: all deliveries", "pause")
	for i, tenant := range []string{"acme", "acme", "left", "other"} {
		send(tenant, i+2)
	}
	if code, out := inboxOf(t, p, "discard", "--state", "waiting"); code != 1 || !strings.Contains(out, "Discard 4 webhooks? [y/N]") || !strings.Contains(out, "nothing was done") {
		t.Errorf("asked, and nobody answers: %d %s", code, out)
	}
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		p.Signal(t, end)
		<-p.Ended
		p = startProcess(t, environ)
		does("Paused since ", "ls", "--state", "waiting")
	}
	does("2 discarded", "discard", "2")
	does("crm/left erased: 1 webhook", "erase", "left", "--yes")
	if code, out := inboxOf(t, p, "forget", "left"); code != 1 || !strings.Contains(out, "unknown tenant left") {
		t.Errorf("%d %s", code, out)
	}
	does("resumed: all deliveries", "resume")
	testkit.Eventually(t, "the others are delivered", func() bool { return receiver.Last("other") == 5 })
	if receiver.Count("acme") != 1 || receiver.Count("left") != 0 {
		t.Errorf("paused or erased, and delivered: %v %v", receiver.All("acme"), receiver.All("left"))
	}
	does("paused", "ls", "--tenant", "crm/acme", "--state", "waiting")
	does("resumed: tenant crm/acme", "resume", "--tenant", "crm/acme")
	testkit.Eventually(t, "the rest is delivered", func() bool { return receiver.Last("acme") == 3 })
	if got := fmt.Sprint(receiver.All("acme")); got != "[1 3]" {
		t.Errorf("delivered %s", got)
	}
	does("discarded by hand", "ls", "--state", "discarded")
	does("changes since 1, the last webhook that the receiver accepted (it did not accept 2)", "show", "3")
}

// Each person has a file with a token of their own, which says who did it. A token for looking cannot act or export, and reads
// the metrics.
func TestWhoMay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string, lines ...string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	p := startProcess(t, nil, "--env-file", file("gate.env", "USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0",
		"export USHER_ADMIN_TOKEN='ana:t0ken-of-ana-t0ken,ben:t0ken-of-ben-t0ken'", `USHER_ADMIN_READ_TOKEN="prom:t0ken-to-look-t0ken"`, "USHER_WEBHOOK_INBOX=file:"+dir+"/inbox.db"))
	admin := p.URL(t, "admin")
	listen := "USHER_ADMIN_LISTEN=" + strings.TrimPrefix(admin, "http://")
	ben := file("ben.env", listen, "USHER_ADMIN_TOKEN=t0ken-of-ben-t0ken", "USHER_WEBHOOK_SIGN_SECRET_FILE=/nowhere")
	looks := file("looks.env", listen, "USHER_ADMIN_READ_TOKEN=t0ken-to-look-t0ken")
	for _, tc := range []struct {
		env  string
		args string
		code int
		want string
	}{
		{ben, "inbox pause", 0, "paused: all deliveries; to resume: usher --env-file " + ben + " inbox resume\n"},
		{looks, "inbox ls", 0, "Paused since "},
		{looks, "inbox resume", 1, "usher: with this token you can look, but not act\n"},
		{looks, "inbox export", 1, "usher: with this token you can look, but not act\n"},
		{looks, "inbox actions", 0, "  pause  "},
		{looks, "inbox actions", 0, "  ben ("},
		{looks, "healthcheck", 0, `{"problems":[],"ready":true}` + "\n"},
	} {
		c := startProcess(t, nil, append([]string{"--env-file", tc.env}, strings.Fields(tc.args)...)...)
		<-c.Ended
		if out := c.Stdout.String() + c.Stderr.String(); c.Code != tc.code || !strings.Contains(out, tc.want) {
			t.Errorf("usher --env-file %s %s: %d %s, want %d with %s", tc.env, tc.args, c.Code, out, tc.code, tc.want)
		}
	}
	req, err := http.NewRequest("GET", admin+"/metrics", nil)
	if err == nil {
		req.SetBasicAuth("anybody", "t0ken-to-look-t0ken")
	}
	if r := do(req, err); r.status != 200 {
		t.Errorf("metrics: %+v", r)
	}
	if strings.Contains(p.Stderr.String(), "t0ken") {
		t.Error("a token is in the log")
	}
}
