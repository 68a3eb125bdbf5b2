package inbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/webhookgate"
)

// What usher may have missed: webhooks that got a 5xx, whose tenants are missed them, and outages, in which no gate was there to take any.
//
// Whose webhook got a 5xx is in memory first (webhookgate.Missed), because mostly the database is away then. The writer moves it into the
// lanes as soon as it can, and there the tenant may have sent again meanwhile, through another replica.

// noteTaken notes that a webhook was taken in, or is a copy of one that was. That may settle what was missed. again: see lane.duplicate.
func (l *lane) noteTaken(in *incoming, again bool) {
	at := in.arrived
	if in.accepting != nil {
		at = in.accepting.Changed.UnixMicro() // what got a 5xx since then is newer
	}
	if at == 0 {
		return
	}
	if !again && (in.accepting == nil || at > l.takenAt) {
		l.taken, l.takenAt, l.takenSnapshot, l.noted = in.digest, at, in.snapshot, true
	}
	if left := l.missed.After(sha256Of(in.digest), in.snapshot && !again, moment(at)); len(left.Webhooks) < len(l.missed.Webhooks) {
		l.missed, l.dirty = left, true
	}
}

// miss notes webhooks of the tenant that got a 5xx, but for those that were settled before they could be noted here.
func (l *lane) miss(d webhookgate.MissedSet) {
	if d = l.unsettled(d); len(d.Webhooks) == 0 {
		return
	}
	for _, m := range d.Webhooks {
		l.missed = l.missed.Add(m)
	}
	if d.Since.Before(l.missed.Since) {
		l.missed.Since = d.Since
	}
	l.dirty = true
	if r := l.t.running; r == nil || r.Began.After(l.t.time()) || !d.Before(r.settlesBefore()) {
		l.note()
		return
	}
	// It arrived before the run that is under way, which is about to settle it. A later run may have an older list.
	l.lastAt = max(l.lastAt, d.Last().UnixMicro())
}

// unsettled returns what is still missed of webhooks that got a 5xx: their tenant may have sent them, or newer ones, again meanwhile, and a
// transaction in doubt may have stored them after all.
func (l *lane) unsettled(d webhookgate.MissedSet) webhookgate.MissedSet {
	known, taken, takenAt := l.t.rows.snapshot(l), sha256Of(l.taken), l.takenAt
	if takenAt > l.t.now { // a time in the future is from before the database's clock was set back, and says nothing
		takenAt = 0
	}
	// A webhook that is another one must have come a second later, because the clocks of replicas and database differ.
	before := takenAt - micros(maxJump)
	settled := func(m *webhookgate.MissedWebhook) bool {
		switch at := m.At.UnixMicro(); {
		case m.ID == l.tailID, known != nil && m.ID == known.Webhook: // an event may have come after the snapshot
			return true
		case m.Snapshot && l.hasSnapshot(m.Digest[:], nameOf(l.t.Receivers.For(l.Platform))):
			return true
		case takenAt == 0:
			return false
		case m.Digest == taken:
			return takenAt >= at
		default:
			return l.taken == nil && before > at // see settleMissed
		}
	}
	// Only the last webhook that was taken in is known here: if that is an earlier one of those that got a 5xx, the tenant counts as missed,
	// although one before it may have settled that.
	snapshots := false // the last of them says whether they are settled
	for i := range d.Webhooks {
		if m := &d.Webhooks[i]; m.Snapshot {
			snapshots = settled(m) || takenAt != 0 && m.Digest != taken && d.SettlesSnapshots(taken, l.takenSnapshot, moment(before))
		}
	}
	return d.Except(func(m *webhookgate.MissedWebhook) bool { return m.Snapshot && snapshots || !m.Snapshot && settled(m) })
}

// settleMissed says that nothing which arrived up to this time is missed any more. The caller knows that nothing has come for the lane
// since then; see lane.last.
func (l *lane) settleMissed(at int64) {
	l.missed, l.dirty = webhookgate.MissedSet{}, true
	if at > l.takenAt {
		l.taken, l.takenAt, l.takenSnapshot = nil, at, true
	}
}

// tick is by how much the time at which a webhook arrived may be wrong: an operating system counts in ticks.
const tick = 10 * time.Millisecond

