//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

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
// defaults: docs/security.md states it.
const maxFloodMB = 1024

// TestWebhookFlood sends each kind from as many senders at once as the gate lets in. A
// good webhook among them is taken, and memory stays within the bound.
func TestWebhookFlood(t *testing.T) {
	if !*long {
		t.Parallel()
	}
	w := newWorld(t)
	senders := pick(2, 256)
	flooded := func(t *testing.T) *usher {
		return startBuilt(t, w.environ("USHER_WEBHOOK_TOKEN="+webhookToken, "USHER_WEBHOOK_DEDUP_WINDOW=0", "USHER_LOG_LEVEL=info")).ready(t)
	}
	one := flooded(t)
	for _, f := range floods() {
		t.Run(f.name, func(t *testing.T) {
			u := one
			if *long { // each with a peak of its own
				u = flooded(t)
			}
			var all sync.WaitGroup
			var mu sync.Mutex
			seen := map[int]int{}
			for range senders {
				all.Go(func() {
					for range pick(1, 2) {
						r := u.sendAs(f.body, f.known)
						mu.Lock()
						seen[r.status]++
						mu.Unlock()
					}
				})
			}
			all.Go(func() {
				testkit.Eventually(t, "taken beside the flood", func() bool { return u.sendAs(testkit.Snapshot("good", 5), true).status == 200 })
			})
			all.Wait()
			for status := range seen {
				// 503: too many at once. 0: refused before all of it was sent.
				if status != f.status && status != 503 && status != 0 {
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
			if u != one {
				u.End()
			}
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
