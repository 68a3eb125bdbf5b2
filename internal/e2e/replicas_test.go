//go:build unix

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"usher/internal/testkit"
)

// fleet is three ushers with an inbox on a cluster of three servers.
type fleet struct {
	*cluster
	service  *testkit.Service
	receiver *testkit.Ledger
	ushers   []*replica
}

// replica is one usher; after a kill another one in its place.
type replica struct {
	*testkit.Usher
	gate  string // its address, the same in each life
	wires *wires
	env   []string
}

func newFleet(t *testing.T) *fleet { return newFleetOn(t, 3) }

// newFleetOn has another number of servers.
func newFleetOn(t *testing.T, nodes int) *fleet {
	f := &fleet{cluster: newCluster(t, nodes), service: testkit.NewService(t)}
	var receiverURL string
	f.receiver, receiverURL = testkit.NewLedger(t)
	f.receiver.RefuseOlder()
	for range 3 {
		u := &replica{gate: testkit.FreeAddress(t), wires: f.cluster.wires()}
		u.env = f.service.Environ("USHER_WEBHOOK_FORWARD_URL="+receiverURL, "USHER_WEBHOOK_LISTEN="+u.gate, "USHER_WEBHOOK_INBOX="+u.wires.url())
		f.ushers = append(f.ushers, u)
		u.start(t)
	}
	for _, u := range f.ushers {
		u.Ready(t)
	}
	return f
}

func (u *replica) start(t *testing.T) { u.Usher = startProcess(t, u.env) }

// anyone returns one of the ushers: each delivers its share.
func (f *fleet) anyone() *replica { return f.ushers[rand.IntN(len(f.ushers))] }

func TestReplicasAreOne(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for i, step := range []struct {
		usher, number int
		decision      string
	}{
		{0, 5, "queued"}, {1, 10, "queued"}, {0, 5, "queued"}, // A, B, A
		{2, 5, "duplicate"}, {1, 5, "duplicate"},
		{2, 10, "queued"},
	} {
		status, decision, answer := testkit.Post(t, "http://"+f.ushers[step.usher].gate+"/webhooks", testkit.Snapshot("acme", step.number))
		if status != 200 || decision != step.decision {
			t.Errorf("step %d: %d %s %s", i, status, decision, answer)
		}
	}
	testkit.Eventually(t, "all delivered", func() bool { return f.receiver.Count("acme") == 4 })
	if got := fmt.Sprint(f.receiver.All("acme")); got != "[5 10 5 10]" {
		t.Errorf("delivered %s", got)
	}

	// Copies that come to all three at once are one.
	for round := range 10 {
		var decisions [30]string
		var sending sync.WaitGroup
		for i := range decisions {
			sending.Go(func() {
				_, decisions[i], _ = testkit.Post(t, "http://"+f.ushers[i%3].gate+"/webhooks", testkit.Snapshot("copies", round+1))
			})
		}
		sending.Wait()
		queued := 0
		for _, d := range decisions {
			switch d {
			case "queued":
				queued++
			case "duplicate":
			default:
				t.Errorf("round %d: a copy was %s", round, d)
			}
		}
		if queued != 1 {
			t.Errorf("round %d: %d of 30 copies were queued", round, queued)
		}
	}
	testkit.Eventually(t, "copies delivered", func() bool { return f.receiver.Last("copies") == 10 })
	if got := f.receiver.Count("copies"); got != 10 {
		t.Errorf("%d deliveries for 10 webhooks in 30 copies each", got)
	}

	// What any of them is asked, it answers for all.
	for i, u := range f.ushers {
		status, body := testkit.Get(t, u.URL(t, "admin")+"/api/webhooks?tenant=acme")
		if status != 200 || strings.Count(body, `"state":"delivered"`) != 4 {
			t.Errorf("usher %d: %d %s", i, status, body)
		}
	}
}

