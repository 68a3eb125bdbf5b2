package inbox

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// Memory has lanes without a database, for the property test: what a transaction does not load is a slice.
type Memory struct {
	cfg   *Config
	owner []byte
	r     *rand.Rand
	lanes map[webhookgate.LaneName]*lane.Lane
	hooks map[webhookgate.LaneName][]*lane.Webhook // by number
	known map[webhookgate.LaneName]*snapshot.Stored
	runs  map[int]int64 // their marks
	last  int64
	lease time.Duration

	Now     int64
	Alone   bool
	Reserve func(*receiver.Receiver) bool
	Asked   int // how often a lane asked for rows
	fault   error
}

func NewMemory(cfg *Config, seed uint64, lease time.Duration) *Memory {
	return &Memory{
		cfg:   cfg,
		owner: []byte{1},
		r:     rand.New(rand.NewPCG(seed, 77)),
		lanes: make(map[webhookgate.LaneName]*lane.Lane),
		hooks: make(map[webhookgate.LaneName][]*lane.Webhook),
		known: make(map[webhookgate.LaneName]*snapshot.Stored),
		runs:  make(map[int]int64),
		lease: lease,
	}
}

// Crash is the end of a process: another one comes. shared: its leases run out; else they end.
func (m *Memory) Crash(shared bool) {
	m.owner = []byte{m.owner[0] + 1}
	for _, l := range m.lanes {
		if l.Owner != nil && !shared {
			l.Owner, l.Due, l.LeasedID = nil, m.Now, 0
		}
	}
}

// A Work is a piece of work; it returns what to do after the commit.
type Work func(*memTurn) (after func())

type memTurn struct {
	lane.Turn
	m      *Memory
	copies map[string]*lane.Webhook // invalid webhooks by lane and digest
}

