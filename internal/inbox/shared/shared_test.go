package shared

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// A replica is a store with a courier, at the end of a wire.
type replica struct {
	*Store
	courier *courier.Courier
	wire    *natstest.Wire
	stop    func()
}

// A cluster is a server, replicas, and their receiver.
type cluster struct {
	t        *testing.T
	server   *natstest.Server
	receiver inboxtest.Receiver
	change   func(*Config, *courier.Config)
	parts    int             // fewer than usual: each has a lease that is renewed every second
	hard     context.Context // cuts off the deliveries of who is stopped; nil: they end at once
}

// bubble runs a test with a server of its own, in a time of its own.
func bubble(t *testing.T, test func(t *testing.T, c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, server: natstest.New(), change: func(*Config, *courier.Config) {}, parts: 2}
		defer func() { c.server.End() }()
		test(t, c)
	})
}

func (c *cluster) start() *replica {
	c.t.Helper()
	return c.startAt(&natstest.Wire{Server: c.server})
}

func (c *cluster) startAt(wire *natstest.Wire) *replica {
	c.t.Helper()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	cfg := Config{
		NATS:  &servers.NATS{Servers: []string{nats.DefaultURL}, Stream: "USHER", Options: []nats.Option{nats.InProcessServer(wire)}, Parts: c.parts},
		Route: func(webhookgate.Lane) string { return "main" }, DedupSize: 100, DedupWindow: 10 * time.Minute, MaxBytes: 1 << 30, Log: log,
	}
	couriers := courier.Config{
		Receivers: []courier.Receiver{{Name: "main", Try: c.receiver.Try, Concurrency: 32}},
		Attempts:  20, MaxAge: 72 * time.Hour, Log: log,
	}
	c.change(&cfg, &couriers)
	r := &replica{courier: courier.New(couriers), wire: wire}
	var err error
	if r.Store, err = Open(cfg, r.courier); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	hard := cmp.Or(c.hard, ctx)
	running.Go(func() { r.Run(ctx, hard) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		r.Close()
	})
	return r
}

// impatient has no pause between two tries be longer than some seconds, and as many of them as it takes.
func (c *cluster) impatient() {
	change := c.change
	c.change = func(store *Config, cfg *courier.Config) {
		change(store, cfg)
		cfg.Attempts = 1000
		cfg.Pause = func(ceiling time.Duration) time.Duration { return rand.N(min(ceiling, 10*time.Second)) }
	}
}

// until waits for something to become so, for a minute at most.
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// keep takes a webhook in.
func (r *replica) keep(t *testing.T, w *webhookgate.Webhook) (original string) {
	t.Helper()
	original, err := r.Append(w, false)
	if err != nil {
		t.Errorf("%s of %s: %v", w.Body, w.Lane.Tenant, err)
	}
	return original
}

// send takes a snapshot in that is no copy.
func (r *replica) send(t *testing.T, tenant, body string) {
	t.Helper()
	if original := r.keep(t, inboxtest.Webhook(tenant, body)); original != "" {
		t.Errorf("%s of %s is taken for a copy of %s", body, tenant, original)
	}
}

// messages is how many the streams have; leases, claims, and notes of what was erased not counted.
func (r *replica) messages(t *testing.T) (waiting, history int) {
	t.Helper()
	stream, past, err := r.streams()
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pastInfo, err := past.Info(t.Context(), jetstream.WithSubjectFilter(r.subjects.History+"*.*.erased"))
	if err != nil {
		t.Fatal(err)
	}
	return int(info.State.Msgs) - 2*r.subjects.Parts, int(pastInfo.State.Msgs) - len(pastInfo.State.Subjects)
}