// checkHeard says why a webhook is not taken in that arrived before usher stood still: its sender has gone; or other replicas have taken in a
// later state of the tenant. The lane is locked: so what comes later through others comes after this one. What
// is not taken in is missed, unless the lane has it, or a later state.
func (t *sqlTurn) checkHeard(l *lane, in *incoming, w *webhookgate.Webhook) error {
	if w.Heard == nil {
		return nil
	}
	stoodStill, gone := w.Heard()
	latest := t.s.clock.latest(w.Received) + micros(tick)
	switch {
	case !stoodStill:
		return nil
	case in.snapshot && l.takenSnapshot && l.takenAt > latest && l.takenAt <= t.now && !bytes.Equal(l.taken, in.digest):
		return webhookgate.ErrOvertaken
	case !gone:
		return nil
	}
	known := false
	t.tx.Queue("copy_since", func(r engine.Row) error { known = true; var seq int64; return r.Scan(&seq) }, l.Tenant, l.Platform, l.Type, in.digest, in.arrived-micros(10*tick))
	if t.send(); known {
		return webhookgate.ErrOvertaken
	}
	return webhookgate.ErrUnheard
}

func sha256Of(b []byte) (digest [sha256.Size]byte) {
	copy(digest[:], b)
	return digest
}

// readMissed reads the columns of a missed set, and since, microsOf and digests write them.
func readMissed(since, last int64, digests []byte) (d webhookgate.MissedSet) {
	if since == 0 {
		return d
	}
	d.Since = moment(since)
	for len(digests) >= sha256.Size {
		d.Webhooks = append(d.Webhooks, readMissedWebhook(digests, last))
		digests = digests[sha256.Size:]
	}
	return d
}

// readMissedWebhook reads a digest as a lane has it. Its last bit says whether it is that of an event.
func readMissedWebhook(digest []byte, at int64) webhookgate.MissedWebhook {
	m := webhookgate.MissedWebhook{Digest: sha256Of(digest), At: moment(at)}
	m.Snapshot = m.Digest[sha256.Size-1]&1 == 0
	return m
}

func since(d webhookgate.MissedSet) int64 {
	if len(d.Webhooks) == 0 {
		return 0
	}
	return max(1, d.Since.UnixMicro())
}

func microsOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func digests(d webhookgate.MissedSet) (all []byte) {
	for _, m := range d.Webhooks {
		m.Digest[sha256.Size-1] = m.Digest[sha256.Size-1]&^1 | byte(boolNumber(!m.Snapshot))
		all = append(all, m.Digest[:]...)
	}
	return all
}

// miss notes that a webhook got a 5xx.
func (s *Inbox) miss(w *webhookgate.Webhook) {
	m := webhookgate.MissedWebhook{ID: w.ID, Digest: w.Digest, Snapshot: w.Snapshot, Received: w.Received}
	if at := s.clock.at(w.Received); at != 0 {
		m.At = moment(at)
	}
	s.cfg.Missed.Add(w.Lane, m)
}

// at converts a time of ours into one of the database's clock; zero: that one is not known yet.
func (c *clockOffset) at(t time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return 0
	}
	return int64((c.offset + t.Sub(c.start)) / time.Microsecond)
}