// Turn is a transaction for works. Sometimes it runs twice, and sometimes more is in memory than was asked for.
func (m *Memory) Turn(works []Work) (after []func()) {
	var t *memTurn
	hooks, known, runs, last := m.hooks, m.known, m.runs, m.last
	for again := m.r.IntN(4) == 0; ; again = false {
		m.hooks, m.known, m.runs = maps.Clone(hooks), maps.Clone(known), maps.Clone(runs)
		m.last = last
		t = &memTurn{m: m, copies: make(map[string]*lane.Webhook)}
		t.Turn = lane.Turn{
			Rules:       &m.cfg.Rules,
			Process:     lane.Process{Owner: m.owner, LeaseTime: m.lease, Alone: m.Alone},
			Now:         m.Now,
			AskedAt:     time.Now(),
			Lanes:       make(map[webhookgate.LaneName]*lane.Lane),
			Inbox:       t,
			MayTakeOver: true,
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
	c := t.Changes()
	for k, all := range m.hooks {
		m.hooks[k] = slices.Clone(all)
	}
	for _, h := range c.Added {
		m.hooks[h.LaneName] = append(m.hooks[h.LaneName], h.Row())
	}
	for _, h := range c.Changed {
		all := m.hooks[h.LaneName]
		all[slices.IndexFunc(all, func(w *lane.Webhook) bool { return w.ID == h.ID })] = h.Row()
	}
	for _, s := range c.Snapshots {
		m.known[webhookgate.LaneName{Platform: s.Platform, Tenant: s.Tenant}] = s
	}
	for _, l := range slices.Concat(c.Lanes, c.Stamped) {
		m.lanes[l.LaneName] = l.Row()
	}
	return after
}

func (t *memTurn) lane(name webhookgate.LaneName) *lane.Lane {
	if l := t.Lanes[name]; l != nil {
		return l
	}
	row := t.m.lanes[name]
	if row == nil {
		row = lane.New(name)
	}
	l := t.Load(row.Row())
	if t.m.r.IntN(2) == 0 { // the first may be in memory or not
		l.First()
	}
	return l
}

// rows returns the webhooks of a lane that fit, as they are read from the database.
func (t *memTurn) rows(l *lane.Lane, fits func(*lane.Webhook) bool) (all []*lane.Webhook) {
	t.m.Asked++
	for _, h := range t.m.hooks[l.LaneName] {
		if fits(h) {
			row := *h
			all = append(all, &row)
		}
	}
	return all
}

func (t *memTurn) FirstWaiting(l *lane.Lane, except []int64) *lane.Webhook {
	waiting := t.rows(l, func(h *lane.Webhook) bool {
		return h.State == state.Waiting && !slices.Contains(except, h.ID)
	})
	if len(waiting) == 0 {
		return nil
	}
	return slices.MinFunc(waiting, func(a, b *lane.Webhook) int { return cmp.Compare(a.ID, b.ID) })
}

func (t *memTurn) InvalidWebhooks(l *lane.Lane) []*lane.Webhook {
	return t.rows(l, func(h *lane.Webhook) bool { return h.State == state.Invalid })
}

func (t *memTurn) ParkedSnapshots(l *lane.Lane) []*lane.Webhook {
	return t.rows(l, func(h *lane.Webhook) bool { return h.State == state.Parked && h.Snapshot })
}

func (t *memTurn) LastSnapshot(l *lane.Lane) *snapshot.Stored { return t.m.known[l.LaneName] }

func (t *memTurn) EraseTenant(l *lane.Lane) int {
	count := len(t.m.hooks[l.LaneName])
	delete(t.m.hooks, l.LaneName)
	delete(t.m.known, l.LaneName)
	return count
}

func (t *memTurn) NextNumber() int64                             { t.m.last++; return t.m.last }
func (t *memTurn) CheckRoom(*lane.Lane, int64) error             { return nil }
func (t *memTurn) Reserve(rc *receiver.Receiver, _ int64) bool   { return t.m.Reserve(rc) }
func (t *memTurn) IsDelivering(webhookgate.LaneName, int64) bool { return false }

func (m *Memory) Take(w *webhookgate.Webhook, done func(lane.Answer, *lane.Lease)) Work {
	in := arriving(w)
	return func(t *memTurn) func() {
		in, l := in, t.lane(w.Lane)
		noted := t.mustNote(l, "a webhook")
		a := l.Receive(&in)
		noted()
		return func() { done(a, a.Lease) }
	}
}

// mustNote returns a func that says whether the lane has got a new number.
func (t *memTurn) mustNote(l *lane.Lane, what string) func() {
	last := l.Last
	return func() {
		if l.Last <= last || l.LastAt != t.Now || l.Last > t.m.last {
			t.m.fault = fmt.Errorf("(j) after %s the last number of %s is %d at %d, it was %d; now is %d",
				what, l.Tenant, l.Last, l.LastAt, last, t.Now)
		}
	}
}

// Begin begins a run of reconcile.
func (m *Memory) Begin(run int, done func()) Work {
	return func(t *memTurn) func() {
		t.m.runs[run] = t.NextNumber()
		return done
	}
}

// Reconcile compares what the billing service says of a tenant with what is known. decided is called in the
// transaction.
func (m *Memory) Reconcile(
	run int, w *webhookgate.Webhook, mode lane.ReconcileMode, decided, done func(lane.Compared),
) Work {
	in := arriving(w)
	in.Source, in.Later = FromReconcile, true
	return func(t *memTurn) func() {
		says, _ := snapshot.Decode(w.State.Features)
		offer := lane.ListLine{Incoming: in, Says: says}
		c := t.lane(w.Lane).Reconcile(&offer, t.m.runs[run], mode)
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
		l := t.lane(in.LaneName)
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
func (m *Memory) Accept(id int64, w *webhookgate.Webhook, force bool, done func(lane.Answer, *lane.Lease)) Work {
	in := arriving(w)
	return func(t *memTurn) func() {
		in, l, a := in, t.lane(w.Lane), lane.Answer{}
		in.Accepting = t.load(l, id)
		if a.Err = l.CheckAccept(&in, force); a.Err == nil {
			a = l.Receive(&in)
		}
		return func() { done(a, a.Lease) }
	}
}

func (m *Memory) Settle(o *lane.Outcome, name webhookgate.LaneName, done func()) Work {
	return func(t *memTurn) func() {
		result := t.lane(name).EndTry(o)
		return func() { o.AfterTry = result; done() }
	}
}

// Claim leases the lanes that are due.
func (m *Memory) Claim(rc func(platform string) *receiver.Receiver, done func([]*lane.Lease)) Work {
	return func(t *memTurn) func() {
		var leases []*lane.Lease
		for _, k := range lane.SortedNames(m.lanes) {
			if row := m.lanes[k]; row.Due <= m.Now && rc(row.Platform) != nil {
				if lease := t.lane(row.LaneName).Claim(rc(row.Platform)); lease != nil {
					leases = append(leases, lease)
				}
			}
		}
		return func() { done(leases) }
	}
}

// NextDue is when the next lane is due.
func (m *Memory) NextDue(rc func(platform string) *receiver.Receiver) int64 {
	next := clock.Never
	for _, l := range m.lanes {
		if rc(l.Platform) != nil {
			next = min(next, l.Due)
		}
	}
	return next
}

func (m *Memory) act(name webhookgate.LaneName, does func(*memTurn, *lane.Lane) error, done func(error)) Work {
	return func(t *memTurn) func() {
		err := does(t, t.lane(name))
		return func() { done(err) }
	}
}

// load has a named webhook in memory.
func (t *memTurn) load(l *lane.Lane, id int64) *lane.Webhook {
	if h := l.Loaded(id); h != nil || slices.Contains(l.LoadedIDs(), id) {
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
		_, err := l.Erase()
		if err == nil {
			noted()
		}
		return err
	}, done)
}

func (m *Memory) Pause(name webhookgate.LaneName, yes bool, done func(error)) Work {
	return m.act(name, func(t *memTurn, l *lane.Lane) error { l.SetPaused(yes); return nil }, done)
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
