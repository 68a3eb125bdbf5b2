//go:build unix

package e2e

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/testkit"
)

// flood is a kind of webhook that is sent in great numbers, and what it is answered.
type flood struct {
	name   string
	body   string
	known  bool // its senders know the secret
	status int
}

// floods are as large as the gate takes them, 1 MiB. A body may hold some hundred
// thousand values: those with as many as that cost the most.
func floods() []flood {
	const size, most = 1 << 20, 104_000
	before, after, _ := strings.Cut(testkit.Snapshot("flood", 5), `{"code":"users","name":"Users","quantity":5}`)
	features := func(item string, n int) string {
		body := before + strings.TrimSuffix(strings.Repeat(item, n), ",") + after
		return body + strings.Repeat(" ", size-len(body))
	}
	const feature = `{"code":"feature-a","name":"Feature A","quantity":1},`
	valid := features(feature, (size-500)/len(feature))
	return []flood{
		{"strangers' bodies", valid, false, 401},
		{"large and valid", valid, true, 200},
		{"as many values as may be", features("{},", most), true, 200},
		{"as many faults as may be", features("1,", most), true, 422},
		{"one value too many", features("1,", 300_000), true, 400},
		{"as many names as may be", manyNames(size, most), true, 422},
		{"deep", strings.Repeat("[", size/2) + strings.Repeat("]", size/2), true, 400},
		{"deep objects", strings.Repeat(`{"a":`, size/6) + "1" + strings.Repeat("}", size/6), true, 400},
		{"deep and never closed", strings.Repeat("[", size), true, 400},
		{"one long string", `"` + strings.Repeat("x", size-2) + `"`, true, 422},
		{"not JSON", strings.Repeat("\x00", size), true, 400},
		{"not UTF-8", strings.Repeat("\xff", size), true, 400},
		{"too large", strings.Repeat(" ", size+1), true, 413},
	}
}

func manyNames(size, most int) string {
	var b strings.Builder
	b.WriteString(`{"type":"TenantProvisioningChange","payload":{"0":0`)
	for i := 1; i < most-10; i++ {
		fmt.Fprintf(&b, `,"%x":0`, i)
	}
	return b.String() + "}}" + strings.Repeat(" ", max(0, size-b.Len()-2))
}

// maxFloodMB bounds what usher may hold in memory while it is flooded, at the settings'
// defaults: docs/SECURITY.md states it.
const maxFloodMB = 1024

// TestWebhookFlood sends each kind, with the long form from as many senders at once as the gate lets in. A good webhook
// among them is taken, and memory stays within the bound.
func TestWebhookFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	u := startBuilt(t, w.environ("USHER_WEBHOOK_TOKEN="+webhookToken, "USHER_WEBHOOK_DEDUP_WINDOW=0", "USHER_LOG_LEVEL=info")).ready(t)
	for _, f := range floods() {
		t.Run(f.name, func(t *testing.T) {
			var all sync.WaitGroup
			var mu sync.Mutex
			seen := map[int]int{}
			for range pick(1, 256) {
				all.Go(func() {
					for status := 0; status == 0; { // else it was refused before all of it was sent, and missed the answer
						status = u.sendAs(f.body, f.known).status
						mu.Lock()
						seen[status]++
						mu.Unlock()
					}
				})
			}
			all.Go(func() {
				testkit.Eventually(t, "taken beside the flood", func() bool { return u.sendAs(testkit.Snapshot("good", 5), true).status == 200 })
			})
			all.Wait()
			for status := range seen {
				if status != f.status && status != 503 && status != 0 { // 503: too many at once
					t.Errorf("answers %v, want %d", seen, f.status)
				}
			}
			if seen[f.status] == 0 {
				t.Errorf("answers %v, none %d", seen, f.status)
			}
			peak := statusMB(u.Process.Pid, "VmHWM:")
			if peak > maxFloodMB {
				t.Errorf("%d MB at the peak, want %d at most", peak, maxFloodMB)
			}
			t.Logf("%d MB at the peak; answers %v", peak, seen)
		})
	}
}

// sendAs sends a webhook with the secret, or with a wrong one.
func (u *usher) sendAs(body string, known bool) reply {
	req, err := http.NewRequest("POST", "http://"+u.gate+"/webhooks", strings.NewReader(body))
	if err == nil {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Webhook-Token", map[bool]string{true: webhookToken, false: "wr0ng"}[known])
	}
	return do(req, err)
}

