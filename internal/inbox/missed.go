package inbox

import (
	"context"
	"crypto/sha256"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/webhookgate"
)

// What usher may have missed: webhooks that got a 5xx, whose tenants are owed them, and gaps, in which no gate was there to take any.
//
// Whose webhook got a 5xx is in memory first (webhookgate.Owed), because mostly the database is away then. The writer moves it into the
// lanes as soon as it can, and there the tenant may have sent again meanwhile, through another replica.

// noteTaken notes that a webhook was taken in, or is a copy of one that was. That may settle what is owed. again: see lane.duplicate.
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
	if len(l.owed.Missed) > 0 && l.owed.SettledBy(sha256Of(in.digest), in.snapshot && !again, moment(at)) {
		l.owed, l.dirty = webhookgate.Debt{}, true
	}
}

// owe notes webhooks of the tenant that got a 5xx, unless it has sent again meanwhile, or the last was stored after all, by a transaction
// that was in doubt.
func (l *lane) owe(d webhookgate.Debt) {
	if l.settled(d) {
		return
	}
	for _, m := range d.Missed {
		l.owed = l.owed.Add(m)
	}
	if d.Since.Before(l.owed.Since) {
		l.owed.Since = d.Since
	}
	l.dirty = true
	if r := l.t.running; r == nil || r.Began.After(l.t.time()) || !d.Before(r.settlesBefore()) {
		l.note()
		return
	}
	// It arrived before the run that is under way, which is about to settle it. A later run may have an older list.
	l.lastAt = max(l.lastAt, d.Last().UnixMicro())
}

// settled says whether what got a 5xx was settled before it could be noted here.
func (l *lane) settled(d webhookgate.Debt) bool {
	known := l.t.rows.snapshot(l)
	switch last := d.Missed[len(d.Missed)-1]; {
	case last.ID == l.tailID, known != nil && last.ID == known.Webhook: // an event may have come after the snapshot
		return true
	case last.Snapshot && l.hasSnapshot(last.Digest[:], nameOf(l.t.Receivers.For(l.Platform))):
		return true
	case l.takenAt == 0 || l.takenAt > l.t.now: // a time in the future is from before the database's clock was set back, and says nothing
		return false
	case sha256Of(l.taken) == last.Digest:
		return l.takenAt >= last.At.UnixMicro()
	}
	// A webhook that is another one must have come a second later, because the clocks of replicas and database differ. Only the last
	// webhook is known here: if that is an earlier one of those that got a 5xx, the tenant counts as owed, although one before it may
	// have settled that.
	return d.SettledBy(sha256Of(l.taken), l.takenSnapshot, moment(l.takenAt-micros(maxJump)))
}

// settleOwed says that nothing which arrived up to this time is owed any more. The caller knows that nothing has come for the lane
// since then; see lane.last.
func (l *lane) settleOwed(at int64) {
	l.owed, l.dirty = webhookgate.Debt{}, true
	if at > l.takenAt {
		l.taken, l.takenAt, l.takenSnapshot = nil, at, true
	}
}

func sha256Of(b []byte) (digest [sha256.Size]byte) {
	copy(digest[:], b)
	return digest
}

// readDebt reads the columns of a debt, and since, microsOf and digests write them.
func readDebt(since, last int64, digests []byte) (d webhookgate.Debt) {
	if since == 0 {
		return d
	}
	d.Since = moment(since)
	for len(digests) >= sha256.Size {
		d.Missed = append(d.Missed, webhookgate.Missed{Digest: sha256Of(digests), At: moment(last)})
		digests = digests[sha256.Size:]
	}
	return d
}

