package shared

import (
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/natstest"
)

var racingCluster = flag.Uint64("racing.cluster", 0, "how many worlds TestRacingCluster tries; each takes a minute and a half")

// TestRacingCluster is TestRacing with three servers, whose leaders change and of which some are behind. It takes real time.
func TestRacingCluster(t *testing.T) {
	if *racingCluster == 0 {
		t.Skip("give -racing.cluster")
	}
	for seed := *racingFrom; seed < *racingFrom+*racingCluster; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			l := newLagging(t)
			until(t, "one leads the cluster", func() bool {
				for _, s := range l.servers {
					if s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == 3 {
						return true
					}
				}
				return false
			})
			c := &cluster{t: t, server: l.servers[0], change: func(*Config, *courier.Config) {}, parts: 2}
			x := newRace(t, c, seed)
			x.calm = 40 * time.Second
			x.server = func() *natstest.Server { return l.servers[x.n(3)] }
			for n := range 3 {
				x.replicas = append(x.replicas, x.start(n))
			}
			for _, r := range x.replicas {
				until(t, "it takes webhooks in", func() bool { return r.Err() == nil })
			}
			tenants := []string{"t1", "t2", "t3"}
			end := time.Now().Add(40 * time.Second)
			var going sync.WaitGroup
			for _, tenant := range tenants {
				going.Go(func() { x.sender(tenant, end) })
				going.Go(func() { x.actor(tenants, end, seed%2 == 0) })
			}
			going.Go(func() { x.troubleServers(l, end) })
			going.Wait()
			for _, r := range x.replicas {
				until(t, "it can be used", func() bool { return r.Err() == nil })
			}
			x.judge(tenants)
			for _, r := range x.replicas {
				r.stop()
			}
			if len(x.faults) > 0 {
				if testing.Verbose() {
					t.Log("\n" + strings.Join(x.log, "\n"))
				}
				t.Error(strings.Join(x.faults, "\n"))
			}
		})
	}
}

// troubleServers has other servers lead, and the wires between them slow.
func (x *race) troubleServers(l *lagging, end time.Time) {
	pairs := [][2]int{{0, 1}, {0, 2}, {1, 2}}
	for time.Now().Before(end) {
		time.Sleep(time.Duration(x.n(4000)) * time.Millisecond)
		r, what, pair := x.any(), x.n(5), pairs[x.n(3)]
		d := []time.Duration{20 * time.Millisecond, 300 * time.Millisecond, 1500 * time.Millisecond}[x.n(3)]
		x.mu.Lock()
		x.note("trouble %d with the servers, %v %v", what, pair, d)
		x.tolerate = time.Now().Add(12 * time.Second)
		x.mu.Unlock()
		switch what {
		case 0, 1:
			name := []string{"USHER", "USHER_HISTORY"}[what]
			_, _ = r.servers.Conn.Request("$JS.API.STREAM.LEADER.STEPDOWN."+name, nil, 2*time.Second)
		case 2, 3:
			l.delays[pair].Store(int64(d))
			time.Sleep(time.Duration(x.n(6000)) * time.Millisecond)
			l.delays[pair].Store(0)
		case 4:
			r.wire.Sever()
			time.Sleep(d)
			r.wire.Replace(l.servers[x.n(3)])
		}
	}
}
