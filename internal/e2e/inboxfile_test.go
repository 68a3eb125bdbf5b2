//go:build unix

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"usher/internal/testkit"
)

// Killed at random moments under eight senders, again and again: whatever was answered
// 200 is delivered, at least once, and in order for each tenant.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	receiver, receiverURL := testkit.NewLedger(t)
	gate := testkit.FreeAddress(t)
	environ := s.Environ("USHER_WEBHOOK_FORWARD_URL="+receiverURL, "USHER_WEBHOOK_LISTEN="+gate,
		"USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"), "USHER_LOG_LEVEL=warn")
	senders, kills := pick(4, 8), pick(4, 40)
	acked := make([]int, senders) // the last number that was answered 200, of each sender's tenant
	var answered atomic.Int64     // how many were answered 200
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: senders}}
	var sending sync.WaitGroup
	for i := range senders {
		sending.Go(func() {
			for n := 1; ctx.Err() == nil; {
				resp, err := client.Post("http://"+gate+"/webhooks", "application/json", strings.NewReader(testkit.Snapshot(fmt.Sprint("t", i), n)))
				if err != nil { // it was killed just now: the service would send it again, too
					time.Sleep(5 * time.Millisecond)
					continue
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode == 200 {
					acked[i] = n
					answered.Add(1)
					n++
				}
				time.Sleep(2 * time.Millisecond) // a sender's own pace
			}
		})
	}
	for n := range kills {
		before := answered.Load()
		p := startProcess(t, environ)
		testkit.Eventually(t, "listening", func() bool {
			conn, err := net.Dial("tcp", gate)
			if err == nil {
				conn.Close()
			}
			// on a slow machine a kill could always come before the first 200
			return err == nil && (n%2 == 0 || answered.Load() > before)
		})
		time.Sleep(time.Duration(rand.IntN(250)) * time.Millisecond) // any moment
		p.Kill()
	}
	stop()
	sending.Wait()

	startProcess(t, environ)
	total, repeated := 0, 0
	for i := range senders {
		tenant := fmt.Sprint("t", i)
		testkit.Eventually(t, "all delivered", func() bool { return receiver.Last(tenant) == acked[i] || receiver.Last(tenant) == acked[i]+1 })
		got := receiver.All(tenant)
		most := 0
		for _, n := range got {
			switch {
			case n == most+1:
				most = n
			case n <= most: // once more, after a kill
				repeated++
			default:
				t.Errorf("tenant %s: %d came after %d", tenant, n, most)
			}
		}
		if most < acked[i] {
			t.Errorf("tenant %s: %d was answered 200, but only %d arrived", tenant, acked[i], most)
		}
		total += acked[i]
	}
	t.Logf("%d kills, %d senders: %d webhooks answered 200, none lost, none out of order, %d delivered more than once", kills, senders, total, repeated)
}

// The receiver is down, then up: `usher inbox` shows what waits, and it arrives.
func TestInboxOnTheBinary(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	receiver, receiverURL := testkit.NewLedger(t)
	receiver.SetDown(true)
	p := startProcess(t, s.Environ("USHER_WEBHOOK_FORWARD_URL="+receiverURL, "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db")))
	p.Ready(t)
	url := p.URL(t, "webhooks") + "/webhooks"
	for _, n := range []int{5, 10} {
		if status, decision, answer := testkit.Post(t, url, testkit.Snapshot("acme", n)); status != 200 || decision != "queued" {
			t.Fatalf("%d %s %s", status, decision, answer)
		}
	}
	if _, decision, _ := testkit.Post(t, url, testkit.Snapshot("acme", 10)); decision != "duplicate" {
		t.Errorf("a copy of the tail is %s", decision)
	}
	run := func(args ...string) (int, string) {
		c := startProcess(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(p.URL(t, "admin"), "http://")}, append([]string{"inbox"}, args...)...)
		<-c.Ended
		return c.Code, c.Stdout.String() + c.Stderr.String()
	}
	code, out := run("ls")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	row := func(id string) []string {
		for _, line := range lines {
			if f := strings.Fields(line); len(f) > 1 && f[0] == id {
				return f
			}
		}
		return nil
	}
	if code != 0 || row("1") == nil || row("2") == nil || row("1")[1] != "waiting" {
		t.Errorf("ls: %d\n%s", code, out)
	}
	// the receiver has nothing yet
	if code, out := run("show", "2"); code != 0 || !strings.Contains(out, "+ users (10)") {
		t.Errorf("show: %d\n%s", code, out)
	}
	_, metrics := testkit.Get(t, p.URL(t, "admin")+"/metrics")
	for _, want := range []string{"usher_inbox_pending 2", "usher_inbox_parked 0", "usher_inbox_oldest_seconds ", `usher_webhook_received_total{decision="queued"} 2`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	receiver.SetDown(false)
	testkit.Eventually(t, "delivered", func() bool { return receiver.Last("acme") == 10 })
	testkit.Eventually(t, "settled", func() bool {
		_, out := run("ls", "--state", "delivered", "--json")
		return strings.Count(out, `"delivered"`) == 2
	})
	if code, out := run("show", "2"); code != 0 || !strings.Contains(out, "users 5 → 10") {
		t.Errorf("show: %d\n%s", code, out)
	}
	if code, out := run("redeliver", "1"); code != 1 || !strings.Contains(out, "--force") {
		t.Errorf("an old one over a new one: %d\n%s", code, out)
	}
	if code, out := run("redeliver", "--force", "1"); code != 0 {
		t.Errorf("redeliver: %d\n%s", code, out)
	}
	testkit.Eventually(t, "redelivered", func() bool { return receiver.Last("acme") == 5 })
	if got := receiver.All("acme"); !slices.Equal(got, []int{5, 10, 5}) {
		t.Errorf("the receiver got %v", got)
	}
}

