package inbox

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// Memory has lanes without a database, for the property test: what a transaction does not load is a slice.
type Memory struct {
	cfg    *Config
	owner  []byte
	r      *rand.Rand
	lanes  map[webhookgate.LaneName]*lane
	hooks  map[webhookgate.LaneName][]*Webhook // by number
	seen   map[seenID][]*seenRow
	known  map[webhookgate.LaneName]*snapshot.Stored
	runs   map[int]*Run
	missed map[webhookgate.LaneName][]webhookgate.MissedWebhook
	last   int64
	lease  time.Duration

	Now     int64
	Alone   bool
	Reserve func(*receiver.Receiver) bool
	Asked   int // how often a lane asked for rows
	fault   error
}

func NewMemory(cfg *Config, seed uint64, lease time.Duration) *Memory {
	return &Memory{cfg: cfg, owner: []byte{1}, r: rand.New(rand.NewPCG(seed, 77)), lanes: make(map[webhookgate.LaneName]*lane), hooks: make(map[webhookgate.LaneName][]*Webhook), seen: make(map[seenID][]*seenRow), known: make(map[webhookgate.LaneName]*snapshot.Stored), runs: make(map[int]*Run), missed: make(map[webhookgate.LaneName][]webhookgate.MissedWebhook), lease: lease}
}

// Crash is the end of a process: another one comes. shared: its leases run out; else they end.
func (m *Memory) Crash(shared bool) {
	m.owner = []byte{m.owner[0] + 1}
	for _, l := range m.lanes {
		if l.owner != nil && !shared {
			l.owner, l.due, l.leasedID = nil, m.Now, 0
		}
	}
}

// A Work is a piece of work; it returns what to do after the commit.
type Work func(*memTurn) (after func())

type memTurn struct {
	turn
	m      *Memory
	loaded map[seenID]bool     // signed ids that are in memory
	copies map[string]*Webhook // invalid webhooks by lane and digest
}

// Turn is a transaction for works. Sometimes it runs twice, and sometimes more is in memory than was asked for.
func (m *Memory) Turn(works []Work) (after []func()) {
	var t *memTurn
	hooks, seen, known, runs, last := m.hooks, m.seen, m.known, m.runs, m.last
	for again := m.r.IntN(4) == 0; ; again = false {
		m.hooks, m.seen, m.known, m.runs, m.last = maps.Clone(hooks), maps.Clone(seen), maps.Clone(known), maps.Clone(runs), last
		t = &memTurn{m: m, loaded: make(map[seenID]bool), copies: make(map[string]*Webhook)}
		t.turn = turn{Rules: &m.cfg.Rules, process: process{owner: m.owner, leaseTime: m.lease, alone: m.Alone}, now: m.Now, askedAt: time.Now(), lanes: make(map[webhookgate.LaneName]*lane), inbox: t, mayTakeOver: true, added: make(map[string]int64)}
		after = nil
		for _, w := range works {
			after = append(after, w(t))
		}
		if !again {
			break
		}
	}
	c := t.changes()
	for k, all := range m.hooks {
		m.hooks[k] = slices.DeleteFunc(slices.Clone(all), func(h *Webhook) bool { return slices.Contains(c.deleted, h.ID) })
	}
	for _, h := range c.added {
		m.hooks[h.lane] = append(m.hooks[h.lane], h.stored())
	}
	for _, h := range c.changed {
		all := m.hooks[h.lane]
		all[slices.IndexFunc(all, func(w *Webhook) bool { return w.ID == h.ID })] = h.stored()
	}
	for _, id := range c.seen {
		row := *id
		others := slices.DeleteFunc(slices.Clone(m.seen[id.seenID]), func(r *seenRow) bool { return bytes.Equal(r.digest, id.digest) })
		m.seen[id.seenID] = append(others, &row)
	}
	for _, s := range c.snapshots {
		m.known[webhookgate.LaneName{Platform: s.Platform, Tenant: s.Tenant}] = s
	}
	for _, l := range c.missed {
		m.missed[l.LaneName] = l.missing().Webhooks
	}
	for _, l := range slices.Concat(c.lanes, c.noted) {
		m.lanes[l.LaneName] = l.row()
	}
	return after
}