// slow is a way to hold a connection: what is sent at once, and how it goes on.
type slow struct {
	name string
	head string // with {path}, {host}, {auth} as in probes
	drip bool   // a byte each second, else nothing more
}

func slows() []slow {
	body := "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n"
	all := []slow{
		{"nothing is sent", "", false},
		{"a head, a byte each second", "POST {path} HTTP/1.1\r\nHost: {host}\r\nX-Slow: ", true},
		{"a stranger's body, a byte each second", body + "\r\n{", true},
		{"a stranger's body that stands still", body + "\r\n{", false},
	}
	if *long { // half a minute
		all = append(all, slow{"a known caller's body that stands still", body + "{auth}\r\n\r\n{", false})
	}
	return all
}

// Many slow connections on every port. Each is closed by usher in the end, and good requests to the same port are
// answered rightly meanwhile.
func TestSlowConnections(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	u := startBuilt(t, w.environ("USHER_KEY="+portKey, "USHER_WEBHOOK_TOKEN="+webhookToken, "USHER_ADMIN_TOKEN="+adminToken, "USHER_WEBHOOK_DEDUP_WINDOW=0")).ready(t)
	before := openFiles(u.Process.Pid)
	var held sync.WaitGroup
	for _, p := range portsOf(u, nil, nil) {
		for _, s := range slows() {
			for range pick(20, 300) {
				held.Go(func() { hold(t, p, s) })
			}
		}
		for range 10 {
			if got := exchange(t, p, p.fill(good())); got != p.outcome(probe{local: fine, gate: fine, admin: fine}) {
				t.Errorf("a good request to %s beside them: %s", p.name, got)
			}
		}
	}
	held.Wait()
	testkit.Eventually(t, "all descriptors given back", func() bool { return openFiles(u.Process.Pid) <= before+8 })
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

// Strangers open more connections than usher keeps, and send all of a head but its end, or all of it and no body, or
// all of a TLS handshake but its end. Memory stays within the bound, and a good webhook is taken.
func TestHeadsOfStrangers(t *testing.T) {
	const begin, record = "POST /webhooks HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n", "\x16\x03\x01\x40\x00"
	var headers strings.Builder
	for i := 0; headers.Len() < 15_000; i++ {
		fmt.Fprintf(&headers, "%x:\r\n", i)
	}
	full := strings.Repeat("x", 16<<10)
	for _, kind := range []struct {
		name, sent string
		tls        bool
		handshake  bool // sent is sent after a handshake
		most       bool // takes the most memory: the others with -long alone
	}{
		{"many headers of few bytes", begin + headers.String(), false, false, true},
		{"a whole head, and no body", begin + headers.String() + "\r\n", false, false, false},
		{"a TLS handshake", record + "\x01\x00\xff\xf0" + full[4:] + record + full + record + full, true, false, false},
		{"a long line over TLS", begin + "X: " + full, true, true, false},
	} {
		if !kind.most && !*long {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			w, strangers := newWorld(t), 3000
			settings, scheme := []string{"USHER_WEBHOOK_TOKEN=" + webhookToken}, "http://"
			if kind.tls {
				certFile, keyFile := testkit.Certificate(t, "127.0.0.1")
				settings = append(settings, "USHER_WEBHOOK_TLS_CERT_FILE="+certFile, "USHER_WEBHOOK_TLS_KEY_FILE="+keyFile)
				scheme = "https://"
			}
			u := startBuilt(t, w.environ(settings...)).ready(t)
			addr, anyName := strings.TrimPrefix(u.gate, "https://"), &tls.Config{InsecureSkipVerify: true}
			for range strangers {
				conn, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(20 * time.Second))
				if kind.handshake {
					conn = tls.Client(conn, anyName)
				}
				_, _ = io.WriteString(conn, kind.sent) // fails where usher has closed it
			}
			client := http.Client{Transport: &http.Transport{TLSClientConfig: anyName, DisableKeepAlives: true}}
			resp, err := client.Post(scheme+addr+"/webhooks/"+webhookToken, "application/json", strings.NewReader(testkit.Snapshot("good", 5)))
			if err != nil || resp.StatusCode != 200 {
				t.Errorf("a good webhook: %v, %v", resp, err)
			}
			peak := statusMB(u.Process.Pid, "VmHWM:")
			if peak > maxFloodMB {
				t.Errorf("%d MB at the peak, want %d at most", peak, maxFloodMB)
			}
			t.Logf("%d strangers: %d MB at the peak", strangers, peak)
			u.Kill()
		})
	}
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
