//go:build unix

package e2e

import (
	"fmt"
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
	does("paused: tenant crm/acme; 'usher inbox resume --tenant crm/acme'", "pause", "--tenant", "acme")
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
	if code, out := inboxOf(t, p, "forget", "left"); code != 1 || !strings.Contains(out, "no tenant left is known") {
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
	does("changes against 1, the last that the receiver took (it did not take 2)", "show", "3")
}

// Whichever replica is asked, all of them do it.
func TestActsOnReplicas(t *testing.T) {
	f := newFleet(t)
	does := func(usher int, want string, args ...string) {
		t.Helper()
		if code, out := inboxOf(t, f.ushers[usher].Usher, args...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("usher inbox %s: %d\n%s\nwant %q", strings.Join(args, " "), code, out, want)
		}
	}
	does(0, "paused: all deliveries", "pause")
	for i, tenant := range []string{"t0", "t0", "t1", "t2", "t3"} {
		if status, _, answer := testkit.Post(t, "http://"+f.ushers[i%3].gate+"/webhooks", testkit.Snapshot(tenant, i+1)); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	// Another replica than the one that was asked may show it a moment later.
	var lines []string // the newest first
	testkit.Eventually(t, "shown as paused", func() bool {
		_, list := inboxOf(t, f.ushers[1].Usher, "ls", "--tenant", "t0")
		lines = strings.Split(list, "\n")
		return len(lines) >= 3 && strings.Count(list, "; paused")+strings.Count(list, "  paused") == 2
	})
	does(2, "discarded", "discard", strings.Fields(lines[1])[0])
	does(1, "crm/t1 erased: 1 webhook", "erase", "t1", "--yes")
	for i, u := range f.ushers {
		testkit.Eventually(t, fmt.Sprintf("the page of usher %d says what is paused", i), func() bool {
			_, page := testkit.Get(t, u.URL(t, "admin")+"/webhooks")
			return strings.Contains(page, "Paused: all deliveries") && strings.Contains(page, `action="/resume"`)
		})
	}
	if n := f.receiver.Count("t0") + f.receiver.Count("t2") + f.receiver.Count("t3"); n != 0 {
		t.Errorf("%d deliveries though they are paused", n)
	}
	does(2, "resumed: all deliveries", "resume")
	testkit.Eventually(t, "delivered", func() bool {
		return f.receiver.Count("t0") == 1 && f.receiver.Count("t2") == 1 && f.receiver.Count("t3") == 1
	})
	if got := fmt.Sprint(f.receiver.All("t0"), f.receiver.All("t1")); got != "[2] []" {
		t.Errorf("delivered %s", got)
	}
	for i, u := range f.ushers {
		testkit.Eventually(t, "no banner any more", func() bool {
			_, page := testkit.Get(t, u.URL(t, "admin")+"/")
			return !strings.Contains(page, "Paused: ")
		})
		if _, page := testkit.Get(t, u.URL(t, "admin")+"/"); !strings.Contains(page, "the part that this replica delivers") {
			t.Errorf("the page of usher %d does not say what its figures are of", i)
		}
	}
}