func (t *memTurn) lane(name webhookgate.LaneName) *lane {
	k := LaneOf(name)
	if l := t.lanes[k]; l != nil {
		return l
	}
	row := t.m.lanes[k]
	if row == nil {
		row = newLane(k)
	}
	l := t.adopt(row.row())
	if t.m.r.IntN(2) == 0 { // the first may be in memory or not
		l.first()
	}
	if t.Latest {
		for _, h := range t.m.hooks[k] {
			if h.ID == l.tail && h.State == Waiting {
				t.load(l, h.ID)
			}
		}
	}
	return l
}

func (t *memTurn) FirstWaiting(l *lane, except []int64) (first *Webhook) {
	t.m.Asked++
	for _, h := range t.m.hooks[l.LaneName] {
		if h.State == Waiting && !slices.Contains(except, h.ID) && (first == nil || h.ID < first.ID) {
			first = h
		}
	}
	if first != nil {
		row := *first
		first = &row
	}
	return first
}

func (t *memTurn) InvalidWebhooks(l *lane) (all []*Webhook) {
	t.m.Asked++
	for _, h := range t.m.hooks[l.LaneName] {
		if h.State == Invalid {
			row := *h
			all = append(all, &row)
		}
	}
	return all
}

func (t *memTurn) ParkedSnapshots(l *lane) (all []*Webhook) {
	t.m.Asked++
	for _, h := range t.m.hooks[l.LaneName] {
		if h.State == Parked && h.snapshot {
			row := *h
			all = append(all, &row)
		}
	}
	return all
}

func (t *memTurn) MissedWebhooks(l *lane) []webhookgate.MissedWebhook {
	t.m.Asked++
	return t.m.missed[l.LaneName]
}

// The worlds know nothing of an invalid one that makes good for a 5xx.
func (t *memTurn) CameAfterAll(l *lane, m *webhookgate.MissedWebhook) bool {
	return slices.ContainsFunc(t.m.hooks[l.LaneName], func(h *Webhook) bool {
		isThat := h.UUID == m.ID || h.Code == 0 && !h.Received.Before(m.At)
		return isThat && sha256Of(h.digest) == m.Digest
	})
}

func (t *memTurn) CountWebhooks(l *lane) (c laneCounts) {
	t.m.fault = fmt.Errorf("the row of %s says something else than its webhooks", l.Tenant)
	return c
}

func (t *memTurn) LastSnapshotDigest(l *lane) []byte {
	known := t.m.known[l.LaneName]
	for _, h := range t.m.hooks[l.LaneName] {
		if known != nil && h.ID == known.Seq {
			return h.digest
		}
	}
	return nil
}

func (t *memTurn) LastSnapshot(l *lane) *snapshot.Stored { return t.m.known[l.LaneName] }

func (t *memTurn) EraseWebhooks(l *lane) int {
	count := len(t.m.hooks[l.LaneName])
	delete(t.m.hooks, l.LaneName)
	delete(t.m.known, l.LaneName)
	return count
}

func (t *memTurn) ForgetIDs(l *lane) {
	maps.DeleteFunc(t.m.seen, func(id seenID, _ []*seenRow) bool { return id.lane == l.LaneName })
}

func (t *memTurn) NextNumber() int64                           { t.m.last++; return t.m.last }
func (t *memTurn) HasRoom(*lane, int64) error                  { return nil }
func (t *memTurn) Reserve(rc *receiver.Receiver, _ int64) bool { return t.m.Reserve(rc) }
func (t *memTurn) Delivers(webhookgate.LaneName, int64) bool   { return false }

func (m *Memory) Take(w *webhookgate.Webhook, done func(Answer, *Lease)) Work {
	in := arriving(w)
	in.arrived, in.came = w.Received.UnixMicro(), w.Received
	return func(t *memTurn) func() {
		in, l := in, t.lane(w.Lane)
		t.loadSeen(l, &in)
		noted := t.mustNote(l, "a webhook")
		a := l.take(&in)
		noted()
		return func() { done(a, a.lease) }
	}
}

// Miss notes what got a 5xx.
func (m *Memory) Miss(name webhookgate.LaneName, d webhookgate.MissedSet, done func()) Work {
	return func(t *memTurn) func() {
		t.lane(name).miss(d)
		return done
	}
}