// Under load, whatever fails: what was answered 200 is delivered, and in order for
// each tenant.
func TestClusterUnderFire(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	l := f.load(8)
	step := func(what string, harm, mend func()) {
		t.Helper()
		l.progress()
		harm()
		began := time.Now()
		l.progress()
		t.Logf("%s: deliveries go on within %v", what, time.Since(began).Round(time.Millisecond))
		mend()
		for _, u := range f.ushers {
			u.Ready(t)
		}
	}
	var u *replica
	step("an usher is killed", func() {
		u = f.anyone()
		u.Kill()
	}, func() { u.start(t) })
	leader := f.leader()
	other := (leader + 1) % 3
	step("a NATS node is killed", func() { f.kill(other) }, func() { f.cluster.start(other) })
	leader = f.leader()
	step("the stream's leader is killed", func() { f.kill(leader) }, func() { f.cluster.start(leader) })
	step("an usher is cut off", func() {
		u = f.anyone()
		u.wires.set(true)
	}, func() { u.wires.set(false) })
	step("an usher hangs", func() {
		u = f.anyone()
		// What is sent to it now would lie in its sockets until it goes on, long after its
		// sender has sent it elsewhere.
		l.avoid(u)
		if n := f.receiver.Figures().Late; n > 0 {
			t.Errorf("%d came late, and no usher was stopped", n)
		}
		u.Signal(t, syscall.SIGSTOP)
	}, func() {
		u.Signal(t, syscall.SIGCONT)
		l.progress() // what it was at is not sent now
		l.avoid(nil)
	})
	step("an usher is told to end", func() {
		u = f.anyone()
		u.Signal(t, syscall.SIGTERM)
		<-u.Ended
	}, func() { u.start(t) })
	l.progress()
	l.end()
	l.judge()
}

// Two of three nodes down: nothing is answered 200, and the load balancer is told. When
// they are back it goes on.
func TestNoMajority(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	u := f.ushers[0]
	send := func(n int) (int, string) {
		status, _, answer := testkit.Post(t, "http://"+u.gate+"/webhooks", testkit.Snapshot("acme", n))
		return status, answer
	}
	if status, answer := send(1); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	f.kill(0)
	f.kill(1)
	resp, err := http.Post("http://"+u.gate+"/webhooks", "application/json", strings.NewReader(testkit.Snapshot("acme", 2)))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	for _, u := range f.ushers {
		testkit.Eventually(t, "unready", func() bool {
			status, _ := testkit.Get(t, u.URL(t, "admin")+"/readyz")
			return status == 503
		})
	}
	if status, answer := send(2); status != 503 {
		t.Errorf("%d %s", status, answer)
	}
	// The one that is left goes on telling what it knows of the stream, without a leader.
	// That is no reason to be ready again.
	testkit.Eventually(t, "told of a stream without a leader", func() bool { return f.leaderless(2) })
	for range 30 {
		for i, u := range f.ushers {
			if status, body := testkit.Get(t, u.URL(t, "admin")+"/readyz"); status != 503 {
				t.Fatalf("usher %d without a majority: %d %s", i, status, body)
			}
		}
		time.Sleep(100 * time.Millisecond) // real processes: it asks the servers each second
	}
	f.cluster.start(0)
	f.cluster.start(1)
	testkit.Eventually(t, "taken in again", func() bool {
		status, _ := send(3)
		return status == 200
	})
	for _, u := range f.ushers {
		u.Ready(t)
	}
	testkit.Eventually(t, "delivered", func() bool { return f.receiver.Last("acme") == 3 })
}

// load is senders, one for each tenant, that count up and send each number to a usher
// at random until it is answered 200. They stay within sight of what is delivered: on a
// slow machine there would soon be more than is delivered in a minute.
type load struct {
	f       *fleet
	acked   []atomic.Int64
	avoided atomic.Pointer[replica]
	under   sync.RWMutex // read-held while something is being sent
	stop    context.CancelFunc
	sending sync.WaitGroup
}

func (f *fleet) load(tenants int) *load {
	ctx, stop := context.WithCancel(f.t.Context())
	l := &load{f: f, acked: make([]atomic.Int64, tenants), stop: stop}
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: tenants}}
	for i := range tenants {
		l.sending.Go(func() {
			for n := 1; ctx.Err() == nil; time.Sleep(15 * time.Millisecond) {
				if n > f.receiver.Highest(fmt.Sprint("t", i))+50 {
					continue
				}
				u := f.ushers[rand.IntN(len(f.ushers))]
				l.under.RLock()
				if u == l.avoided.Load() {
					l.under.RUnlock()
					continue
				}
				resp, err := client.Post("http://"+u.gate+"/webhooks", "application/json", bytes.NewReader([]byte(testkit.Snapshot(fmt.Sprint("t", i), n))))
				l.under.RUnlock()
				if err != nil {
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode == 200 {
					l.acked[i].Store(int64(n))
					n++
				}
			}
		})
	}
	return l
}