// js is for what only somebody else does to the streams.
func (r *replica) js(t *testing.T) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(r.servers.Conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func (r *replica) streams() (waiting, history jetstream.Stream, err error) {
	js, err := jetstream.New(r.servers.Conn)
	if err != nil {
		return nil, nil, err
	}
	if waiting, err = js.Stream(context.Background(), "USHER"); err == nil {
		history, err = js.Stream(context.Background(), "USHER_HISTORY")
	}
	return waiting, history, err
}

// believe has the replica be told that the stream has a message of that sequence.
func (r *replica) believe(t *testing.T, seq uint64) {
	t.Helper()
	told, err := r.servers.Conn.Subscribe("believe", func(m *nats.Msg) {
		_ = m.Respond(fmt.Appendf(nil, `{"stream":"USHER","seq":%d}`, seq))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer told.Unsubscribe()
	if _, err := r.servers.Publish(t.Context(), nats.NewMsg("believe")); err != nil {
		t.Fatal(err)
	}
}

func (r *replica) states(t *testing.T) map[record.State]int {
	t.Helper()
	entries, err := r.List(record.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	states := make(map[record.State]int)
	for _, e := range entries {
		states[e.State]++
	}
	return states
}

func TestDelivers(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.start()
		defer r.stop()
		r.send(t, "acme", "A")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		time.Sleep(time.Second)
		if waiting, history := r.messages(t); waiting != 1 || history != 1 {
			t.Errorf("%d messages are left, and %d in the history, want the lane's memory and the webhook", waiting, history)
		}
		if original := r.keep(t, inboxtest.Webhook("acme", "A")); original == "" {
			t.Error("a copy is not recognised")
		}
		r.send(t, "acme", "B")
		r.send(t, "acme", "A")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 3 })
		c.receiver.Want(t, "acme:A", "acme:B", "acme:A")
	})
}

// The last A of A, B, A must not be dropped by a replica that has missed what became of the
// first one.
func TestCutOffReplicaDropsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		one, two, tenant := c.elsewhere()
		defer one.stop()
		defer two.stop()
		c.receiver.Set(inboxtest.Refusing)
		one.send(t, "parked", "X")
		one.send(t, tenant, "A")
		if original := two.keep(t, inboxtest.Webhook(tenant, "A")); original == "" {
			t.Error("a copy of what waits is not recognised by another replica")
		}
		two.wire.Sever()
		c.receiver.Set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
			if w.Lane.Tenant == "parked" {
				return webhookgate.Attempt{Status: 422}
			}
			return webhookgate.Attempt{Status: 200}
		})
		until(t, "A delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		one.send(t, tenant, "B")
		until(t, "B delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
		if original := one.keep(t, inboxtest.Webhook(tenant, "B")); original == "" {
			t.Error("a copy of B is not recognised")
		}
		for n := range 200 {
			one.send(t, fmt.Sprint("other", n%20), fmt.Sprint(n))
		}
		two.wire.Mend()
		until(t, "connected again", func() bool { return two.Err() == nil })
		two.send(t, tenant, "A")
		until(t, "all delivered", func() bool { return len(c.receiver.Accepted()) == 203 })
		until(t, "parked", func() bool { return two.states(t)[record.Parked] == 1 })
		if got := two.states(t); got[record.Waiting] != 0 || got[record.Parked] != 1 || got[record.Delivered] != 203 {
			t.Errorf("the replica that was away sees %v", got)
		}
	})
}

// Whatever is parked, what is finished leaves the stream, and copies leave nothing behind.
func TestStreamStaysSmall(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
			if w.Lane.Tenant == "parked" {
				return webhookgate.Attempt{Status: 422}
			}
			return webhookgate.Attempt{Status: 200}
		})
		r := c.start()
		defer r.stop()
		r.send(t, "parked", "X")
		const tenants, rounds = 20, 20
		for round := range rounds {
			for tenant := range tenants {
				name := fmt.Sprint("t", tenant)
				r.send(t, name, fmt.Sprint(round))
				r.keep(t, inboxtest.Webhook(name, fmt.Sprint(round))) // a copy, of what waits or of what was delivered
			}
		}
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == tenants*rounds })
		for range 10 * tenants {
			r.keep(t, inboxtest.Webhook("t0", fmt.Sprint(rounds-1)))
		}
		time.Sleep(5 * time.Second)
		// A memory for each lane and at most one note, the parked one and the memory of its lane.
		if waiting, history := r.messages(t); waiting > 2*tenants+2 || history != tenants*rounds {
			t.Errorf("%d messages are left, and %d in the history", waiting, history)
		}
	})
}