// latest is like at, but the latest time that it can have been.
func (c *clockOffset) latest(t time.Time) int64 {
	at := c.at(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	return at + micros(c.uncertainty)
}

// dated returns a count with times of the database's clock, as far as that is known.
func (c *clockOffset) dated(u webhookgate.Unnamed) webhookgate.Unnamed {
	for _, t := range []*time.Time{&u.Since, &u.Last} {
		if at := c.at(*t); at != 0 && !t.IsZero() {
			*t = moment(at)
		}
	}
	return u
}

const (
	// maxMissedWorks is how many tenants one transaction notes with missed webhooks.
	maxMissedWorks = 64
	// owePause is the time until the next such transaction, after one that failed.
	owePause = time.Second
	// lastMissing is how long that may take when the inbox is closed.
	lastMissing = 2 * time.Second
)

// mayMiss says whether there is anything to move from memory into lanes, and no reason to wait.
func (s *Inbox) mayMiss() bool {
	return s.cfg.Missed.Len() > 0 && s.health.lastErr() == nil && s.engine.Full() == nil && time.Since(s.missedFailed) >= owePause
}

// storingMissed returns works that move what was missed from memory into lanes, unless there is a reason to wait.
func (s *Inbox) storingMissed() []*work {
	if !s.mayMiss() {
		return nil
	}
	return s.owingWorks()
}

func (s *Inbox) owingWorks() (works []*work) {
	for _, o := range s.cfg.Missed.Some(maxMissedWorks) {
		var digests [][]byte
		for _, m := range o.Webhooks {
			digests = append(digests, m.Digest[:])
		}
		failed := func(error) { s.missedFailed = time.Now() }
		works = append(works, &work{lanes: []webhookgate.Lane{o.Lane}, states: []webhookgate.Lane{o.Lane}, digests: digests, numbers: 1, running: true, failed: failed, decide: func(t *sqlTurn) func() {
			d := webhookgate.MissedSet{Since: o.Since}
			for _, m := range o.Webhooks {
				// The clock was read better since, or set. An older webhook must not settle this one.
				m.At = moment(min(t.now, s.clock.latest(m.Received)))
				d = d.Add(m)
			}
			for _, m := range d.Webhooks {
				if t.isRecorded(m) {
					d = d.Without(m.Digest)
				}
			}
			if len(d.Webhooks) > 0 {
				t.lanes[LaneOf(o.Lane)].miss(d)
			}
			return func() {
				s.changed() // first: it must always be in the one or in the other
				s.cfg.Missed.Drop(o)
			}
		}})
	}
	return works
}

// isRecorded says whether a webhook that got a 5xx is recorded as invalid all the same: its transaction was in doubt, or it has come again
// through another replica. Clocks differ by up to maxJump.
func (t *sqlTurn) isRecorded(m webhookgate.MissedWebhook) bool {
	c := t.copies[string(m.Digest[:])]
	return c != nil && c.State == Invalid && !c.gone && !c.Changed.Add(maxJump).Before(m.At)
}

// forgetMissed drops what was missed of a tenant, as far as it is in memory, and returns in which lanes there was something.
func (s *Inbox) forgetMissed(platform *string, tenant string) (lanes []webhookgate.Lane) {
	for _, o := range s.cfg.Missed.Some(0) {
		if o.Tenant == tenant && (platform == nil || o.Platform == *platform) && s.cfg.Missed.Forget(o.Lane) {
			lanes = append(lanes, LaneOf(o.Lane))
		}
	}
	return lanes
}

// closeMissed stores what was missed, before the inbox is closed. On a full disk, too: while usher runs, the last room there is for outcomes,
// but what is in memory now is bounded, and would be forgotten.
func (s *Inbox) closeMissed() {
	for began := time.Now(); s.health.lastErr() == nil && time.Since(began) < lastMissing; {
		works, before := s.owingWorks(), s.cfg.Missed.Len()
		s.missedFailed = time.Time{}
		if len(works) == 0 || s.commit(works) != nil {
			break
		}
		if !s.missedFailed.IsZero() && s.cfg.Missed.Len() >= before { // no number is left, for one: it would be the same again and again
			break
		}
	}
	s.beat(false)
	if n := s.cfg.Missed.Len(); n > 0 {
		s.cfg.Log.Error("the inbox cannot be written: after a restart usher does not know which tenants' webhooks got a 5xx. The log has them: 'webhook answered' with status 503", "tenants", n)
	}
}

// An Outage is a time in which no replica's gate was up and ready.
type Outage struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

const (
	// minOutage is the shortest outage.
	minOutage = time.Minute
	// beatInterval is how often a gate that is up and ready says so.
	beatInterval = 15 * time.Second
	// shownOutages is how many outages Stats has.
	shownOutages = 100
)

// A heartbeat is when this process last said that its gate is up and ready.
type heartbeat struct {
	up    bool          // the gate was up then
	at    clock.Instant // by our clock; zero: it never said so
	wrote int64         // by the database's
}

// outage says whether no gate was up for a while, and since when: last is when one last said so, by the database's clock, and now is its
// time; own is how long ago this process said so, whatever clocks were set to: while usher runs, that counts. Over a restart nobody knows what was done to clocks: if the
// database's went back, the outage begins after its end, which says so.
func (b *heartbeat) outage(own time.Duration, last, now int64) (began int64, found bool) {
	switch since := now - micros(own); {
	case last == 0: // the first start ever
		return 0, false
	case b.at.IsZero():
		return last, now-last >= micros(minOutage) || last-now > micros(minOutage)
	case last != b.wrote: // another replica was up later
		began = max(since, last)
	default:
		began = since
	}
	return began, now-began >= micros(minOutage)
}

// GateIsUp says that the gate takes webhooks from now on. So the inbox finds out at once whether there was an outage before.
func (s *Inbox) GateIsUp() {
	select {
	case s.gateIsUp <- struct{}{}:
	default:
	}
}

// beat says that the gate is up and ready, each beatInterval and when it ends, and stores the outage before, if there was one. It also stores
// how many webhooks got a 5xx before their tenant was known.
func (s *Inbox) beat(up bool) {
	b := &s.heart
	due := up && b.at.Elapsed() >= beatInterval || b.up && !up
	unnamed := s.cfg.Missed.Unnamed()
	if !due && unnamed.Count == 0 {
		return
	}
	var now int64
	var missed *Outage
	asked, at := time.Now(), clock.Now()
	err := s.write(func(tx engine.Tx) error {
		var last int64
		missed = nil
		tx.Queue("gate_up", func(r engine.Row) error { return r.Scan(&last) })
		tx.Now(&now)
		if err := tx.Send(); err != nil {
			return err
		}
		now = s.applyOffset(now)
		if due {
			if began, found := b.outage(b.at.Elapsed(), last, now); found {
				missed = &Outage{moment(began), moment(now)}
				tx.Queue("outage_add", nil, began, now, int64(0))
			}
			tx.Queue("gate_up_save", nil, now)
		}
		return storeUnnamed(tx, unnamed, now, asked)
	})
	if err != nil {
		return
	}
	if missed != nil {
		s.cfg.Log.Warn("no gate was ready to take webhooks for a while: usher may have missed some", "from", missed.From, "to", missed.To)
	}
	if due {
		s.heart = heartbeat{up, at, now}
	}
	s.changed() // first: they must always be in the one or in the other
	s.asked.Store(s.asked.Load() || due)
	s.cfg.Missed.DropUnnamed(unnamed)
}

// storeUnnamed adds webhooks without a tenant to the row of this hour. asked is our time before the database's was read: so they may seem to
// have come a little later than they did, but never before a reconcile that had begun earlier.
func storeUnnamed(tx engine.Tx, u webhookgate.Unnamed, now int64, asked time.Time) error {
	if u.Count == 0 {
		return nil
	}
	since, last, known := now-micros(asked.Sub(u.Since)), now-micros(asked.Sub(u.Last)), false
	tx.Queue("unnamed_count", func(r engine.Row) error { known = true; var began int64; return r.Scan(&began) }, last, int64(u.Count), now-micros(time.Hour), since)
	if err := tx.Send(); err != nil || known {
		return err
	}
	tx.Queue("outage_add", nil, since, last, int64(u.Count))
	return nil
}

// endOutages queues the end of all outages up to a time, and of what was missed without a name: somebody has asked the service itself since.
func endOutages(tx engine.Tx, upTo int64) { tx.Queue("outage_end", nil, upTo) }

// Dismiss says that outages, and what was missed without a name, are dealt with, if they ended until then; zero: all. It returns how many outages
// and how many webhooks that were.
func (s *Inbox) Dismiss(until time.Time, by *Action) (outages, webhooks int, err error) {
	upTo, ours := int64(never), time.Time{}
	if !until.IsZero() {
		upTo = until.UnixMicro()
		ahead := until.Sub(s.Now())
		ours = time.Now().Add(ahead)
	}
	dropped := s.cfg.Missed.Dismiss(ours)
	type counts struct{ outages, webhooks int }
	n, err := act(s, work{by: by}, func(t *sqlTurn) (n counts, touched int, err error) {
		t.tx.Queue("outage_dismiss", func(r engine.Row) error {
			var webhooks int64
			err := r.Scan(&webhooks)
			n.webhooks += int(webhooks)
			n.outages += int(boolNumber(webhooks == 0))
			return err
		}, upTo)
		t.send()
		return n, n.webhooks + dropped.Count, nil
	})
	if err != nil {
		s.cfg.Missed.AddUnnamed(dropped)
		return 0, 0, err
	}
	return n.outages, n.webhooks + dropped.Count, nil
}

// Missed is what usher may have missed.
type Missed struct {
	Tenants int                 `json:"tenants"`        // whose webhooks got a 5xx, and who have not sent again since
	More    bool                `json:"more,omitempty"` // there are more of them, whose names usher could not keep: they are in Unnamed
	Since   time.Time           `json:"since,omitzero"` // when the first of these webhooks arrived
	Last    time.Time           `json:"last,omitzero"`  // and the last
	Unnamed webhookgate.Unnamed `json:"unnamed"`        // webhooks that got a 5xx before their tenant was known
	Outages []Outage            `json:"outages"`        // the newest first

	stored map[TenantRef]bool // the tenants that the inbox has
}

// MissedTenants returns some of the tenants whose webhooks were missed, those first that are missed them for longest.
func (s *Inbox) MissedTenants(ctx context.Context, most int) (all []Tenant, err error) {
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("missed_tenants", func(r engine.Row) error {
			var t Tenant
			var since int64
			err := r.Scan(&t.Platform, &t.Tenant, &since)
			t.Missed = moment(since)
			all = append(all, t)
			return err
		}, int64(most))
		return tx.Send()
	})
	for _, o := range s.cfg.Missed.List() {
		if len(all) < most && !slices.ContainsFunc(all, func(t Tenant) bool { return t.Platform == o.Platform && t.Tenant == o.Tenant }) {
			all = append(all, Tenant{Platform: o.Platform, Tenant: o.Tenant, Missed: o.Since})
		}
	}
	return all, err
}