// Two on one file: the second says so and ends.
func TestInboxInUse(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	environ := s.Environ("USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"))
	first := startProcess(t, environ)
	first.URL(t, "webhooks")
	second := startProcess(t, environ)
	if <-second.Ended; second.Code != 1 || !strings.Contains(second.Stderr.String(), "another usher is using it") {
		t.Errorf("%d %s", second.Code, second.Stderr.String())
	}
}

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

// A full disk is no broken one: 503 while it is full, and when there is room again all goes on by itself. What was
// delivered meanwhile is not delivered again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=60m", "usher-test", dir).CombinedOutput(); err != nil {
		t.Skipf("no small disk can be had here: %s", out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
	receiver, receiverURL := testkit.NewLedger(t)
	receiver.SetDown(true)
	p := startProcess(t, gateAlone(receiverURL, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(dir, "inbox.db")))
	p.Ready(t)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 32<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	send := func(n int) int {
		body := testkit.Snapshot(fmt.Sprint("t", n), n)
		status, _, _ := testkit.Post(t, hooks(t, p), body+strings.Repeat(" ", 100<<10))
		return status
	}
	acked, status := 0, send(1)
	for ; acked < 200 && status == 200; status = send(acked + 1) {
		acked++
	}
	if acked == 0 || status != 503 {
		t.Fatalf("after %d: %d", acked, status)
	}
	receiver.SetDown(false)
	testkit.Eventually(t, "some are delivered", func() bool { return len(receiver.Tenants()) > 0 })
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "taken in again", func() bool { return send(acked+1) == 200 })
	for n := 1; n <= acked+1; n++ {
		testkit.Eventually(t, "delivered", func() bool { return receiver.Last(fmt.Sprint("t", n)) == n })
		if count := receiver.Count(fmt.Sprint("t", n)); count != 1 {
			t.Errorf("webhook %d was delivered %d times", n, count)
		}
	}
	wantFigures(t, p, map[string]string{"usher_inbox_pending": "0"})
}

// A file that is moved, removed or replaced while usher runs is noticed, though no webhook comes, and counts as broken.
func TestFileMoved(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(path string) error{
		"moved":   func(path string) error { return os.Rename(path, path+".old") },
		"removed": os.Remove,
		"replaced": func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "inbox.db")
			u := run(t, gateAlone(newReceiver(t, 200).url, "USHER_WEBHOOK_INBOX=file:"+file))
			u.Ready(t)
			if err := harm(file); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "unready", func() bool { status, _ := testkit.Get(t, u.URL(t, "admin")+"/readyz"); return status == 503 })
			r := asked(t, "POST", hooks(t, u), testkit.Snapshot("acme", 1), "Content-Type", "application/json")
			if r.status != 503 || r.header.Get("Retry-After") == "" {
				t.Errorf("%d %v %s", r.status, r.header, r.body)
			}
		})
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

// Many tenants wait while the receiver is down; when it is back all is delivered, in
// order, and never more at once than allowed.
func TestOutageOnTheBinary(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	receiver, receiverURL := testkit.NewLedger(t)
	receiver.SetDown(true)
	p := startProcess(t, s.Environ("USHER_WEBHOOK_FORWARD_URL="+receiverURL, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_LOG_LEVEL=info",
		"USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db")))
	url := p.URL(t, "webhooks") + "/webhooks"
	const each = 2
	tenants := pick(150, 5000)
	var sending sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	for i := range 16 {
		sending.Go(func() {
			for n := i; n < tenants*each; n += 16 { // a tenant's webhooks all come from one sender
				resp, err := client.Post(url, "application/json", strings.NewReader(testkit.Snapshot(fmt.Sprint("t", i, "-", n/16%((tenants+15)/16)), n)))
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					t.Errorf("status %d", resp.StatusCode)
				}
			}
		})
	}
	sending.Wait()
	testkit.Eventually(t, "seen to be down", func() bool { return strings.Contains(p.Stderr.String(), "receiver fails for everybody") })
	refused := receiver.Figures().Refused
	receiver.SetDown(false)
	back := time.Now()
	testkit.Eventually(t, "all delivered", func() bool {
		n := 0
		for _, tenant := range receiver.Tenants() {
			n += receiver.Count(tenant)
		}
		return n >= tenants*each
	})
	for _, tenant := range receiver.Tenants() {
		if got := receiver.All(tenant); !slices.IsSorted(got) {
			t.Errorf("tenant %s: %v", tenant, got)
		}
	}
	most := receiver.Figures().Most
	if most > 32 {
		t.Errorf("%d deliveries at once", most)
	}
	t.Logf("down with %d webhooks of %d tenants waiting and %d tries; all delivered %v after its return, %d at once at most",
		tenants*each, len(receiver.Tenants()), refused, time.Since(back).Round(time.Millisecond), most)
}
