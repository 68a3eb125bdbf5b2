//go:build unix

package e2e

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"usher/internal/testkit"
)

// What holds on replicas that share an inbox, on one fleet.
func TestReplicas(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	for _, c := range []struct {
		name string
		test func(*testing.T, *fleet)
	}{
		{"they recognise each other's copies", copiesOnReplicas},
		{"they see and do the same", actsOnReplicas},
		{"they answer the same within a second", entitlementsOnReplicas},
		{"what the standby does not have is not answered 200", onlyWhenCommitted},
		{"what was answered 200 arrives, in order, under fire", underFire},
	} {
		t.Run(c.name, func(t *testing.T) { f.t = t; c.test(t, f) })
	}
}

func copiesOnReplicas(t *testing.T, f *fleet) {
	for i, step := range []struct {
		usher, number int
		decision      string
	}{
		{0, 5, "queued"}, {1, 10, "queued"}, {0, 5, "queued"}, // A, B, A
		{2, 5, "duplicate"}, {1, 5, "duplicate"},
		{2, 10, "queued"},
	} {
		if status, decision := f.send(step.usher, testkit.Snapshot("acme", step.number)); status != 200 || decision != step.decision {
			t.Errorf("step %d: %d %s", i, status, decision)
		}
	}
	testkit.Eventually(t, "all delivered", func() bool { return f.receiver.Count("acme") == 4 })
	if got := fmt.Sprint(f.receiver.All("acme")); got != "[5 10 5 10]" {
		t.Errorf("delivered %s", got)
	}

	// Copies that come to all three at once are one.
	const rounds, copies = 5, 30
	for round := range rounds {
		var mu sync.Mutex
		decisions := make(map[string]int)
		var sending sync.WaitGroup
		for i := range copies {
			sending.Go(func() {
				_, decision := f.send(i%3, testkit.Snapshot("copies", round+1))
				mu.Lock()
				defer mu.Unlock()
				decisions[decision]++
			})
		}
		sending.Wait()
		if got := fmt.Sprint(decisions); got != "map[duplicate:29 queued:1]" {
			t.Errorf("round %d: %s", round, got)
		}
	}
	testkit.Eventually(t, "copies delivered", func() bool { return f.receiver.Last("copies") == rounds })
	if got := f.receiver.Count("copies"); got != rounds {
		t.Errorf("%d deliveries for %d webhooks in %d copies each", got, rounds, copies)
	}
}

// Whichever replica is asked, it shows the whole inbox, and what it is told holds for all of them.
func actsOnReplicas(t *testing.T, f *fleet) {
	does := func(usher int, want string, args ...string) {
		t.Helper()
		if code, out := inboxIn(t, f.ushers[usher].Usher, args...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("usher inbox %s: %d\n%s\nwant %q", strings.Join(args, " "), code, out, want)
		}
	}
	does(0, "paused: all deliveries", "pause")
	paused := func(u *replica) bool {
		_, page := testkit.Get(t, u.URL(t, "admin")+"/")
		return strings.Contains(testkit.Wrong(page), "Paused: ")
	}
	for i, u := range f.ushers {
		testkit.Eventually(t, fmt.Sprintf("the page of usher %d says that deliveries are paused", i), func() bool { return paused(u) })
	}
	for i, tenant := range []string{"a0", "a0", "a1", "a2", "a3"} {
		if status, _ := f.send(i%3, testkit.Snapshot(tenant, i+1)); status != 200 {
			t.Fatal(status)
		}
	}
	for _, u := range f.ushers {
		wantFigures(t, u.Usher, map[string]string{"usher_inbox_pending": "5", "usher_inbox_parked": "0", "usher_inbox_oldest_seconds": "positive"})
		if status, body := testkit.Get(t, u.URL(t, "admin")+"/api/webhooks?tenant=acme"); status != 200 || strings.Count(body, `"state":"delivered"`) != 4 {
			t.Errorf("%d %s", status, body)
		}
	}
	_, list := inboxIn(t, f.ushers[1].Usher, "ls", "--tenant", "a0")
	lines := strings.Split(list, "\n") // the newest first
	if len(lines) < 3 || strings.Count(list, "paused") < 2 {
		t.Fatalf("ls:\n%s", list)
	}
	does(2, "discarded", "discard", strings.Fields(lines[1])[0])
	does(1, "crm/a1 erased: 1 webhook", "erase", "a1", "--yes")
	if n := f.receiver.Count("a0") + f.receiver.Count("a2") + f.receiver.Count("a3"); n != 0 {
		t.Errorf("%d deliveries though they are paused", n)
	}
	does(2, "resumed: all deliveries", "resume")
	testkit.Eventually(t, "delivered", func() bool {
		return f.receiver.Count("a0") == 1 && f.receiver.Count("a2") == 1 && f.receiver.Count("a3") == 1
	})
	if got := fmt.Sprint(f.receiver.All("a0"), f.receiver.All("a1")); got != "[2] []" {
		t.Errorf("delivered %s", got)
	}
	for i, u := range f.ushers {
		testkit.Eventually(t, fmt.Sprintf("no banner on usher %d any more", i), func() bool { return !paused(u) })
		wantFigures(t, u.Usher, map[string]string{"usher_inbox_pending": "0"})
	}
}

