package shared

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// race is a world in which everything happens at once: sends, actions, troubles.
type race struct {
	t   *testing.T
	c   *cluster
	rnd *rand.Rand

	mu       sync.Mutex
	replicas []*replica
	tries    []*raceTry
	sent     []*raceSent
	byID     map[string]*raceSent
	underway map[string]int
	healthy  bool
	faults   []string
	log      []string
	tolerate time.Time // pauses may be overlooked up to then: somebody is cut off
	paused   map[string]time.Time
	pausing  map[string]struct{}
	last     map[string]int // accepted
	known    []map[string]uint64
	back     bool // contents come again
	latest   bool
	events   bool
	forces   bool // people have old ones sent again, too
	troubled bool
	keeps    bool                    // now and then no receiver takes a tenant's webhooks, and they are kept
	calm     time.Duration           // at the end
	server   func() *natstest.Server // to which a replica connects
}

type raceTry struct {
	s            *raceSent
	began, ended time.Time
	ok           bool
}

type raceSent struct {
	w           *webhookgate.Webhook
	tenant      string
	n           int
	at          time.Time
	acked       bool
	original    string
	answered    time.Time
	discarded   time.Time // successfully, and not sent again since
	erased      time.Time // it was acknowledged before the erasure began
	redelivered bool
	kept        bool

	again   []raceAct // redeliveries
	discard []raceAct
}

// raceAct is what somebody did to a webhook.
type raceAct struct {
	began, ended time.Time
	err          error
}

// done says whether one of acts was done, or may have been.
func done(acts []raceAct) bool {
	for _, a := range acts {
		overwrite := new(record.OverwriteError)
		if !errors.Is(a.err, record.ErrBusy) && !errors.Is(a.err, record.ErrNobody) && !errors.Is(a.err, record.ErrNotFound) && !errors.Is(a.err, record.ErrFinished) && !errors.As(a.err, &overwrite) {
			return true
		}
	}
	return false
}