// Missed says whether a tenant is missed anything.
func (m *Memory) Missed(name webhookgate.LaneName) bool {
	l := m.lanes[LaneOf(name)]
	return l != nil && l.missedSince > 0
}

// mustNote returns a func that says whether the lane has got a new number.
func (t *memTurn) mustNote(l *lane, what string) func() {
	last := l.last
	return func() {
		if l.last <= last || l.lastAt != t.now || l.last > t.m.last {
			t.m.fault = fmt.Errorf("(j) after %s the last number of %s is %d at %d, it was %d; now is %d", what, l.Tenant, l.last, l.lastAt, last, t.now)
		}
	}
}

// loadSeen has a webhook's signed id in memory, as the statement seen_find reads it.
func (t *memTurn) loadSeen(l *lane, in *incoming) {
	id := seenID{l.LaneName, in.signedID}
	if !in.signed || t.loaded[id] {
		return
	}
	t.loaded[id] = true
	for _, r := range t.m.seen[id] {
		row := *r
		row.state = Delivered // unless it is still there
		for _, h := range t.m.hooks[l.LaneName] {
			if h.ID == row.seq {
				row.state = h.State
			}
		}
		l.knowID(&row)
	}
}

// Begin begins a run of reconcile.
func (m *Memory) Begin(run int, done func()) Work {
	return func(t *memTurn) func() {
		t.m.runs[run] = &Run{Began: t.time(), mark: t.NextNumber()}
		return done
	}
}

// Reconcile compares what the billing service says of a tenant with what is known. decided is called in the transaction.
func (m *Memory) Reconcile(run int, w *webhookgate.Webhook, leave leave, decided, done func(Compared)) Work {
	in := arriving(w)
	in.Source, in.unhurried = FromReconcile, true
	return func(t *memTurn) func() {
		says, _ := snapshot.Decode(w.State.Features)
		offer := offer{incoming: in, says: says}
		c := t.lane(w.Lane).reconcile(&offer, t.m.runs[run], leave)
		decided(c)
		return func() { done(c) }
	}
}

// RecordInvalid stores a webhook that cannot be taken in. Without a tenant, its tenant is not certain.
func (m *Memory) RecordInvalid(w *webhookgate.Webhook, done func(id int64)) Work {
	in := newWebhook(w)
	in.Code, in.Times = 422, 1
	if w.Lane.Tenant == "" {
		in.lane = webhookgate.LaneName{}
	}
	return func(t *memTurn) func() {
		l := t.lane(in.lane)
		key := fmt.Sprint(in.lane, in.digest)
		for _, h := range t.m.hooks[in.lane] {
			if h.State == Invalid && bytes.Equal(h.digest, in.digest) && t.copies[key] == nil {
				t.copies[key] = t.load(l, h.ID)
			}
		}
		noted := t.mustNote(l, "an invalid one")
		t.copies[key] = l.recordInvalid(in, t.copies[key])
		id := t.copies[key].ID
		noted()
		return func() { done(id) }
	}
}

// Accept takes in a webhook that is invalid.
func (m *Memory) Accept(id int64, w *webhookgate.Webhook, force bool, done func(Answer, *Lease)) Work {
	in := arriving(w)
	return func(t *memTurn) func() {
		in, l, a := in, t.lane(w.Lane), Answer{}
		in.accepting = t.load(l, id)
		if a.Err = l.mayAccept(&in, id, force); a.Err == nil {
			a = l.take(&in)
		}
		return func() { done(a, a.lease) }
	}
}

func (m *Memory) Settle(o *Outcome, name webhookgate.LaneName, done func()) Work {
	return func(t *memTurn) func() {
		result := t.lane(name).settle(o)
		return func() { o.settlement = result; done() }
	}
}

