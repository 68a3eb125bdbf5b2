package file

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// Whatever happens, and in whatever order, once all is well: nothing waits any more, what is called delivered was
// accepted, in the order in which it came, and the receiver holds the last snapshot, unless somebody
// wanted it otherwise.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newTraffic(t, seed).run() })
		}) {
			return
		}
	}
}

// traffic is a chaos of which it is known what came, and what was accepted.
type traffic struct {
	*chaos
	sent   map[string]*webhookgate.Webhook // by their ids
	newest map[string]string               // tenant → the id of its last snapshot; none: somebody wanted it otherwise
	again  map[string]bool                 // ids of what may come again, or out of order

	mu       sync.Mutex
	accepted map[string][]string // tenant → ids, since it was last erased
}

func newTraffic(t *testing.T, seed uint64) *traffic {
	x := &traffic{
		chaos:    &chaos{receiver: new(inboxtest.Receiver), rnd: rand.New(rand.NewPCG(seed, 1)), last: make(map[string]string)},
		sent:     make(map[string]*webhookgate.Webhook),
		newest:   make(map[string]string),
		again:    make(map[string]bool),
		accepted: make(map[string][]string),
	}
	x.cfg = config(t.TempDir(), x.receiver)
	x.cfg.courier.MaxAge, x.cfg.courier.Attempts = 1000*time.Hour, 3+x.rnd.IntN(10)
	x.cfg.courier.Receivers[0].Try = x.try
	x.cfg.courier.Receivers[0].Concurrency = 1 + x.rnd.IntN(3)
	if x.rnd.IntN(2) == 0 {
		x.cfg.DedupWindow = 1000 * time.Hour
	}
	x.receiver.Slow(time.Duration(x.rnd.IntN(3)) * time.Second)
	x.open(t)
	return x
}

func (x *traffic) run() {
	happens := []func(){
		x.comes, x.comes, x.comes, x.comes, x.event, x.redeliver, x.redeliver, x.discard, x.discard,
		x.trimSome, x.erase, x.receiverTurns, x.receiverTurns, x.restart, x.pass, x.pass, x.pause, x.forget, x.settle,
	}
	for range 60 {
		happens[x.rnd.IntN(len(happens))]()
		if x.rnd.IntN(2) == 0 {
			synctest.Wait()
		}
	}
	x.settle()
}

func (x *traffic) try(ctx context.Context, w *webhookgate.Webhook) webhookgate.Attempt {
	a := x.receiver.Try(ctx, w)
	if a.Accepted() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.accepted[w.Lane.Tenant] = append(x.accepted[w.Lane.Tenant], w.ID)
	}
	return a
}

func (x *traffic) send(w *webhookgate.Webhook) {
	duplicateOf, err := x.Append(w, false)
	x.must(err)
	x.say("%s:%s comes as %s, a copy of %q", w.Lane.Tenant, w.Body, w.ID, duplicateOf)
	x.sent[w.ID] = w
	if w.Snapshot {
		x.newest[w.Lane.Tenant] = w.ID
		if duplicateOf != "" {
			x.newest[w.Lane.Tenant] = duplicateOf
		}
	}
}

func (x *traffic) comes() {
	x.send(inboxtest.Webhook(x.aTenant(), string(rune('A'+x.rnd.IntN(3)))))
}

// event is something of a tenant that is no snapshot.
func (x *traffic) event() {
	w := inboxtest.Webhook(x.aTenant(), "X")
	w.Type, w.Snapshot = "Other", false
	x.send(w)
}

// otherwise notes that somebody has done something to a webhook.
func (x *traffic) otherwise(id uint64, what string, err error) {
	x.say("%s %d: %v", what, id, err)
	item, missing := x.Show(id)
	if err != nil || missing != nil {
		return
	}
	x.again[item.Webhook] = true
	isNewest := x.newest[item.Tenant] == item.Webhook
	if isNewest == (what == "discard") {
		delete(x.newest, item.Tenant)
	}
}

func (x *traffic) redeliver() {
	id := x.anID()
	x.otherwise(id, "redeliver", x.Redeliver(id, x.rnd.IntN(2) == 0))
}

func (x *traffic) discard() {
	id := x.anID()
	x.otherwise(id, "discard", x.Discard(id))
}

func (x *traffic) erase() {
	tenant := x.aTenant()
	n, err := x.Erase("p", tenant)
	x.must(err)
	x.say("erase %s: %d", tenant, n)
	delete(x.newest, tenant)
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.accepted, tenant)
}

func (x *traffic) restart() {
	x.cfg.courier.KeepLatest = x.rnd.IntN(2) == 0
	x.chaos.restart()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, ids := range x.accepted {
		for _, id := range ids { // after a crash some do
			x.again[id] = true
		}
	}
}

func (x *traffic) forget() {
	n, err := x.Forget(nil, x.aTenant())
	x.must(err)
	x.say("forget %d", n)
}

func (x *traffic) pause() {
	p := []record.Pause{{}, {Receiver: "main"}, {Platform: "p", Tenant: x.aTenant()}}[x.rnd.IntN(3)]
	x.say("pause %s", p)
	x.must(x.Pause(p))
}

// settle has all be well, and looks at what came of it.
func (x *traffic) settle() {
	for _, p := range x.Paused() {
		_, err := x.Resume(p)
		x.must(err)
	}
	x.receiver.Set(nil)
	time.Sleep(3 * time.Hour)
	synctest.Wait()
	x.say("settled")
	entries, err := x.List(record.Filter{})
	x.must(err)
	x.mu.Lock()
	defer x.mu.Unlock()
	parked := make(map[string]bool)
	for _, e := range entries {
		parked[e.Webhook] = e.State == record.Parked
		if e.State == record.Waiting || e.State == record.Delivered && !slices.Contains(x.accepted[e.Tenant], e.Webhook) {
			x.t.Errorf("%s is %s: %v", e.Webhook, e.State, x.accepted[e.Tenant])
		}
	}
	for _, tenant := range chaosTenants {
		before, holds := 0, ""
		for _, id := range x.accepted[tenant] {
			if w := x.sent[id]; w.Snapshot {
				holds = string(w.Body)
			}
			n, _ := strconv.Atoi(strings.TrimPrefix(id, "id-"))
			if x.again[id] {
				continue
			}
			if n <= before {
				x.t.Errorf("%s came after %d: %v", id, before, x.accepted[tenant])
			}
			before = n
		}
		newest := x.sent[x.newest[tenant]]
		if newest != nil && !parked[newest.ID] && holds != string(newest.Body) {
			x.t.Errorf("the receiver of %s holds %q, not %s: %v", tenant, holds, newest.Body, x.accepted[tenant])
		}
	}
	if x.t.Failed() {
		x.t.Fatal(strings.Join(x.story, "\n"))
	}
}