func (x *race) note(format string, args ...any) {
	x.log = append(x.log, time.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

func (x *race) fault(format string, args ...any) {
	x.faults = append(x.faults, fmt.Sprintf(format, args...))
	x.note("FAULT "+format, args...)
}

func (x *race) try(ctx context.Context, w *webhookgate.Webhook) webhookgate.Attempt {
	x.mu.Lock()
	s := x.byID[w.ID]
	try := &raceTry{s: s, began: time.Now()}
	x.tries = append(x.tries, try)
	if x.underway[s.tenant]++; x.underway[s.tenant] > 1 {
		x.fault("%s %d overlaps", s.tenant, s.n)
	}
	if !s.discarded.IsZero() && try.began.After(s.discarded) {
		x.fault("%s %d is tried after it was discarded", s.tenant, s.n)
	}
	if !s.erased.IsZero() && try.began.After(s.erased) {
		x.fault("%s %d is tried after it was erased", s.tenant, s.n)
	}
	if since, ok := x.paused[s.tenant]; ok && try.began.After(since) && try.began.After(x.tolerate) {
		x.fault("%s %d is tried while paused", s.tenant, s.n)
	}
	status, took := 200, time.Duration(x.rnd.IntN(40))*time.Millisecond
	if !x.healthy {
		switch x.rnd.IntN(10) {
		case 0:
			status = 422
		case 1:
			status = 500
		case 2:
			status = 0
		case 3:
			took = time.Duration(x.rnd.IntN(2000)) * time.Millisecond
		}
	}
	x.note("try %s %d (%d in %v)", s.tenant, s.n, status, took)
	x.mu.Unlock()
	cut := false
	select {
	case <-time.After(took):
	case <-ctx.Done():
		cut = true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.underway[s.tenant]--
	try.ended = time.Now()
	switch {
	case cut:
		return webhookgate.Attempt{Err: ctx.Err()}
	case status == 0:
		return webhookgate.Attempt{Err: syscall.ECONNREFUSED}
	case status == 200:
		try.ok = true
		if s.n < x.last[s.tenant] && !(x.forces && s.redelivered) {
			x.fault("%s %d is accepted after %d", s.tenant, s.n, x.last[s.tenant])
		}
		x.last[s.tenant] = s.n
	}
	return webhookgate.Attempt{Status: status}
}

func (x *race) start(n int) *replica {
	delay := []time.Duration{0, 3 * time.Millisecond, 50 * time.Millisecond}[x.n(3)]
	mine := make(map[string]uint64)
	x.mu.Lock()
	x.known[n] = mine
	x.mu.Unlock()
	x.c.change = func(cfg *Config, cc *courier.Config) {
		cc.Receivers[0].Try = x.try
		cc.Attempts = 6
		cc.KeepLatest = x.latest
		cfg.DedupSize = 1 + x.n(3)
		cfg.OnSnapshot = func(l webhookgate.Lane, id uint64, _ *webhookgate.Webhook) {
			x.mu.Lock()
			defer x.mu.Unlock()
			mine[l.Tenant] = max(mine[l.Tenant], id)
		}
		cfg.OnErase = func(l webhookgate.Lane, upTo uint64) {
			x.mu.Lock()
			defer x.mu.Unlock()
			if mine[l.Tenant] <= upTo {
				delete(mine, l.Tenant)
			}
		}
	}
	return x.c.startAt(&natstest.Wire{Server: x.server(), Delay: delay})
}

func (x *race) any() *replica {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.replicas[x.rnd.IntN(len(x.replicas))]
}

func (x *race) n(most int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.rnd.IntN(most)
}

// sender sends 0, 1, 2, … of a tenant, each until it is answered with 200, or given up.
func (x *race) sender(tenant string, until time.Time) {
	for n := 1; time.Now().Before(until); {
		r := x.any()
		body := n
		if x.back {
			body = n % 2
		}
		s := &raceSent{w: inboxtest.Webhook(tenant, fmt.Sprintf("%s-%d-body", tenant, body)), tenant: tenant, n: n, at: time.Now()}
		if x.events && x.n(4) == 0 {
			s.w.Type, s.w.Snapshot = "Other", false
		}
		x.mu.Lock()
		x.sent = append(x.sent, s)
		x.byID[s.w.ID] = s
		x.mu.Unlock()
		s.kept = x.keeps && tenant == "t2" && x.n(3) == 0
		original, err := r.Append(s.w, s.kept)
		x.mu.Lock()
		s.answered = time.Now()
		s.acked, s.original = err == nil, original
		x.note("sent %s %d: %q %v", tenant, n, original, err)
		if o := x.byID[original]; original != "" && (o == nil || string(o.w.Body) != string(s.w.Body) || x.between(o, s)) {
			x.fault("%s %d is a copy of %s, %v", tenant, n, original, o)
		}
		x.mu.Unlock()
		if err == nil || x.n(3) == 0 {
			n++
		}
		if err == nil && x.n(6) == 0 {
			n-- // once more
		}
		time.Sleep(time.Duration(x.n(2500)) * time.Millisecond)
	}
}

// between says whether something else came in between.
func (x *race) between(o, s *raceSent) bool {
	for _, m := range x.sent {
		if m.tenant == s.tenant && m.acked && m.n > o.n && m.n < s.n && string(m.w.Body) != string(s.w.Body) {
			return true
		}
	}
	return false
}

func (x *race) trouble(until time.Time) {
	for time.Now().Before(until) {
		time.Sleep(time.Duration(x.n(6000)) * time.Millisecond)
		d := []time.Duration{10 * time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second, 7 * time.Second}[x.n(5)]
		n := x.n(len(x.replicas))
		what := x.n(9)
		x.mu.Lock()
		r := x.replicas[n]
		x.tolerate = time.Now().Add(d + 6*time.Second)
		x.note("trouble %d with %d for %v", what, n, d)
		x.mu.Unlock()
		switch what {
		case 0, 1:
			r.wire.Sever()
			time.Sleep(d)
			r.wire.Mend()
		case 2, 3:
			r.wire.Stuck.Store(true)
			time.Sleep(d)
			r.wire.Stuck.Store(false)
		case 6:
			r.wire.Sever()
			r.servers.Conn.Close() // it dies
			go r.stop()
			fresh := x.start(n)
			x.mu.Lock()
			x.replicas[n] = fresh
			x.mu.Unlock()
		case 7:
			for _, r := range x.replicas {
				r.wire.Stuck.Store(true)
			}
			time.Sleep(d)
			for _, r := range x.replicas {
				r.wire.Stuck.Store(false)
			}
		case 8:
			for _, r := range x.replicas {
				r.wire.Sever()
			}
			x.c.server = x.c.server.Restart()
			time.Sleep(d)
			for _, r := range x.replicas {
				r.wire.Replace(x.c.server)
			}
		case 4:
			go r.stop()
			fresh := x.start(n)
			x.mu.Lock()
			x.replicas[n] = fresh
			x.mu.Unlock()
		default:
			x.vanish(r)
		}
	}
}

// vanish deletes all consumers.
func (x *race) vanish(r *replica) {
	stream, _, err := r.streams()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for name := range stream.ConsumerNames(ctx).Name() {
		if x.n(2) == 0 {
			_ = stream.DeleteConsumer(ctx, name)
		}
	}
}

func (x *race) actor(tenants []string, until time.Time, erases bool) {
	for time.Now().Before(until) {
		time.Sleep(time.Duration(x.n(1500)) * time.Millisecond)
		r, tenant := x.any(), tenants[x.n(len(tenants))]
		switch what := x.n(10); what {
		case 0, 1, 2, 3, 4, 5:
			entries, err := r.List(record.Filter{Tenant: tenant})
			if err != nil || len(entries) == 0 {
				continue
			}
			e := entries[min(x.n(len(entries)), x.n(4))]
			x.mu.Lock()
			s := x.byID[e.Webhook]
			x.mu.Unlock()
			if what < 3 {
				x.mu.Lock()
				before := s.discarded
				s.discarded, s.redelivered = time.Time{}, true
				x.mu.Unlock()
				began, force := time.Now(), x.forces && x.n(2) == 0
				err := r.Redeliver(e.ID, force)
				x.mu.Lock()
				s.again = append(s.again, raceAct{began, time.Now(), err})
				x.note("redelivered %s %d (%d), force %v: %v", tenant, s.n, e.ID, force, err)
				overwrite := new(record.OverwriteError)
				if errors.As(err, &overwrite) || errors.Is(err, record.ErrNotFound) {
					s.discarded = before
				}
				x.mu.Unlock()
				continue
			}
			began := time.Now()
			err = r.Discard(e.ID)
			x.mu.Lock()
			s.discard = append(s.discard, raceAct{began, time.Now(), err})
			x.note("discarded %s %d (%d): %v", tenant, s.n, e.ID, err)
			if err == nil && !s.redelivered { // a redelivery at the same time may come after it
				s.discarded = time.Now()
			}
			x.mu.Unlock()
		case 6:
			_, err := r.Forget(nil, tenant)
			x.mu.Lock()
			x.note("forgot %s: %v", tenant, err)
			x.mu.Unlock()
		case 7:
			x.mu.Lock()
			_, busy := x.pausing[tenant]
			x.pausing[tenant] = struct{}{}
			x.mu.Unlock()
			if busy {
				continue
			}
			err := r.Pause(record.Pause{Platform: "p", Tenant: tenant})
			x.mu.Lock()
			x.note("paused %s: %v", tenant, err)
			if err == nil {
				x.paused[tenant] = time.Now()
			}
			x.mu.Unlock()
			time.Sleep(time.Duration(x.n(5000)) * time.Millisecond)
			x.mu.Lock()
			delete(x.paused, tenant)
			x.mu.Unlock()
			_, err = r.Resume(record.Pause{Platform: "p", Tenant: tenant})
			x.mu.Lock()
			x.note("resumed %s: %v", tenant, err)
			delete(x.pausing, tenant)
			x.mu.Unlock()
		case 8:
			if !erases {
				continue
			}
			began := time.Now()
			_, err := r.Erase("p", tenant)
			x.mu.Lock()
			x.note("erased %s: %v", tenant, err)
			if err == nil {
				for _, s := range x.sent {
					if s.tenant == tenant && s.acked && s.answered.Before(began) && s.erased.IsZero() {
						s.erased = time.Now()
					}
				}
			}
			x.mu.Unlock()
		}
	}
}

func newRace(t *testing.T, c *cluster, seed uint64) *race {
	return &race{
		t: t, c: c, rnd: rand.New(rand.NewPCG(seed, 7)), pausing: make(map[string]struct{}), byID: make(map[string]*raceSent),
		underway: make(map[string]int), paused: make(map[string]time.Time), last: make(map[string]int), known: make([]map[string]uint64, 3),
		back: seed%5 == 0, latest: seed%3 == 0, events: seed%7 < 3, forces: seed%6 == 1 || seed%5 == 0, troubled: seed%4 > 0, keeps: seed%8 > 4,
		calm: 2 * time.Minute, server: func() *natstest.Server { return c.server },
	}
}

var (
	racingFrom   = flag.Uint64("racing.from", 1, "the first world of TestRacing")
	racingWorlds = flag.Uint64("racing.worlds", 3, "how many worlds TestRacing tries, one with -short; with -v it also tells what happened in those that fail")
)

// TestRacing has senders, people and troubles at work at once, and nobody waits for anybody. What it finds is
// hard to make smaller; what it does not find is worth as much as the worlds that it tried.
func TestRacing(t *testing.T) {
	worlds := *racingWorlds
	if testing.Short() {
		worlds = min(worlds, 1)
	}
	for seed := *racingFrom; seed < *racingFrom+worlds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.parts = 2
				x := newRace(t, c, seed)
				for n := range 3 {
					x.replicas = append(x.replicas, x.start(n))
				}
				tenants := []string{"t1", "t2", "t3"}
				until := time.Now().Add(time.Minute)
				erases := seed%2 == 0
				var going sync.WaitGroup
				for _, tenant := range tenants {
					going.Go(func() { x.sender(tenant, until) })
					going.Go(func() { x.actor(tenants, until, erases) })
				}
				if seed%4 > 0 {
					going.Go(func() { x.trouble(until) })
				}
				going.Wait()
				for _, r := range x.replicas {
					for r.Err() != nil {
						time.Sleep(time.Second)
					}
				}
				x.judge(tenants)
				for _, r := range x.replicas {
					r.stop()
				}
				time.Sleep(time.Minute)
				if len(x.faults) > 0 {
					if testing.Verbose() {
						t.Log("\n" + strings.Join(x.log, "\n"))
					}
					t.Error(strings.Join(x.faults, "\n"))
				}
			})
		})
	}
}