// Claim leases the lanes that are due.
func (m *Memory) Claim(rc func(platform string) *receiver.Receiver, done func([]*Lease)) Work {
	return func(t *memTurn) func() {
		var leases []*Lease
		for _, k := range sorted(m.lanes) {
			if row := m.lanes[k]; row.due <= m.Now && rc(row.Platform) != nil {
				if lease := t.lane(row.LaneName).claim(rc(row.Platform)); lease != nil {
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
			next = min(next, l.due)
		}
	}
	return next
}

func (m *Memory) act(name webhookgate.LaneName, does func(*memTurn, *lane) error, done func(error)) Work {
	return func(t *memTurn) func() {
		err := does(t, t.lane(name))
		return func() { done(err) }
	}
}

// load has a named webhook in memory.
func (t *memTurn) load(l *lane, id int64) *Webhook {
	if h := l.hook(id); h != nil || slices.Contains(l.inMemory(), id) {
		return h
	}
	for _, h := range t.m.hooks[l.LaneName] {
		if h.ID == id {
			row := *h
			return l.know(&row)
		}
	}
	return nil
}

func (m *Memory) Redeliver(e *Webhook, force bool, done func(error)) Work {
	return m.act(webhookgate.LaneName{Platform: e.Platform, Tenant: e.Tenant}, func(t *memTurn, l *lane) error {
		if h := t.load(l, e.ID); h != nil {
			return l.redeliver(h, e.State, force)
		}
		return ErrNotFound
	}, done)
}

func (m *Memory) Discard(e *Webhook, done func(error)) Work {
	return m.act(webhookgate.LaneName{Platform: e.Platform, Tenant: e.Tenant}, func(t *memTurn, l *lane) error {
		if h := t.load(l, e.ID); h != nil {
			return l.discard(h)
		}
		return ErrNotFound
	}, done)
}

func (m *Memory) Erase(name webhookgate.LaneName, done func(error)) Work {
	return m.act(name, func(t *memTurn, l *lane) error {
		noted := t.mustNote(l, "an erasure")
		_, err := l.erase()
		if err == nil {
			noted()
		}
		return err
	}, done)
}

func (m *Memory) Forget(name webhookgate.LaneName) Work {
	return m.act(name, func(t *memTurn, l *lane) error { l.forget(); return nil }, func(error) {})
}

func (m *Memory) Pause(name webhookgate.LaneName, yes bool, done func(error)) Work {
	return m.act(name, func(t *memTurn, l *lane) error { l.pause(yes); return nil }, done)
}

// List returns all webhooks, the newest first.
func (m *Memory) List() (all []*Webhook) {
	for _, hooks := range m.hooks {
		for _, h := range hooks {
			row := *h
			all = append(all, &row)
		}
	}
	slices.SortFunc(all, func(a, b *Webhook) int { return int(b.ID - a.ID) })
	return all
}

// Check says whether the lanes' counts are right.
func (m *Memory) Check() error {
	if m.fault != nil {
		return m.fault
	}
	for k, l := range m.lanes {
		if rows := m.missed[k]; len(rows) > 4 || (len(rows) > 0) != (l.missedSince > 0) {
			return fmt.Errorf("(j) %s is missed webhooks since %d, and has %d rows", l.Tenant, l.missedSince, len(rows))
		}
		if hooks := m.hooks[k]; len(hooks) > 0 && hooks[len(hooks)-1].ID > l.last {
			return fmt.Errorf("(j) the last number of %s is %d, and it has webhook %d", l.Tenant, l.last, hooks[len(hooks)-1].ID)
		}
		var waiting, parked, invalid, bytes, parkedSnapshots int64
		for _, h := range m.hooks[k] {
			parkedSnapshots += boolNumber(h.State == Parked && h.snapshot)
			invalid += boolNumber(h.State == Invalid)
			waiting += boolNumber(h.State == Waiting)
			parked += boolNumber(h.State == Parked)
			if h.State == Waiting || h.State == Parked {
				bytes += h.Size
			}
		}
		if parkedSnapshots > 1 {
			return fmt.Errorf("(h) %s has %d parked snapshots", l.Tenant, parkedSnapshots)
		}
		if waiting != l.waiting || parked != l.parked || invalid != l.invalid || bytes != l.bytes {
			return fmt.Errorf("(h) the counts of %s are wrong: %v, and there are %v; leased %d", l.Tenant, []int64{l.waiting, l.parked, l.invalid, l.bytes}, []int64{waiting, parked, invalid, bytes}, l.leasedID)
		}
	}
	return nil
}