// MissedOf returns since when a tenant is missed webhooks, and when the last of them arrived; zeros: it is missed none.
func (s *Inbox) MissedOf(ctx context.Context, platform, tenant string) (since, last time.Time, err error) {
	lanes, err := s.lanesOf(ctx, &platform, tenant)
	d := s.cfg.Missed.Of(webhookgate.Lane{Platform: platform, Tenant: tenant})
	for _, l := range lanes {
		for _, m := range d.Webhooks {
			l.missed = l.missed.Add(m)
		}
		d = l.missed
	}
	return d.Since, d.Last(), err
}

// MissedInMemory is what usher may have missed without an inbox.
func MissedInMemory(missed *webhookgate.Missed) Missed {
	return Missed{}.with(missed.Some(0), missed.Full(), missed.Unnamed())
}

// with adds what is in memory. A tenant may be in both: it had missed webhooks when the database went away, or is being moved.
func (m Missed) with(inMemory []webhookgate.MissedTenant, full bool, unnamed webhookgate.Unnamed) Missed {
	for _, o := range inMemory {
		if !m.stored[TenantRef{o.Platform, o.Tenant}] {
			m.Tenants++
		}
		if m.Since.IsZero() || o.Since.Before(m.Since) {
			m.Since = o.Since
		}
		if o.Last().After(m.Last) {
			m.Last = o.Last()
		}
	}
	m.More = full
	m.Unnamed = m.Unnamed.Add(unnamed)
	return m
}

