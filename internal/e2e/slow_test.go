//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/testkit"
)

// slow is a way to hold a connection: what is sent at once, and how it goes on.
type slow struct {
	name   string
	head   string // with {path}, {host}, {auth} as in probes
	drip   bool   // a byte each second, else nothing more
	longer bool   // takes half a minute to be closed: with -long alone
}

func slows() []slow {
	body := "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n"
	return []slow{
		{"nothing is sent", "", false, false},
		{"a head, a byte each second", "POST {path} HTTP/1.1\r\nHost: {host}\r\nX-Slow: ", true, false},
		{"a stranger's body, a byte each second", body + "\r\n{", true, false},
		{"a stranger's body that stands still", body + "\r\n{", false, false},
		{"a known caller's body that stands still", body + "{auth}\r\n\r\n{", false, true},
	}
}

// Many slow connections on every port. Each is closed by usher in the end, and a good
// request to the same port is answered rightly all the while.
func TestSlowConnections(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	u := startBuilt(t, w.environ("USHER_KEY="+portKey, "USHER_WEBHOOK_TOKEN="+webhookToken, "USHER_ADMIN_TOKEN="+adminToken, "USHER_WEBHOOK_DEDUP_WINDOW=0")).ready(t)
	before := openFiles(u.Process.Pid)
	var all sync.WaitGroup
	for _, p := range portsOf(u, nil, nil) {
		all.Go(func() {
			t.Run(p.name, func(t *testing.T) { besideSlowOnes(t, u, p, pick(20, 1000)) })
		})
		if *long { // one port after the other
			all.Wait()
		}
	}
	all.Wait()
	testkit.Eventually(t, "all descriptors given back", func() bool { return openFiles(u.Process.Pid) <= before+8 })
}

// besideSlowOnes opens so many slow connections of each kind, and sends good requests
// until all of them are closed.
func besideSlowOnes(t *testing.T, u *usher, p *port, each int) {
	var held sync.WaitGroup
	for _, s := range slows() {
		if s.longer && !*long {
			continue
		}
		for range each {
			held.Go(func() { hold(t, p, s) })
		}
	}
	closed := make(chan struct{})
	go func() { held.Wait(); close(closed) }()
	most, rss := 0, 0
	var took []time.Duration
	for done := false; !done; {
		began := time.Now()
		if got := exchange(t, p, p.fill(good())); got != p.outcome(probe{local: fine, gate: fine, admin: fine}) {
			t.Errorf("a good request beside them: %s", got)
		}
		took = append(took, time.Since(began))
		most, rss = max(most, openFiles(u.Process.Pid)), max(rss, statusMB(u.Process.Pid, "VmRSS:"))
		select {
		case <-closed:
			done = true
		case <-time.After(200 * time.Millisecond):
		}
	}
	slices.Sort(took)
	t.Logf("%d good requests answered meanwhile, half of them within %v, the slowest in %v; up to %d descriptors, %d MB resident",
		len(took), took[len(took)/2].Round(time.Microsecond), took[len(took)-1].Round(time.Millisecond), most, rss)
}

// hold keeps a connection as s says until the other side closes it.
func hold(t *testing.T, p *port, s slow) {
	conn, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(2 * time.Minute)) // a bound for the test, not for usher
	stop := make(chan struct{})
	var dripping sync.WaitGroup
	dripping.Go(func() {
		_, err := io.WriteString(conn, p.fill(s.head))
		for err == nil && s.drip {
			select {
			case <-stop:
				return
			case <-time.After(time.Second):
				_, err = io.WriteString(conn, "x")
			}
		}
	})
	answer, err := io.ReadAll(conn)
	if os.IsTimeout(err) {
		t.Errorf("%s: not closed", s.name)
	}
	if strings.HasPrefix(string(answer), "HTTP/1.1 2") {
		t.Errorf("%s: %s", s.name, answer)
	}
	close(stop)
	dripping.Wait()
}

// statusMB is a figure of /proc/PID/status: VmRSS: is what a process holds in memory,
// VmHWM: the most that it ever held. 0 where that can't be told.
func statusMB(pid int, name string) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			kB, _ := strconv.Atoi(strings.Fields(value)[0])
			return kB >> 10
		}
	}
	return 0
}