func since(d webhookgate.Debt) int64 {
	if len(d.Missed) == 0 {
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

func digests(d webhookgate.Debt) (all []byte) {
	for _, m := range d.Missed {
		all = append(all, m.Digest[:]...)
	}
	return all
}

// oweTo notes that a webhook got a 5xx.
func (s *Inbox) oweTo(w *webhookgate.Webhook) {
	m := webhookgate.Missed{ID: w.ID, Digest: w.Digest, Snapshot: w.Snapshot, Received: w.Received}
	if at := s.clock.at(w.Received); at != 0 {
		m.At = moment(at)
	}
	s.cfg.Owed.Add(w.Lane, m)
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
	// maxOweWorks is how many tenants one transaction notes that usher owes something.
	maxOweWorks = 64
	// owePause is the time until the next such transaction, after one that failed.
	owePause = time.Second
	// lastOwe is how long that may take when the inbox is closed.
	lastOwe = 2 * time.Second
)

// mayOwe says whether there is anything to move from memory into lanes, and no reason to wait.
func (s *Inbox) mayOwe() bool {
	return s.cfg.Owed.Len() > 0 && s.health.lastErr() == nil && s.engine.Full() == nil && time.Since(s.oweFailed) >= owePause
}

// owing returns works that move what is owed from memory into lanes, unless there is a reason to wait.
func (s *Inbox) owing() []*work {
	if !s.mayOwe() {
		return nil
	}
	return s.owingWorks()
}

func (s *Inbox) owingWorks() (works []*work) {
	for _, o := range s.cfg.Owed.Some(maxOweWorks) {
		var digests [][]byte
		for _, m := range o.Missed {
			digests = append(digests, m.Digest[:])
		}
		failed := func(error) { s.oweFailed = time.Now() }
		works = append(works, &work{lanes: []webhookgate.Lane{o.Lane}, states: []webhookgate.Lane{o.Lane}, digests: digests, numbers: 1, running: true, failed: failed, decide: func(t *sqlTurn) func() {
			d := webhookgate.Debt{Since: o.Since}
			for _, m := range o.Missed {
				// The clock was read better since, or set. An older webhook must not settle this one.
				m.At = moment(min(t.now, s.clock.latest(m.Received)))
				d = d.Add(m)
			}
			for _, m := range d.Missed {
				if t.isRefused(m) {
					d = d.Without(m.Digest)
				}
			}
			if len(d.Missed) > 0 {
				t.lanes[LaneOf(o.Lane)].owe(d)
			}
			return func() {
				s.mu.Lock()
				s.figures.changeCount++ // first: it must always be in the one or in the other
				s.mu.Unlock()
				s.cfg.Owed.Drop(o)
			}
		}})
	}
	return works
}

// isRefused says whether a webhook that got a 5xx is stored as refused all the same: its transaction was in doubt, or it has come again
// through another replica. Clocks differ by up to maxJump.
func (t *sqlTurn) isRefused(m webhookgate.Missed) bool {
	c := t.copies[string(m.Digest[:])]
	return c != nil && c.State == Refused && !c.gone && !c.Changed.Add(maxJump).Before(m.At)
}

// forgetOwed drops what is owed to a tenant, as far as it is in memory, and returns in which lanes there was something.
func (s *Inbox) forgetOwed(platform *string, tenant string) (lanes []webhookgate.Lane) {
	for _, o := range s.cfg.Owed.Some(0) {
		if o.Tenant == tenant && (platform == nil || o.Platform == *platform) && s.cfg.Owed.Forget(o.Lane) {
			lanes = append(lanes, LaneOf(o.Lane))
		}
	}
	return lanes
}

// closeOwed stores what is owed, before the inbox is closed. On a full disk, too: while usher runs, the last room there is for outcomes,
// but what is in memory now is bounded, and would be forgotten.
func (s *Inbox) closeOwed() {
	for began := time.Now(); s.health.lastErr() == nil && time.Since(began) < lastOwe; {
		works, before := s.owingWorks(), s.cfg.Owed.Len()
		s.oweFailed = time.Time{}
		if len(works) == 0 || s.commit(works) != nil {
			break
		}
		if !s.oweFailed.IsZero() && s.cfg.Owed.Len() >= before { // no number is left, for one: it would be the same again and again
			break
		}
	}
	s.beat(false)
	if n := s.cfg.Owed.Len(); n > 0 {
		s.cfg.Log.Error("the inbox cannot be written: after a restart usher does not know which tenants' webhooks got a 5xx. The log has them: 'webhook answered' with status 503", "tenants", n)
	}
}

// A Gap is a time in which no replica's gate was up and ready.
type Gap struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

const (
	// minGap is the shortest gap.
	minGap = time.Minute
	// beatInterval is how often a gate that is up and ready says so.
	beatInterval = 15 * time.Second
	// shownGaps is how many gaps Stats has.
	shownGaps = 100
)

// A heartbeat is when this process last said that its gate is up and ready.
type heartbeat struct {
	up    bool      // the gate was up then
	at    time.Time // by our clock; zero: it never said so
	wrote int64     // by the database's
}

// gap says whether no gate was up for a while, and since when: last is when one last said so, by the database's clock, and now is its
// time. If this process has said so itself, it knows better than a clock that may have been set meanwhile.
func (b *heartbeat) gap(last, now int64) (began int64, found bool) {
	apart, never := now-last, b.at.IsZero()
	awake, own := micros(time.Since(b.at)), micros(clock.Since(b.at))
	setBack := apart < -micros(minGap)
	if !setBack { // what is more than awake is sleep, or our clock was set: then the database's knows nothing of it
		own = max(awake, min(own, apart))
	}
	switch {
	case last == 0 || !never && own < micros(minGap):
		return 0, false // the first start ever, or this one was up
	case never && setBack:
		return now, true // nobody knows for how long
	case !never && (setBack || last == b.wrote):
		return now - own, true
	}
	return last, apart >= micros(minGap)
}

// beat says that the gate is up and ready, each beatInterval and when it ends, and stores the gap before, if there was one. It also stores
// how many webhooks got a 5xx before their tenant was known.
func (s *Inbox) beat(up bool) {
	b := &s.heart
	due := up && clock.Since(b.at) >= beatInterval || b.up && !up
	unnamed := s.cfg.Owed.DropUnnamed()
	if !due && unnamed.Count == 0 {
		return
	}
	var now int64
	var missed *Gap
	asked := time.Now()
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
			if began, found := b.gap(last, now); found {
				missed = &Gap{moment(began), moment(now)}
				tx.Queue("gap_add", nil, began, now, int64(0))
			}
			tx.Queue("gate_up_save", nil, now)
		}
		return storeUnnamed(tx, unnamed, now, asked)
	})
	if err != nil {
		s.cfg.Owed.AddUnnamed(unnamed)
		return
	}
	if missed != nil {
		s.cfg.Log.Warn("no gate was ready to take webhooks for a while: usher may have missed some", "from", missed.From, "to", missed.To)
	}
	if due {
		s.heart = heartbeat{up, asked, now}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.figures.changeCount++
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
	tx.Queue("gap_add", nil, since, last, int64(u.Count))
	return nil
}

