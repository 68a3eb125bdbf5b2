//go:build unix

package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// fleet is some ushers, each a process, that share an inbox on a PostgreSQL server with a synchronous standby.
type fleet struct {
	t               *testing.T
	server, standby *pgtest.Server
	receiver        *testkit.Ledger
	ushers          []*replica
}

// replica is one usher; after a kill another one in its place.
type replica struct {
	*testkit.Usher
	gate, rights string // its addresses, the same in each life
	wires        []*pgtest.Wire
	env          []string
}

func newFleet(t *testing.T, ushers int) *fleet {
	if testing.Short() {
		t.Skip("short: it is about processes, in which nothing looks for races")
	}
	f := &fleet{t: t, server: pgtest.New(t)}
	f.standby = f.server.Standby(t)
	var receiverURL string
	f.receiver, receiverURL = testkit.NewLedger(t)
	f.receiver.RefuseOlder()
	for range ushers {
		u := &replica{gate: testkit.FreeAddress(t), rights: testkit.FreeAddress(t)}
		u.wires = []*pgtest.Wire{pgtest.Cut(t, f.server.Addr()), pgtest.Cut(t, f.standby.Addr())}
		u.env = gateAlone(receiverURL, "USHER_WEBHOOK_LISTEN="+u.gate, "USHER_ENTITLEMENTS_LISTEN="+u.rights, "USHER_WEBHOOK_INBOX="+u.database(f.server))
		f.ushers = append(f.ushers, u)
		u.start(t)
	}
	f.ready()
	return f
}

// database is the inbox's address at the near end of the wires: that of whichever server may be written.
func (u *replica) database(server *pgtest.Server) string {
	address, err := url.Parse(server.DSN())
	if err != nil {
		panic(err)
	}
	address.Host = u.wires[0].Addr() + "," + u.wires[1].Addr()
	query := address.Query()
	query.Set("target_session_attrs", "read-write")
	address.RawQuery = query.Encode()
	return address.String()
}

func (u *replica) start(t *testing.T) { u.Usher = startProcess(t, u.env) }

func (f *fleet) ready() {
	f.t.Helper()
	for _, u := range f.ushers {
		u.Ready(f.t)
	}
}

func (f *fleet) send(usher int, body string) (status int, decision string) {
	f.t.Helper()
	status, decision, answer := testkit.Post(f.t, "http://"+f.ushers[usher].gate+"/webhooks", body)
	if status != 200 {
		f.t.Logf("usher %d: %d %s", usher, status, answer)
	}
	return status, decision
}

// may is what a replica answers about a tenant's users.
func (u *replica) may(t *testing.T, tenant string) reply {
	t.Helper()
	return get(t, u.rights, "/v1/entitlements/"+tenant+"/users")
}

// knows is what a replica answers that does not say that it cannot ask the database in time.
func (u *replica) knows(t *testing.T, tenant string) (r reply) {
	t.Helper()
	testkit.Eventually(t, "the database answers", func() bool {
		r = u.may(t, tenant)
		return r.status != http.StatusServiceUnavailable && r.header.Get("Usher-Stale") == ""
	})
	return r
}

// load is senders, one for each tenant, that count up and send each number to a usher at random until it is
// answered 200, and then, now and then, a copy to another one. They are patient: an answer always comes,
// unless usher is killed. They stay within sight of what is delivered. While nothing but a lease's end is
// waited for they take their time.
type load struct {
	f       *fleet
	slow    atomic.Bool
	acked   []atomic.Int64
	copies  atomic.Int64
	avoided atomic.Pointer[[]*replica]
	stop    context.CancelFunc
	sending sync.WaitGroup
}

func (f *fleet) load(tenants int) *load {
	ctx, stop := context.WithCancel(f.t.Context())
	l := &load{f: f, acked: make([]atomic.Int64, tenants), stop: stop}
	l.avoid()
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: tenants}}
	// post returns status 0 where no answer came: it was killed.
	post := func(body string) (status int, decision string) {
		u := f.ushers[rand.IntN(len(f.ushers))]
		if slices.Contains(*l.avoided.Load(), u) {
			return 0, ""
		}
		resp, err := client.Post("http://"+u.gate+"/webhooks", "application/json", strings.NewReader(body))
		if err != nil {
			return 0, ""
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("Usher-Decision")
	}
	for i := range tenants {
		tenant := fmt.Sprint("t", i)
		l.sending.Go(func() {
			for n := 1; ctx.Err() == nil; l.pause() {
				if n > f.receiver.Highest(tenant)+50 {
					continue
				}
				body := testkit.Snapshot(tenant, n)
				if status, _ := post(body); status != 200 {
					continue
				}
				l.acked[i].Store(int64(n))
				if n++; n%4 == 0 {
					switch status, decision := post(body); {
					case status == 200 && decision != "duplicate":
						f.t.Errorf("a copy of %d of tenant %s was %s", n-1, tenant, decision)
					case status == 200:
						l.copies.Add(1)
					}
				}
			}
		})
	}
	return l
}

// pause is a sender's own pace.
func (l *load) pause() {
	if l.slow.Load() {
		time.Sleep(150 * time.Millisecond)
	} else {
		time.Sleep(15 * time.Millisecond)
	}
}

// hurry waits until all senders are at it.
func (l *load) hurry() {
	l.f.t.Helper()
	l.slow.Store(false)
	some := l.answered() + int64(len(l.acked))
	testkit.Eventually(l.f.t, "taken in", func() bool { return l.answered() >= some })
}

// answered is how many were answered 200.
func (l *load) answered() (n int64) {
	for i := range l.acked {
		n += l.acked[i].Load()
	}
	return n
}

// avoid says to whom nothing more is sent.
func (l *load) avoid(ushers ...*replica) { l.avoided.Store(&ushers) }

// progress waits until what has been answered by now is delivered, and some more.
func (l *load) progress() {
	l.f.t.Helper()
	l.slow.Store(false)
	some := l.answered() + 40
	testkit.Eventually(l.f.t, "taken in", func() bool { return l.answered() >= some })
	l.slow.Store(true)
	for i := range l.acked {
		want := int(l.acked[i].Load())
		testkit.Eventually(l.f.t, "progress", func() bool { return l.f.receiver.Highest(fmt.Sprint("t", i)) >= want })
	}
}

// judge ends the load, and holds that what was answered 200 is delivered, in order for each tenant; and that all
// replicas say so.
func (l *load) judge() {
	t := l.f.t
	l.stop()
	l.sending.Wait()
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
		for j, u := range l.f.ushers { // who was asked before may answer by that for a second
			testkit.Eventually(t, fmt.Sprintf("usher %d answers by the last webhook of %s", j, tenant), func() bool {
				return strings.Contains(u.may(t, tenant).body, fmt.Sprintf(`"limit":%d,`, most))
			})
		}
	}
	late := l.f.receiver.Figures().Late
	if late > len(l.acked) { // one of each tenant, by the usher that stood still
		t.Errorf("%d came late", late)
	}
	t.Logf("%d webhooks answered 200, %d copies of them recognised, %d deliveries, %d of them repeated, %d more refused as late, at most %v between deliveries",
		acked, l.copies.Load(), delivered, repeated, late, l.f.receiver.Figures().Gap.Round(time.Millisecond))
}