// avoid has nothing more sent to u, and returns when nothing is on its way.
func (l *load) avoid(u *replica) {
	l.under.Lock()
	defer l.under.Unlock()
	l.avoided.Store(u)
}

// progress waits until what has been answered by now is delivered, and some more.
func (l *load) progress() {
	l.f.t.Helper()
	wants := make([]int, len(l.acked))
	for i := range wants {
		wants[i] = int(l.acked[i].Load()) + 10
	}
	for i, want := range wants {
		testkit.Eventually(l.f.t, "progress", func() bool { return l.f.receiver.Highest(fmt.Sprint("t", i)) >= want })
	}
}

func (l *load) end() {
	l.stop()
	l.sending.Wait()
}

func (l *load) judge() {
	t := l.f.t
	acked, delivered, repeated := 0, 0, 0
	for i := range l.acked {
		tenant, last := fmt.Sprint("t", i), int(l.acked[i].Load())
		acked += last
		testkit.Eventually(t, "all delivered", func() bool { n := l.f.receiver.Last(tenant); return n == last || n == last+1 })
		most := 0
		for _, n := range l.f.receiver.All(tenant) {
			delivered++
			switch {
			case n == most+1:
				most = n
			case n == most:
				repeated++
			default:
				t.Errorf("tenant %s: %d came after %d", tenant, n, most)
			}
		}
	}
	late := l.f.receiver.Figures().Late
	if late > len(l.acked) { // one of each lane, by the usher that was stopped
		t.Errorf("%d came late", late)
	}
	t.Logf("%d webhooks answered 200, %d deliveries, %d of them repeated, %d more refused as late, longest gap between deliveries %v",
		acked, delivered, repeated, late, l.f.receiver.Figures().Gap.Round(time.Millisecond))
}

// Every usher on the cluster answers what a tenant may use, also one that takes no webhooks in: by
// the webhook that was answered 200, whoever took it, and after everything was killed.
func TestEntitlementsOnReplicas(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	_, receiverURL := testkit.NewLedger(t)
	wires := c.wires()
	common := []string{
		"USHER_WEBHOOK_INBOX=" + wires.url(), "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
	}
	gate := startProcess(t, append(common, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_FORWARD_URL="+receiverURL))
	reader := startProcess(t, append(common, "USHER_WEBHOOK_LISTEN=off"))
	limit := func(p *testkit.Usher) string {
		_, body := testkit.Get(t, p.URL(t, "entitlements")+"/v1/entitlements/acme/users")
		return body
	}
	gate.Ready(t)
	reader.Ready(t)
	if body := limit(reader); !strings.Contains(body, "TENANT_UNKNOWN") {
		t.Errorf("a tenant that nobody knows: %s", body)
	}
	for _, users := range []int{5, 7, 5} {
		if status, _, answer := testkit.Post(t, gate.URL(t, "webhooks")+"/webhooks", testkit.Snapshot("acme", users)); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		want := fmt.Sprintf(`"limit":%d`, users)
		if body := limit(gate); !strings.Contains(body, want) {
			t.Errorf("who answered 200 says %s, want %s", body, want)
		}
		testkit.Eventually(t, "the other one follows", func() bool { return strings.Contains(limit(reader), want) })
	}
	for _, p := range []*testkit.Usher{gate, reader} {
		p.Kill()
	}
	again := startProcess(t, append(common, "USHER_WEBHOOK_LISTEN=off"))
	again.Ready(t)
	if body := limit(again); !strings.Contains(body, `"limit":5`) {
		t.Errorf("after everything was killed: %s", body)
	}

	// Without servers it answers what it holds, says how old that is, and denies nobody by what it
	// does not know.
	wires.set(true)
	testkit.Eventually(t, "stale", func() bool {
		resp, err := http.Get(again.URL(t, "entitlements") + "/v1/entitlements/acme/users")
		resp, body := testkit.Whole(t, resp, err)
		return resp.StatusCode == 200 && resp.Header.Get("Usher-Stale") != "" && strings.Contains(body, `"limit":5`)
	})
	if status, body := testkit.Get(t, again.URL(t, "entitlements")+"/v1/check?tenant=nobody&feature=users"); status != 503 {
		t.Errorf("nobody knows, and it says %d %s", status, body)
	}
}