// endGaps queues the end of all gaps up to a time, and of what is owed without a name: somebody has asked the service itself since.
func endGaps(tx engine.Tx, upTo int64) { tx.Queue("gap_end", nil, upTo) }

// Dismiss says that gaps, and what is owed without a name, are dealt with, if they ended until then; zero: all. It returns how many gaps
// and how many webhooks that were.
func (s *Inbox) Dismiss(until time.Time, by *Action) (gaps, webhooks int, err error) {
	upTo, ours := int64(never), time.Time{}
	if !until.IsZero() {
		upTo = until.UnixMicro()
		ahead := until.Sub(s.Now())
		ours = time.Now().Add(ahead)
	}
	dropped := s.cfg.Owed.Dismiss(ours)
	type counts struct{ gaps, webhooks int }
	n, err := act(s, work{by: by}, func(t *sqlTurn) (n counts, touched int, err error) {
		t.tx.Queue("gap_dismiss", func(r engine.Row) error {
			var webhooks int64
			err := r.Scan(&webhooks)
			n.webhooks += int(webhooks)
			n.gaps += int(boolNumber(webhooks == 0))
			return err
		}, upTo)
		t.send()
		return n, n.webhooks + dropped.Count, nil
	})
	if err != nil {
		s.cfg.Owed.AddUnnamed(dropped)
		return 0, 0, err
	}
	return n.gaps, n.webhooks + dropped.Count, nil
}

