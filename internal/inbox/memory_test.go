package inbox

import (
	"bytes"

	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// Memory has lanes without a database, for the property test: what a transaction does not load is a slice.
type Memory struct {
	cfg      *Config
	owner    []byte
	r        *rand.Rand
	lanes    map[webhookgate.LaneName]*lane.Lane
	hooks    map[webhookgate.LaneName][]*lane.Webhook // by number
	known    map[webhookgate.LaneName]*snapshot.Stored
	runs     map[int]int64 // their marks
	last     int64
	Now      int64
	Places   func(webhookgate.LaneName) bool // whether there is one
	accepted map[string]int64                // when receivers last accepted something
	fault    error
}

func NewMemory(cfg *Config, seed uint64) *Memory {
	return &Memory{
		cfg:      cfg,
		owner:    []byte{1},
		r:        rand.New(rand.NewPCG(seed, 77)),
		lanes:    make(map[webhookgate.LaneName]*lane.Lane),
		hooks:    make(map[webhookgate.LaneName][]*lane.Webhook),
		known:    make(map[webhookgate.LaneName]*snapshot.Stored),
		runs:     make(map[int]int64),
		accepted: make(map[string]int64),
	}
}

// Crash is the end of a process: another one comes. Its leases run out.
func (m *Memory) Crash() { m.owner = []byte{m.owner[0] + 1} }

// A Work is a piece of work; it returns what to do after the commit.
type Work func(*memTurn) (after func())

type memTurn struct {
	lane.Turn
	m      *Memory
	copies map[string]*lane.Webhook // invalid webhooks by lane and digest
	leases []*lane.Lease
}

// Turn is a transaction for works, and returns what it has leased. Sometimes it runs twice.
func (m *Memory) Turn(works []Work) (after []func(), leases []*lane.Lease) {
	var t *memTurn
	runs, last := m.runs, m.last
	for again := m.r.IntN(4) == 0; ; again = false {
		m.runs, m.last = maps.Clone(runs), last
		t = &memTurn{m: m, copies: make(map[string]*lane.Webhook)}
		t.Turn = lane.Turn{
			Rules:       &m.cfg.Rules,
			Owner:       m.owner,
			Now:         m.Now,
			AskedAt:     time.Now(),
			MayTakeOver: true,
			Numbers:     m.last,
			Used:        make(map[string]int64),
			Accepted:    m.accepted,
			Lanes:       make(map[webhookgate.LaneName]*lane.Lane),
			AddedBytes:  make(map[string]int64),
		}
		after = nil
		for _, w := range works {
			after = append(after, w(t))
		}
		if !again {
			break
		}
	}
	for _, name := range lane.SortedNames(t.Lanes) {
		l := t.Lanes[name]
		if rc, waits := l.Ready(); rc != nil && !waits && m.Places(name) {
			t.leases = append(t.leases, l.Lease(rc))
		}
	}
	m.last = t.Numbers
	c := t.Changes()
	for _, l := range c.Erased {
		delete(m.hooks, l.LaneName)
	}
	for _, h := range c.Added {
		m.hooks[h.LaneName] = append(m.hooks[h.LaneName], h.Row())
	}
	for _, h := range c.Changed {
		all := m.hooks[h.LaneName]
		all[slices.IndexFunc(all, func(w *lane.Webhook) bool { return w.ID == h.ID })] = h.Row()
	}
	for _, s := range c.Snapshots {
		name := webhookgate.LaneName{Platform: s.Platform, Tenant: s.Tenant}
		if m.known[name] = s; s.Erased {
			delete(m.known, name)
		}
	}
	for _, l := range c.Lanes {
		m.lanes[l.LaneName] = l.Row()
	}
	return after, t.leases
}

// lane returns a lane with what a transaction reads of it. outcome is the webhook whose try has ended; zero: none.
func (t *memTurn) lane(name webhookgate.LaneName, outcome int64) *lane.Lane {
	if l := t.Lanes[name]; l != nil {
		return l
	}
	row := t.m.lanes[name]
	if row == nil {
		row = lane.New(name)
	}
	l := row.Row()
	t.Add(l)
	var first *lane.Webhook
	for _, h := range t.m.hooks[name] {
		switch h.State {
		case state.Waiting:
			if h.ID != outcome && (first == nil || h.ID < first.ID) {
				first = h
			}
		case state.Parked, state.Invalid:
			if h.State == state.Invalid || h.Snapshot {
				l.Load(h.Row())
			}
		}
	}
	if first != nil {
		l.LoadFirst(first.Row(), outcome)
	}
	return l
}

func (m *Memory) Take(w *webhookgate.Webhook, done func(lane.Answer, error)) Work {
	in := arriving(w)
	return func(t *memTurn) func() {
		in, l := in, t.lane(w.Lane, 0)
		noted := t.mustNote(l, "a webhook")
		a, err := l.Receive(&in)
		noted()
		return func() { done(a, err) }
	}
}

// mustNote returns a func that says whether the lane has got a new number.
func (t *memTurn) mustNote(l *lane.Lane, what string) func() {
	last := l.Last
	return func() {
		if l.Last <= last || l.LastAt != t.Now || l.Last > t.Numbers {
			t.m.fault = fmt.Errorf("(j) after %s the last number of %s is %d at %d, it was %d; now is %d",
				what, l.Tenant, l.Last, l.LastAt, last, t.Now)
		}
	}
}

// Begin begins a run of reconcile.
func (m *Memory) Begin(run int, done func()) Work {
	return func(t *memTurn) func() {
		t.m.runs[run] = t.NewNumber()
		return done
	}
}

// Reconcile compares what the billing service says of a tenant with what is known. decided is called in the
// transaction.
func (m *Memory) Reconcile(
	run int, w *webhookgate.Webhook, mode lane.ReconcileMode, decided, done func(lane.Compared),
) Work {
	in := arriving(w)
	in.Source = FromReconcile
	return func(t *memTurn) func() {
		says, _ := snapshot.Decode(w.State.Features)
		offer := lane.ListLine{Incoming: in, Says: says}
		c := t.lane(w.Lane, 0).Reconcile(&offer, t.m.known[w.Lane], t.m.runs[run], mode)
		decided(c)
		return func() { done(c) }
	}
}

// RecordInvalid stores a webhook that cannot be taken in. Without a tenant, its tenant is not certain.
func (m *Memory) RecordInvalid(w *webhookgate.Webhook, done func(id int64)) Work {
	in := newWebhook(w)
	in.Code = 422
	if w.Lane.Tenant == "" {
		in.LaneName = webhookgate.LaneName{}
	}
	return func(t *memTurn) func() {
		l := t.lane(in.LaneName, 0)
		key := fmt.Sprint(in.LaneName, in.Digest)
		for _, h := range t.m.hooks[in.LaneName] {
			if h.State == state.Invalid && bytes.Equal(h.Digest, in.Digest) && t.copies[key] == nil {
				t.copies[key] = t.load(l, h.ID)
			}
		}
		noted := t.mustNote(l, "an invalid one")
		t.copies[key] = l.RecordInvalid(in, t.copies[key])
		id := t.copies[key].ID
		noted()
		return func() { done(id) }
	}
}

// Accept takes in a webhook that is invalid.
func (m *Memory) Accept(id int64, w *webhookgate.Webhook, force bool, done func(lane.Answer, error)) Work {
	in := arriving(w)
	return func(t *memTurn) func() {
		in, l, a := in, t.lane(w.Lane, 0), lane.Answer{}
		in.Accepting = t.load(l, id)
		err := l.CheckAccept(&in, t.m.known[w.Lane], force)
		if err == nil {
			a, err = l.Receive(&in)
		}
		return func() { done(a, err) }
	}
}

func (m *Memory) Settle(o *lane.Outcome, name webhookgate.LaneName) Work {
	return func(t *memTurn) func() {
		o.AfterTry = t.lane(name, o.Lease.Webhook.ID).EndTry(o)
		if o.Try.Accepted() && !o.LeaseLost {
			m.accepted[o.Lease.Receiver.Name] = m.Now
		}
		return func() {}
	}
}

// Claim has the lanes that are due in a transaction.
func (m *Memory) Claim(may func(webhookgate.LaneName) bool) Work {
	return func(t *memTurn) func() {
		for _, k := range lane.SortedNames(m.lanes) {
			if row := m.lanes[k]; row.Due <= m.Now && may(k) {
				t.lane(k, 0)
			}
		}
		return func() {}
	}
}

// NextDue is when the next lane is due.
func (m *Memory) NextDue(may func(webhookgate.LaneName) bool) int64 {
	next := clock.Never
	for _, l := range m.lanes {
		if may(l.LaneName) {
			next = min(next, l.Due)
		}
	}
	return next
}

func (m *Memory) act(name webhookgate.LaneName, does func(*memTurn, *lane.Lane) error, done func(error)) Work {
	return func(t *memTurn) func() {
		err := does(t, t.lane(name, 0))
		return func() { done(err) }
	}
}

// load has a named webhook in memory.
func (t *memTurn) load(l *lane.Lane, id int64) *lane.Webhook {
	if h := l.Loaded(id); h != nil {
		return h
	}
	for _, h := range t.m.hooks[l.LaneName] {
		if h.ID == id {
			row := *h
			return l.Load(&row)
		}
	}
	return nil
}

func (m *Memory) Redeliver(e *lane.Webhook, force bool, done func(error)) Work {
	return m.act(webhookgate.LaneName{Platform: e.Platform, Tenant: e.Tenant}, func(t *memTurn, l *lane.Lane) error {
		if h := t.load(l, e.ID); h != nil {
			return l.Redeliver(h, e.State, force)
		}
		return ErrNotFound
	}, done)
}

func (m *Memory) Discard(e *lane.Webhook, done func(error)) Work {
	return m.act(webhookgate.LaneName{Platform: e.Platform, Tenant: e.Tenant}, func(t *memTurn, l *lane.Lane) error {
		if h := t.load(l, e.ID); h != nil {
			return l.Discard(h)
		}
		return ErrNotFound
	}, done)
}

func (m *Memory) Erase(name webhookgate.LaneName, done func(error)) Work {
	return m.act(name, func(t *memTurn, l *lane.Lane) error {
		noted := t.mustNote(l, "an erasure")
		err := l.Erase()
		if err == nil {
			noted()
		}
		return err
	}, done)
}

// List returns all webhooks, the newest first.
func (m *Memory) List() (all []*lane.Webhook) {
	for _, hooks := range m.hooks {
		for _, h := range hooks {
			row := *h
			all = append(all, &row)
		}
	}
	slices.SortFunc(all, func(a, b *lane.Webhook) int { return int(b.ID - a.ID) })
	return all
}

// Check says whether the lanes' counts are right.
func (m *Memory) Check() error {
	if m.fault != nil {
		return m.fault
	}
	for k, l := range m.lanes {
		if hooks := m.hooks[k]; len(hooks) > 0 && hooks[len(hooks)-1].ID > l.Last {
			last := hooks[len(hooks)-1].ID
			return fmt.Errorf("(j) the last number of %s is %d, and it has webhook %d", l.Tenant, l.Last, last)
		}
		var waiting, parked, invalid, bytes, parkedSnapshots int64
		for _, h := range m.hooks[k] {
			parkedSnapshots += boolNumber(h.State == state.Parked && h.Snapshot)
			invalid += boolNumber(h.State == state.Invalid)
			waiting += boolNumber(h.State == state.Waiting)
			parked += boolNumber(h.State == state.Parked)
			if h.State == state.Waiting || h.State == state.Parked {
				bytes += h.Size
			}
		}
		if parkedSnapshots > 1 {
			return fmt.Errorf("(h) %s has %d parked snapshots", l.Tenant, parkedSnapshots)
		}
		row, is := [4]int64{l.Waiting, l.Parked, l.Invalid, l.Bytes}, [4]int64{waiting, parked, invalid, bytes}
		if row != is {
			return fmt.Errorf("(h) the counts of %s are wrong: %v, and there are %v; leased %d",
				l.Tenant, row, is, l.LeasedID)
		}
	}
	return nil
}