// Who answered 200 answers by it at once, and every other one within a second, also one that takes no webhooks in.
func entitlementsOnReplicas(t *testing.T, f *fleet) {
	reader := &replica{rights: testkit.FreeAddress(t), env: append(f.ushers[0].env, "USHER_WEBHOOK_LISTEN=off", "USHER_WEBHOOK_FORWARD_URL=")}
	reader.env = append(reader.env, "USHER_ENTITLEMENTS_LISTEN="+reader.rights)
	reader.start(t)
	reader.Ready(t)
	all := append([]*replica{reader}, f.ushers...)
	const tenants = 12
	for round := range pick(2, 10) {
		for i := range tenants {
			tenant, want := fmt.Sprint("e", i), fmt.Sprintf(`"limit":%d,`, round+1)
			for j, u := range all { // so that each of them holds what was true before
				if r := u.knows(t, tenant); round == 0 && !strings.Contains(r.body, "TENANT_UNKNOWN") || round > 0 && r.status != 200 {
					t.Fatalf("usher %d of %s: %s", j, tenant, r.body)
				}
			}
			if status, _ := f.send(i%3, testkit.Snapshot(tenant, round+1)); status != 200 {
				t.Fatal(status)
			}
			if r := f.ushers[i%3].knows(t, tenant); !strings.Contains(r.body, want) {
				t.Errorf("who answered 200 says %s, want %s", r.body, want)
			}
		}
		time.Sleep(time.Second) // it is what is promised
		for i := range tenants {
			for j, u := range all {
				if r := u.knows(t, fmt.Sprint("e", i)); !strings.Contains(r.body, fmt.Sprintf(`"limit":%d,`, round+1)) {
					t.Errorf("usher %d, a second later: %s %v", j, r.body, r.header)
				}
			}
		}
	}
	if code, out := inboxIn(t, f.ushers[0].Usher, "erase", "e0", "--yes"); code != 0 {
		t.Errorf("%d %s", code, out)
	}
	time.Sleep(time.Second)
	for j, u := range all {
		if r := u.knows(t, "e0"); !strings.Contains(r.body, "TENANT_UNKNOWN") {
			t.Errorf("usher %d, a second after it was erased: %s", j, r.body)
		}
	}
}

// While the standby does not confirm, nothing is answered 200, nothing is delivered, and the load balancer is
// told. What was sent then is no copy of itself.
func onlyWhenCommitted(t *testing.T, f *fleet) {
	f.standby.Pause()
	r := asked(t, "POST", "http://"+f.ushers[0].gate+"/webhooks", testkit.Snapshot("unsafe", 1), "Content-Type", "application/json")
	if r.status != 503 || r.header.Get("Retry-After") == "" || r.header.Get("Usher-Decision") != "failed" {
		t.Errorf("%d %v %s", r.status, r.header, r.body)
	}
	testkit.Eventually(t, "unready", func() bool {
		r := get(t, strings.TrimPrefix(f.ushers[0].URL(t, "admin"), "http://"), "/readyz")
		return r.status == 503
	})
	if f.receiver.Count("unsafe") != 0 {
		t.Error("it was delivered")
	}
	f.standby.Resume()
	testkit.Eventually(t, "taken in again", func() bool { status, _ := f.send(1, testkit.Snapshot("unsafe", 1)); return status == 200 })
	testkit.Eventually(t, "delivered", func() bool { return f.receiver.Count("unsafe") > 0 })
	f.ready()
	if got := f.receiver.Count("unsafe"); got != 1 {
		t.Errorf("delivered %d times", got)
	}
}