// Owed is what usher may have missed.
type Owed struct {
	Tenants int                 `json:"tenants"`        // whose webhooks got a 5xx, and who have not sent again since
	More    bool                `json:"more,omitempty"` // there are more of them, whose names usher could not keep: they are in Unnamed
	Since   time.Time           `json:"since,omitzero"` // when the first of these webhooks arrived
	Last    time.Time           `json:"last,omitzero"`  // and the last
	Unnamed webhookgate.Unnamed `json:"unnamed"`        // webhooks that got a 5xx before their tenant was known
	Gaps    []Gap               `json:"gaps"`           // the newest first

	stored map[TenantRef]bool // the tenants that the inbox has
}

// OwedTenants returns some of the tenants that are owed webhooks, those first that are owed them for longest.
func (s *Inbox) OwedTenants(ctx context.Context, most int) (all []Tenant, err error) {
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("owed_tenants", func(r engine.Row) error {
			var t Tenant
			var since int64
			err := r.Scan(&t.Platform, &t.Tenant, &since)
			t.Owed = moment(since)
			all = append(all, t)
			return err
		}, int64(most))
		return tx.Send()
	})
	for _, o := range s.cfg.Owed.List() {
		if len(all) < most && !slices.ContainsFunc(all, func(t Tenant) bool { return t.Platform == o.Platform && t.Tenant == o.Tenant }) {
			all = append(all, Tenant{Platform: o.Platform, Tenant: o.Tenant, Owed: o.Since})
		}
	}
	return all, err
}

// Owes returns since when a tenant is owed webhooks, and when the last of them arrived; zeros: it is owed none.
func (s *Inbox) Owes(ctx context.Context, platform, tenant string) (since, last time.Time, err error) {
	lanes, err := s.lanesOf(ctx, &platform, tenant)
	d := s.cfg.Owed.Of(webhookgate.Lane{Platform: platform, Tenant: tenant})
	for _, l := range lanes {
		for _, m := range d.Missed {
			l.owed = l.owed.Add(m)
		}
		d = l.owed
	}
	return d.Since, d.Last(), err
}

// OwedInMemory is what usher may have missed without an inbox.
func OwedInMemory(owed *webhookgate.Owed) Owed {
	return Owed{}.with(owed.Some(0), owed.Full(), owed.Unnamed())
}

// with adds what is in memory. A tenant may be in both: it was owed something when the database went away, or is being moved.
func (m Owed) with(inMemory []webhookgate.Owing, full bool, unnamed webhookgate.Unnamed) Owed {
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

// maxStoredOwed is of how many owed tenants usher knows whether the database has them. Beyond it a tenant may count twice.
const maxStoredOwed = 10_000

// queueOwed queues the reading of what the database has.
func queueOwed(tx engine.Tx, m *Owed) {
	tx.Queue("owed_count", func(r engine.Row) error {
		var since, last int64
		err := r.Scan(&m.Tenants, &since, &last)
		if m.Tenants > 0 {
			m.Since, m.Last = moment(since), moment(last)
		}
		return err
	})
	m.stored = make(map[TenantRef]bool)
	tx.Queue("owed_tenants", func(r engine.Row) error {
		var t TenantRef
		err := r.Scan(&t.Platform, &t.Tenant, new(int64))
		m.stored[t] = true
		return err
	}, int64(maxStoredOwed))
	tx.Queue("gaps", func(r engine.Row) error {
		var began, ended, webhooks int64
		err := r.Scan(&began, &ended, &webhooks)
		if webhooks > 0 {
			m.Unnamed = m.Unnamed.Add(webhookgate.Unnamed{Count: int(webhooks), Since: moment(began), Last: moment(ended)})
		} else {
			m.Gaps = append(m.Gaps, Gap{moment(began), moment(ended)})
		}
		return err
	}, int64(shownGaps))
}