// What tenants were sent last is remembered however many there are.
func TestRemembersAllTenants(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(cfg *Config, _ *courier.Config) { cfg.DedupSize, cfg.DedupWindow = 10, 2*time.Minute }
		r := c.start()
		defer r.stop()
		const tenants = 300
		for n := range tenants {
			r.send(t, fmt.Sprint(n), "A")
		}
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == tenants })
		time.Sleep(time.Second)
		for n := range tenants {
			if r.keep(t, inboxtest.Webhook(fmt.Sprint(n), "A")) == "" {
				t.Fatalf("the copy of tenant %d is not recognised", n)
			}
		}
		time.Sleep(2 * time.Minute)
		r.send(t, "0", "A") // its window is over
	})
}

// A full inbox refuses webhooks, and gets empty again.
func TestFull(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(cfg *Config, _ *courier.Config) { cfg.MaxBytes = 1 << 20 }
		c.receiver.Set(inboxtest.Refusing)
		r := c.start()
		defer r.stop()
		body := string(make([]byte, 10<<10))
		taken := 0
		var err error
		for ; err == nil; taken++ {
			_, err = r.Append(inboxtest.Webhook(fmt.Sprint("t", taken%7), body+fmt.Sprint(taken)), false)
		}
		if taken--; !errors.Is(err, record.ErrFull) || taken < 50 || taken > 100 {
			t.Fatalf("after %d webhooks: %v", taken, err)
		}
		if used, limit := r.Usage(); used < limit*9/10 {
			t.Errorf("%d of %d bytes are used", used, limit)
		}
		c.receiver.Set(nil)
		until(t, "all delivered", func() bool { return len(c.receiver.Accepted()) == taken })
		until(t, "room again", func() bool {
			_, err := r.Append(inboxtest.Webhook("t0", "again"), false)
			return err == nil
		})
	})
}

// Bursts of one tenant over two replicas, some way from the servers, are taken in whole and in
// order.
func TestBurstOverTwoReplicas(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		one := c.startAt(&natstest.Wire{Server: c.server, Delay: 10 * time.Millisecond})
		defer one.stop()
		two := c.startAt(&natstest.Wire{Server: c.server, Delay: 10 * time.Millisecond})
		defer two.stop()
		until(t, "both deliver", func() bool { return one.Delivers() && two.Delivers() })
		var sending sync.WaitGroup
		for n := range 64 {
			r := one
			if n%2 == 1 {
				r = two
			}
			sending.Go(func() { r.send(t, "acme", fmt.Sprint(n)) })
		}
		sending.Wait()
		until(t, "all delivered", func() bool { return len(c.receiver.Accepted()) == 64 })
	})
}

// A start reads what waits without its content.
func TestStartReadsNoContent(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Set(inboxtest.Refusing)
		one := c.start()
		for n := range 40 {
			one.send(t, fmt.Sprint("t", n), fmt.Sprint(n)+string(make([]byte, 500<<10)))
		}
		one.stop()
		wire := &natstest.Wire{Server: c.server}
		two := c.startAt(wire)
		defer two.stop()
		until(t, "all taken over", func() bool { return two.courier.Stats().Pending == 40 })
		if read := wire.Read.Load(); read > 1<<20 {
			t.Errorf("%d bytes were read", read)
		}
	})
}

// Each part that a replica begins to deliver is counted, and how it ended.
func TestLeaseChangesAreTold(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		var mu sync.Mutex
		counts := make(map[string]int)
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.LeaseChanged = func(change string) {
				mu.Lock()
				defer mu.Unlock()
				counts[change]++
			}
		}
		count := func(change string) int {
			mu.Lock()
			defer mu.Unlock()
			return counts[change]
		}
		first := c.start()
		until(t, "all parts are taken", func() bool { return count("taken") == c.parts })
		second := c.start()
		until(t, "half of them are given to another", func() bool { return count("given_back") == c.parts/2 && count("taken") == c.parts*3/2 })
		second.wire.Sever()
		until(t, "lost by who is cut off", func() bool { return count("lost") == c.parts/2 })
		first.stop()
		second.stop()
	})
}