// maxStoredMissed is of how many missed tenants usher knows whether the database has them. Beyond it a tenant may count twice.
const maxStoredMissed = 10_000

// queueMissed queues the reading of what the database has.
func queueMissed(tx engine.Tx, m *Missed) {
	tx.Queue("missed_count", func(r engine.Row) error {
		var since, last int64
		err := r.Scan(&m.Tenants, &since, &last)
		if m.Tenants > 0 {
			m.Since, m.Last = moment(since), moment(last)
		}
		return err
	})
	m.stored = make(map[TenantRef]bool)
	tx.Queue("missed_tenants", func(r engine.Row) error {
		var t TenantRef
		err := r.Scan(&t.Platform, &t.Tenant, new(int64))
		m.stored[t] = true
		return err
	}, int64(maxStoredMissed))
	tx.Queue("outages", func(r engine.Row) error {
		var began, ended, webhooks int64
		err := r.Scan(&began, &ended, &webhooks)
		if webhooks > 0 {
			m.Unnamed = m.Unnamed.Add(webhookgate.Unnamed{Count: int(webhooks), Since: moment(began), Last: moment(ended)})
		} else {
			m.Outages = append(m.Outages, Outage{moment(began), moment(ended)})
		}
		return err
	}, int64(shownOutages))
}