// A harm is what happens to a fleet under load, until it is mended.
type harm struct {
	name       string
	harm, mend func()
}

// Under load, whatever fails: what was answered 200 is delivered, and in order for each tenant; and
// every copy is recognised.
func underFire(t *testing.T, f *fleet) {
	l := f.load(pick(4, 8))
	a, b, c := f.ushers[0], f.ushers[1], f.ushers[2]
	nothing := func() {}
	killed := harm{"an usher is killed", func() { a.Kill(); a.start(t) }, nothing}
	stands := harm{"an usher stands still", func() { l.avoid(b, c); b.Signal(t, syscall.SIGSTOP) }, func() { b.Signal(t, syscall.SIGCONT) }}
	cutOff := harm{"an usher is cut off", func() {
		l.avoid(b, c)
		for _, w := range c.wires {
			w.Blackhole()
		}
	}, func() {
		for _, w := range c.wires {
			w.Pass()
		}
	}}
	severed := harm{"connections break", func() {
		for _, w := range c.wires {
			w.Sever()
		}
	}, nothing}
	server := harm{"the server is killed, and is back", func() { f.server.Kill(); f.server.Start() }, nothing}
	rolling := harm{"all are restarted, one after the other", func() {
		for _, u := range f.ushers {
			u.Signal(t, syscall.SIGTERM)
			if <-u.Ended; u.Code != 0 {
				t.Errorf("exit code %d", u.Code)
			}
			u.start(t)
			u.Ready(t)
		}
	}, nothing}
	failover := harm{"the standby takes over", func() {
		f.server.Kill()
		f.standby.Promote(t)
	}, nothing}
	gone := harm{"no server is there for a while", func() {
		// One that nobody sends for any more: what usher is in doubt of it does not hold.
		testkit.Eventually(t, "taken in", func() bool { status, _ := f.send(0, testkit.Snapshot("quiet", 1)); return status == 200 })
		a.may(t, "quiet") // holds it from now on
		f.standby.Kill()
		l.away()
		f.standby.Start()
	}, nothing}

	// What a lease has to run out for happens at once, unless there is time.
	rounds := [][]harm{{killed, stands, cutOff}, {severed, failover}}
	if *long {
		rounds = nil
		for range 2 {
			rounds = append(rounds, []harm{killed}, []harm{stands}, []harm{cutOff}, []harm{severed}, []harm{rolling}, []harm{server}, []harm{killed, stands, cutOff})
		}
		rounds = append(rounds, []harm{failover}, []harm{gone}, []harm{killed, stands, cutOff}, []harm{rolling})
	}
	for _, round := range rounds {
		l.progress()
		l.hurry()
		var names []string
		for _, h := range round {
			names = append(names, h.name)
			h.harm()
		}
		began := time.Now()
		l.progress()
		t.Logf("%s: deliveries go on within %v", strings.Join(names, ", "), time.Since(began).Round(time.Millisecond))
		for _, h := range round {
			h.mend()
		}
		l.avoid()
		f.ready()
	}
	l.progress()
	l.judge()
}

// away holds what is true while no server is there: nothing is answered 200, and the load balancer is told;
// what a tenant may use is answered by what is held, and nobody is denied by what is not.
func (l *load) away() {
	t, u := l.f.t, l.f.ushers[0]
	testkit.Eventually(t, "stale", func() bool {
		r := u.may(t, "quiet")
		return r.status == 200 && r.header.Get("Usher-Stale") != ""
	})
	if r := get(t, u.rights, "/v1/check?tenant=nobody&feature=users"); r.status != 503 || !strings.Contains(r.body, "NOT_READY") || r.header.Get("Retry-After") == "" {
		t.Errorf("nobody knows, and it says %d %s", r.status, r.body)
	}
	if status, _ := l.f.send(0, testkit.Snapshot("away", 1)); status != 503 {
		t.Errorf("%d, and no server is there", status)
	}
	for _, u := range l.f.ushers {
		testkit.Eventually(t, "unready", func() bool {
			status, _ := testkit.Get(t, u.URL(t, "admin")+"/readyz")
			return status == 503
		})
		if status, _ := testkit.Get(t, u.URL(t, "admin")+"/readyz/entitlements"); status != 200 {
			t.Errorf("entitlements are %d: what is held is answered", status)
		}
	}
}
