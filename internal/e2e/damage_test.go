//go:build unix

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"usher/internal/testkit"
)

// The kernel reports that a sync failed: usher says so at once and for good, and never tries it again. After
// a restart what was acknowledged is there, and no more.
func TestSyncError(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("no strace on this machine")
	}
	receiver, receiverURL := testkit.NewLedger(t)
	receiver.SetDown(true)
	environ := gateAlone(receiverURL, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"))
	p := startProcess(t, environ)
	p.Ready(t)
	const acked = 5
	for n := 1; n <= acked; n++ {
		if status, _, answer := testkit.Post(t, hooks(t, p), testkit.Snapshot(fmt.Sprint("t", n), n)); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	var tracer testkit.Output
	breaks := exec.Command(strace, "-f", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO", "-p", fmt.Sprint(p.Process.Pid))
	breaks.Stdout, breaks.Stderr = &tracer, &tracer
	if err := breaks.Start(); err != nil {
		t.Fatal(err)
	}
	traced := make(chan struct{})
	go func() { defer close(traced); _ = breaks.Wait() }()
	t.Cleanup(func() { _ = breaks.Process.Kill(); <-traced })
	testkit.Eventually(t, "strace is there", func() bool {
		select {
		case <-traced:
			t.Skipf("strace can't trace here: %s", tracer.String())
		default:
		}
		return strings.Contains(tracer.String(), " attached")
	})
	for n := acked + 1; n <= acked+5; n++ {
		if status, _, answer := testkit.Post(t, hooks(t, p), testkit.Snapshot(fmt.Sprint("t", n), n)); status != 503 || !strings.Contains(answer, "inbox") {
			t.Fatalf("webhook %d, after the disk broke: %d %s", n, status, answer)
		}
	}
	if status, body := testkit.Get(t, p.URL(t, "admin")+"/readyz"); status != 503 || !strings.Contains(body, "could not be written") {
		t.Errorf("/readyz: %d %s", status, body)
	}
	p.Kill()

	receiver.SetDown(false)
	startProcess(t, environ)
	for n := 1; n <= acked; n++ {
		testkit.Eventually(t, "delivered", func() bool { return receiver.Last(fmt.Sprint("t", n)) == n })
	}
	// The one whose sync failed may be there or not: the kernel would not tell. Its
	// sender was told to send it again, and the same snapshot twice does no harm.
	if extra := len(receiver.Tenants()) - acked; extra < 0 || extra > 1 {
		t.Errorf("%d tenants arrived, %d were acknowledged", len(receiver.Tenants()), acked)
	}
}

// One bit of a record flips on the disk while usher is off: that record is reported
// and parked, and all others are delivered.
func TestFlippedBit(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	receiver, receiverURL := testkit.NewLedger(t)
	receiver.SetDown(true)
	file := filepath.Join(t.TempDir(), "inbox.db")
	environ := s.Environ("USHER_WEBHOOK_FORWARD_URL="+receiverURL, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_INBOX=file:"+file)
	p := startProcess(t, environ)
	url := p.URL(t, "webhooks") + "/webhooks"
	for n := 1; n <= 50; n++ {
		if status, _, answer := testkit.Post(t, url, testkit.Snapshot(fmt.Sprint("t", n), n)); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	p.Signal(t, syscall.SIGTERM)
	<-p.Ended

	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(testkit.Snapshot("t7", 7))
	if !bytes.Contains(b, body) {
		t.Fatal("the body is not in the file")
	}
	damaged := bytes.Clone(body)
	damaged[len(damaged)/2] ^= 4
	if err := os.WriteFile(file, bytes.ReplaceAll(b, body, damaged), 0o600); err != nil { // old pages have it, too
		t.Fatal(err)
	}

	receiver.SetDown(false)
	p = startProcess(t, environ)
	for n := 1; n <= 50; n++ {
		if n != 7 {
			testkit.Eventually(t, "delivered", func() bool { return receiver.Last(fmt.Sprint("t", n)) == n })
		}
	}
	if receiver.Last("t7") != 0 {
		t.Error("the damaged one was delivered")
	}
	testkit.Eventually(t, "the damage is reported", func() bool { return strings.Contains(p.Stderr.String(), "webhook damaged, parked") })
	c := startProcess(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(p.URL(t, "admin"), "http://")}, "inbox", "ls", "--state", "parked")
	if <-c.Ended; c.Code != 0 || strings.Count(c.Stdout.String(), "parked") != 1 {
		t.Errorf("usher inbox ls: %d %s%s", c.Code, c.Stdout.String(), c.Stderr.String())
	}
}
