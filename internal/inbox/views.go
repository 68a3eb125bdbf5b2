package inbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/clock"
	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/snapshot"
	"usher/internal/text"
	"usher/webhookgate"
)

// What people see. All of it are queries, with the same result on every replica.

// readPatience is how long a query may take.
const readPatience = 30 * time.Second

// read runs fn on one consistent state of the database, until ctx ends, or the inbox does.
func (s *Inbox) read(ctx context.Context, fn func(engine.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	defer context.AfterFunc(s.run, cancel)()
	select {
	case <-s.opened:
	case <-ctx.Done():
	}
	if !s.Ready() {
		return s.outage()
	}
	return s.engine.Read(ctx, fn)
}

// browse is read for what people look at and what takes seconds if much is stored: lists and histories. However many
// people look, half of the connections are left for what programs need.
func (s *Inbox) browse(ctx context.Context, fn func(engine.Tx) error) error {
	if err := s.startBrowsing(ctx); err != nil {
		return err
	}
	defer s.endBrowsing()
	return s.read(ctx, fn)
}

// listOf returns what one statement finds, as scan reads its rows. how is read or browse.
func listOf[T any](
	ctx context.Context, how func(context.Context, func(engine.Tx) error) error,
	scan func(engine.Row) (T, error), name string, args ...any,
) (all []T, err error) {
	err = how(ctx, func(tx engine.Tx) error {
		tx.Queue(name, into(&all, scan), args...)
		return tx.Send()
	})
	return all, err
}

// into returns what Tx.Queue calls for each row: it adds the row to a list, also one that is damaged, as far as it can
// be read.
func into[T any](all *[]T, scan func(engine.Row) (T, error)) func(engine.Row) error {
	return func(r engine.Row) error {
		row, err := scan(r)
		if _, other := engine.Unreadable(err); other == nil {
			*all = append(*all, row)
		}
		return err
	}
}

func scanText(r engine.Row) (text string, err error) {
	err = r.Scan(&text)
	return text, err
}

// startBrowsing waits until few enough others browse. An export, which may take longer than read allows, calls it
// itself.
func (s *Inbox) startBrowsing(ctx context.Context) error {
	select {
	case s.browsing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &engine.AwayError{Err: busy{ctx.Err()}}
	case <-s.run.Done():
		return ErrClosed
	}
}

func (s *Inbox) endBrowsing() { <-s.browsing }

// busy is a wait for others who browse that has lasted too long.
type busy struct{ error }

func (busy) Error() string {
	return "too many large lists are being read from the inbox: try again in a minute"
}
func (e busy) Unwrap() error { return e.error }

// Filter selects webhooks; empty fields select all.
type Filter struct {
	State    lane.State
	Tenant   string
	Platform *string   // nil: any
	Since    time.Time // received at that time or later
	Until    time.Time // received before
	Search   string    // an id; or text, in upper or lower case, of the body, tenant, platform, type or webhook-id
	Before   int64     // only ids below this one, to continue a former list
	After    int64     // if it is not zero: only ids above this one, and the oldest come first
	Limit    int       // only so many, the first; 0: all
}

// match checks the conditions that are not part of the query.
func (f *Filter) match(w *lane.Webhook) bool {
	switch {
	case f.Tenant != "" && w.Tenant != f.Tenant, f.Platform != nil && w.Platform != *f.Platform:
		return false
	case f.Search == "", f.Search == strconv.FormatInt(w.ID, 10):
		return true
	}
	search := strings.ToLower(f.Search)
	for _, s := range []string{w.Tenant, w.Platform, w.Type, w.UUID} {
		if strings.Contains(strings.ToLower(s), search) {
			return true
		}
	}
	return bytes.Contains(bytes.ToLower(w.Body), []byte(search))
}

// pageSize is how many rows one query returns: a long list must not keep a transaction open for long.
const pageSize = 500

// List returns the webhooks that f selects, newest first, without their content.
func (s *Inbox) List(ctx context.Context, f Filter) ([]*lane.Webhook, error) {
	var out []*lane.Webhook
	err := s.Each(ctx, f, false, func(w *lane.Webhook) bool {
		w.Header, w.Body, w.HasContent = nil, nil, false // a search has read them
		out = append(out, w)
		return f.Limit == 0 || len(out) < f.Limit
	})
	return out, err
}

// Each calls fn for the webhooks that f selects, newest first, until fn returns false. If withContent is true they
// have their content, and their tenant's snapshot before them (Webhook.Previous).
func (s *Inbox) Each(ctx context.Context, f Filter, withContent bool, fn func(*lane.Webhook) bool) error {
	return s.pages(ctx, f, withContent, func(page []*lane.Webhook) (more bool, err error) {
		for i, w := range page {
			if page[i] = nil; withContent { // one at a time, since what was before it may be large, too
				if err := s.addPrevious(ctx, []*lane.Webhook{w}); err != nil {
					return false, err
				}
			}
			if !fn(w) {
				return false, nil
			}
		}
		return true, nil
	})
}

// EachPage calls fn for some hundred of the webhooks that f selects at a time, newest first, without their content.
func (s *Inbox) EachPage(ctx context.Context, f Filter, fn func([]*lane.Webhook) error) error {
	return s.pages(ctx, f, false, func(page []*lane.Webhook) (bool, error) { return true, fn(page) })
}

// An eachPage gets one page of a list after the other, until it returns false.
type eachPage func(page []*lane.Webhook) (more bool, err error)

// pages reads the webhooks that f selects, newest first, page by page, until fn returns false. No transaction lasts
// longer than a page.
func (s *Inbox) pages(ctx context.Context, f Filter, withContent bool, fn eachPage) error {
	if !storable(f.Tenant) {
		return nil
	}
	from, up := cmp.Or(f.Before, clock.Never), ""
	if f.After > 0 {
		from, up = f.After, "_up"
	}
	state := int64(-1)
	if f.State != "" {
		state = f.State.Number()
	}
	in := periodOf(f.Since, f.Until)
	query := func(bodies bool, size int64) (page []*lane.Webhook, err error) {
		err = s.browse(ctx, func(tx engine.Tx) error {
			each := into(&page, scanWhole)
			args := []any{from, state, in.from, in.to, boolNumber(bodies), size}
			switch {
			case f.Tenant != "" && f.Platform != nil:
				tx.Queue("list_lane"+up, each, append(args, f.Tenant, *f.Platform)...)
			case f.Tenant != "":
				tx.Queue("list_tenant"+up, each, append(args, f.Tenant)...)
			case f.State == lane.Parked || f.State == lane.Invalid:
				tx.Queue("list_parked_or_invalid"+up, each, args...)
			default:
				tx.Queue("list"+up, each, args...)
			}
			return tx.Send()
		})
		return page, err
	}
	for {
		size := int64(pageSize)
		if f.Limit > 0 && f.Limit < pageSize && f.Search == "" {
			size = int64(f.Limit)
		}
		bodies := withContent || f.Search != ""
		if bodies { // first without them, because they may be large
			sizes, err := query(false, min(size, 50))
			if err != nil || len(sizes) == 0 {
				return err
			}
			size = s.fitting(sizes)
		}
		page, err := query(bodies, size)
		if err != nil {
			return err
		}
		last := int64(len(page)) < size
		if !last {
			from = page[size-1].ID
		}
		page = slices.DeleteFunc(page, func(w *lane.Webhook) bool { return !f.match(w) })
		if more, err := fn(page); err != nil || !more || last {
			return err
		}
	}
}

// Behind returns those of some webhooks that wait behind another of their tenant that f selects by its times. (A
// search may not find that one: then all that it finds are returned as if they were the first.)
func (s *Inbox) Behind(ctx context.Context, f Filter, page []*lane.Webhook) (map[int64]bool, error) {
	behind := make(map[int64]bool)
	var waiting engine.Among
	for _, w := range page {
		if w.State == lane.Waiting && w.Tenant != "" && f.Search == "" {
			waiting = append(waiting, w.ID)
		}
	}
	if len(waiting) == 0 {
		return behind, nil
	}
	in := periodOf(f.Since, f.Until)
	return behind, s.browse(ctx, func(tx engine.Tx) error {
		tx.Queue("waiting_behind", func(r engine.Row) error {
			var id int64
			err := r.Scan(&id)
			behind[id] = true
			return err
		}, waiting, in.from, in.to)
		return tx.Send()
	})
}

// Gone returns how many tenants of a platform are known whose last webhook the inbox no longer has, and the first ten
// of them.
func (s *Inbox) Gone(ctx context.Context, platform string) (count int, some []string, err error) {
	err = s.browse(ctx, func(tx engine.Tx) error {
		tx.Queue("tenants_without_webhooks", func(r engine.Row) error {
			var tenant string
			err := r.Scan(&tenant, &count)
			some = append(some, ShowTenant(platform, tenant))
			return err
		}, platform)
		return tx.Send()
	})
	return count, some, err
}

// fitting is how many of these webhooks, one at least, can be held at once with their bodies.
func (s *Inbox) fitting(page []*lane.Webhook) (count int64) {
	bytes := int64(0)
	for _, w := range page {
		if bytes += w.Size; count > 0 && bytes > s.cfg.Limits.PageBytes {
			break
		}
		count++
	}
	return count
}

// Show returns a webhook with its content, and with its tenant's snapshot before it.
func (s *Inbox) Show(ctx context.Context, id int64) (*lane.Webhook, error) {
	w, err := s.find(ctx, id)
	if err != nil {
		return nil, err
	}
	return w, s.addPrevious(ctx, []*lane.Webhook{w})
}

// addPrevious adds to webhooks with their content what their tenants had before them, and says which of them are
// damaged.
func (s *Inbox) addPrevious(ctx context.Context, all []*lane.Webhook) error {
	byID := make(map[int64]*lane.Webhook)
	var lanes []webhookgate.LaneName
	var ids []int64
	for _, w := range all {
		if w.State != lane.Invalid && w.State != lane.Replaced && w.Check() != nil {
			w.Why = lane.ErrDamaged.Error()
		}
		hasState := w.Snapshot || w.Rejected() && w.Type == content.TenantProvisioningChange
		if hasState && w.LaneName != (webhookgate.LaneName{}) {
			byID[w.ID] = w
			lanes, ids = append(lanes, w.LaneName), append(ids, w.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	tenants, platforms, types := laneColumns(lanes)
	return s.browse(ctx, func(tx engine.Tx) error {
		tx.Queue("previous", func(r engine.Row) error {
			var id, accepted int64
			p := new(lane.Webhook)
			if err := r.Scan(&id, &p.ID, &accepted, &p.Body); err != nil {
				return err
			}
			w := byID[id]
			w.Before = max(w.Before, p.ID)
			if accepted != 0 {
				w.Previous = p
			}
			return nil
		}, tenants, platforms, types, ids)
		return tx.Send()
	})
}

// Snapshots returns the last snapshot of every tenant with one of these codes, on whichever platform.
func (s *Inbox) Snapshots(ctx context.Context, tenants []string) (all []snapshot.Stored, err error) {
	tenants = slices.DeleteFunc(slices.Clone(tenants), func(code string) bool { return !storable(code) })
	if len(tenants) == 0 {
		return nil, nil
	}
	return listOf(ctx, s.read, scanSnapshot, "snapshots", tenants)
}

// Platforms returns the platforms on which a tenant is known, even if only by a pause, by a webhook that got a 5xx,
// or by a reconcile.
func (s *Inbox) Platforms(ctx context.Context, tenant string) (all []string, err error) {
	lanes, err := s.lanesOf(ctx, nil, tenant)
	for _, l := range lanes {
		if l.Tail > 0 || l.Invalid > 0 || l.Paused || len(l.Missed) > 0 {
			all = append(all, l.Platform)
		}
	}
	for name := range s.cfg.Missed.All() {
		if name.Tenant == tenant {
			all = append(all, name.Platform)
		}
	}
	if err == nil && storable(tenant) {
		var found []string
		found, err = listOf(ctx, s.read, scanText, "finding_platforms", tenant)
		all = append(all, found...)
	}
	slices.Sort(all)
	return slices.Compact(all), err
}

// Figures count webhooks, of the whole inbox or of one receiver.
type Figures struct {
	Pending     int           // webhooks that wait or are being delivered
	Oldest      time.Duration // the age of the oldest of them
	Parked      int
	NotAccepted int // lanes whose first webhook's last try failed, and began since the receiver was last back

	// Only of a receiver.
	FailsForEverybody bool      // several tenants have begun to fail, and nothing was accepted since
	FailingSince      time.Time // when the first of these began to fail; zero: none did since something was accepted
	LastAccepted      time.Time // zero: nothing was, or not since a long time ago

	back int64 // when this process saw that the receiver was back after it had failed for everybody; zero: it did not
}

// at returns the figures with what the database says of all replicas, and of the time before a restart: each process
// may see fewer tenants fail than count as everybody, and another may have delivered something meanwhile. What was
// counted may be some seconds old.
func (f Figures) at(counted *Figures) Figures {
	if counted.LastAccepted.After(f.FailingSince) {
		f.FailsForEverybody = false
	}
	if counted.FailsForEverybody && !f.FailsForEverybody && !f.LastAccepted.After(counted.FailingSince) {
		f.FailsForEverybody, f.FailingSince = true, counted.FailingSince
	}
	if counted.LastAccepted.After(f.LastAccepted) {
		f.LastAccepted = counted.LastAccepted
	}
	return f
}

// Down says whether a receiver takes nothing. People and metrics go by this, and by the same rule as deliveries.
func (f Figures) Down() bool { return f.FailsForEverybody && f.NotAccepted > 0 }

// Stats are the figures of the inbox.
type Stats struct {
	Figures
	Receivers map[string]Figures // by name; "": webhooks that no receiver takes
	Invalid   int                // invalid webhooks that nobody has dealt with
	Used      int64              // bytes of webhooks that wait or are parked
	Limit     int64              // how many bytes may be used
	// NoRoom is for each receiver the last webhook for which there was no room, if there still is none.
	NoRoom     map[string]NoRoom
	ClockAhead time.Duration // by how much this machine's clock is ahead of the database's, as far as that is certain
	Tenants    int           // tenants that have a snapshot
	Unknown    int           // those of them whose features can't be read
	Missed     Missed

	Findings      lane.Counts // what reconciles have found of tenants, and still counts
	FindingsSince time.Time   // when the first of these was found
	LastRun       *lane.Run   // the last 'usher reconcile'; nil: there was none
	CompleteRun   *lane.Run   // the last one that has compared a whole list

	Paused []Pause   // nil: not known yet
	At     time.Time // when they were counted; zero: they never were, and mean nothing

	// Starting says that this process's gate has not asked yet whether there was an outage before it was started.
	Starting bool
	Old      bool // the database can't be read now, so they are the last ones that could be counted
}

// counted are figures, and how long they are good for.
type counted struct {
	Stats
	oldest  map[string]int64 // for each receiver, when its oldest webhook came
	changes int64            // how many changes of this process they have seen
	err     error            // why counting has failed since; nil: it has not
	until   time.Time        // until then nobody counts again, unless this process has changed something
	next    chan struct{}    // closed when others have taken their place
}

// good says whether nobody has to count again for somebody who has seen so many changes of this process.
func (c *counted) good(changes int64) bool {
	return time.Now().Before(c.until) && (c.err != nil || c.changes >= changes)
}

const (
	// After countPatience nobody waits for a count: a database that hangs must not keep each page waiting.
	countPatience = 2 * time.Second
	// After countLimit a count gives up.
	countLimit = 5 * time.Second
	// A count that took longer than maxCount counts as this: old figures must not stay long after a database has hung.
	maxCount = time.Second / 2
)

var errCounting = errors.New("counting takes long")

// publish has others take the place of the last figures. s.mu is locked.
func (s *Inbox) publish(c counted) {
	close(s.counted.next)
	c.next = make(chan struct{})
	s.counted = &c
}

// changed has a change of this process's show in the figures at once.
func (s *Inbox) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
}

// count returns figures that have seen all that this process has changed. With an error they are the last ones that
// could be counted.
func (s *Inbox) count(ctx context.Context) (*counted, error) {
	c, changes := s.lastCount()
	for !c.good(changes) {
		select {
		case s.countNow <- struct{}{}:
		default: // somebody has asked already
		}
		select {
		case <-c.next:
		case <-ctx.Done():
			return c, ctx.Err()
		}
		c, _ = s.lastCount()
	}
	return c, c.err
}

func (s *Inbox) lastCount() (c *counted, changes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counted, s.changes
}

// runCounter counts whenever somebody has found the figures too old.
func (s *Inbox) runCounter() {
	for {
		select {
		case <-s.countNow:
		case <-s.run.Done():
			return
		}
		last, changes := s.lastCount()
		if last.good(changes) {
			continue // who asked came while it was counted
		}
		began := time.Now()
		late := time.AfterFunc(countPatience, func() { s.countFailed(last, errCounting, countLimit) })
		ctx, cancel := context.WithTimeout(s.run, countLimit)
		if err := s.recount(ctx); err != nil {
			took := min(time.Since(began), countLimit) // the process may have stood still meanwhile
			s.countFailed(nil, err, max(time.Second, took))
		}
		late.Stop()
		cancel()
	}
}

// countFailed keeps the last figures, and nobody counts for some time. With last: only if they still are the last
// ones, and there are any.
func (s *Inbox) countFailed(last *counted, err error, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last == nil || last == s.counted && !last.At.IsZero() {
		c := *s.counted
		c.err, c.until = err, time.Now().Add(pause)
		s.publish(c)
	}
}

// Stats returns figures. Changes of this process show at once, changes of other replicas within a second. If there is
// much to count, both may be late by twenty times as long as counting takes, except that what a person has changed
// here shows at once.
func (s *Inbox) Stats() Stats {
	ctx, cancel := context.WithTimeout(s.run, 5*time.Second)
	defer cancel()
	return s.stats(ctx)
}

func (s *Inbox) stats(ctx context.Context) Stats {
	missed, unnamed := s.missedInMemory(), s.cfg.Missed.Unnamed()
	starting := s.cfg.GateUp != nil && !s.asked.Load() // before the count, which has what was found
	c, err := s.count(ctx)
	receivers := make(map[string]Figures)
	for _, rc := range s.cfg.Receivers.All() {
		receivers[rc.Name] = s.courier.figures(rc)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := c.Stats
	for name, f := range receivers {
		counted := st.Receivers[name]
		receivers[name] = f.at(&counted)
	}
	unnamed.Since, unnamed.Last = s.clock.dated(unnamed.Since), s.clock.dated(unnamed.Last)
	st.Missed = st.Missed.with(missed, s.cfg.Missed.Full(), unnamed)
	st.ClockAhead = s.clockAhead()
	now := s.Now().UnixMicro()
	for name, f := range c.Receivers {
		age := ageOf(now, c.oldest[name])
		if _, known := receivers[name]; !known {
			name = "" // it is gone from the settings, or this replica delivers nothing
		}
		r := receivers[name]
		r.Pending += f.Pending
		r.Parked += f.Parked
		r.NotAccepted += f.NotAccepted
		if f.Pending > 0 {
			r.Oldest = max(r.Oldest, age)
		}
		receivers[name] = r
		st.Oldest = max(st.Oldest, r.Oldest)
	}
	st.Receivers = receivers
	st.Limit = s.cfg.MaxBytes
	st.Paused = slices.Clone(s.Paused())
	st.Old = err != nil
	st.Starting = starting
	for _, bytes := range s.room.used {
		st.Used += bytes
	}
	st.NoRoom = make(map[string]NoRoom)
	for name, n := range s.room.noRoom {
		now, ofLane := *n, int64(0)
		if n.Share == TenantShare {
			ofLane = n.Held
		}
		if s.room.lack(&now, s.cfg, nil, ofLane) {
			st.NoRoom[name] = now
		}
	}
	return st
}

func ageOf(now, since int64) time.Duration {
	if since >= clock.Never || since > now {
		return 0
	}
	return time.Duration(now-since) * time.Microsecond
}

// recount counts.
func (s *Inbox) recount(ctx context.Context) error {
	began := time.Now()
	s.mu.Lock()
	before, changes, noRoom := maps.Clone(s.room.everAdded), s.changes, maps.Clone(s.room.noRoom)
	s.mu.Unlock()
	st := Stats{Receivers: make(map[string]Figures), Findings: make(lane.Counts)}
	oldest, used := make(map[string]int64), make(map[string]int64) // of each receiver
	err := s.read(ctx, func(tx engine.Tx) error {
		for _, rc := range s.cfg.Receivers.All() {
			back := s.courier.figures(rc).back
			tx.Queue("failing", func(r engine.Row) error {
				var lanes, since, accepted, sinceBack int64
				err := r.Scan(&lanes, &since, &accepted, &sinceBack)
				f := Figures{FailsForEverybody: lanes >= everybodyFrom, NotAccepted: int(sinceBack), back: back}
				if lanes > 0 {
					f.FailingSince = clock.Moment(since)
				}
				if accepted > 0 {
					f.LastAccepted = clock.Moment(accepted)
				}
				st.Receivers[rc.Name] = f
				return err
			}, rc.Name, s.Now().Add(lane.MaxJump).UnixMicro(), back, s.Now().UnixMicro())
		}
		tx.Queue("figures", func(r engine.Row) error {
			var name string
			var waiting, since, parked, bytes, failing int64
			if err := r.Scan(&name, &waiting, &since, &parked, &bytes, &failing); err != nil {
				return err
			}
			f := st.Receivers[name]
			if f.Pending, f.Parked = int(waiting), int(parked); f.back == 0 {
				f.NotAccepted = int(failing)
			}
			st.Receivers[name], oldest[name], used[name] = f, since, bytes
			st.Pending += f.Pending
			st.Parked += f.Parked
			st.NotAccepted += f.NotAccepted
			return nil
		})
		for name, n := range noRoom {
			now := *n
			if noRoom[name] = &now; n.Share == TenantShare {
				tx.Queue("lane_bytes", func(r engine.Row) error { return r.Scan(&now.Held) }, n.Tenant, n.Platform, n.Type)
			}
		}
		tx.Queue("invalid_count", func(r engine.Row) error { return r.Scan(&st.Invalid) })
		tx.Queue("tenant_count", func(r engine.Row) error { return r.Scan(&st.Tenants, &st.Unknown) })
		queueLastRuns(tx, &st.LastRun, &st.CompleteRun)
		tx.Queue("findings_count", func(r engine.Row) error {
			var result string
			var n int
			var since int64
			err := r.Scan(&result, &n, &since)
			st.Findings[lane.Result(result)] = n
			if at := clock.Moment(since); st.FindingsSince.IsZero() || at.Before(st.FindingsSince) {
				st.FindingsSince = at
			}
			return err
		})
		queueMissedStats(tx, &st.Missed)
		return tx.Send()
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, bytes := range s.room.everAdded {
		used[name] += bytes - before[name]
	}
	for name, n := range noRoom {
		now := s.room.noRoom[name]
		if now != nil && now.Share == n.Share && now.LaneName == n.LaneName && now.Size == n.Size {
			s.room.noRoom[name] = n
		}
	}
	s.room.used = used
	s.room.counts++
	st.At = time.Now()
	good := max(time.Second, 20*min(st.At.Sub(began), maxCount))
	s.publish(counted{Stats: st, oldest: oldest, changes: changes, until: st.At.Add(good)})
	return nil
}

// A Tenant is a tenant that the inbox knows.
type Tenant struct {
	Platform string    `json:"platform"`
	Tenant   string    `json:"tenant"`
	Name     string    `json:"name,omitempty"`  // in its last snapshot
	Latest   time.Time `json:"latest,omitzero"` // when its last snapshot was taken in
	Waiting  int       `json:"waiting"`
	Parked   int       `json:"parked"`
	Invalid  int       `json:"invalid"`         // those that nobody has dealt with
	Missed   time.Time `json:"missed,omitzero"` // since when it has missed webhooks; zero: it is not
	HeldUp   bool      `json:"held_up"`         // the last try of its first waiting webhook failed
	Paused   bool      `json:"paused"`
	Until    time.Time `json:"paused_until,omitzero"` // when its pause ends by itself
	Unknown  bool      `json:"unknown"`               // the features in its last snapshot can't be read
	Finding  *Finding  `json:"finding,omitempty"`     // what a reconcile has found of it; nil: nothing that counts

	missed webhookgate.MissedSet
}

// miss adds what is missed of the tenant.
func (t *Tenant) miss(d webhookgate.MissedSet) {
	t.missed = t.missed.Add(d...)
	t.Missed = t.missed.Since()
}

// scan reads a row that ends with how the tenant stands.
func (t *Tenant) scan(r engine.Row, first ...any) error {
	var failing, paused, unknown, found int64
	var missed missedColumns
	var result, changes string
	err := r.Scan(append(first, &t.Waiting, &t.Parked, &t.Invalid, &failing, &paused,
		&missed.since, &missed.webhooks, &unknown, &result, &changes, &found)...)
	t.Finding = scanFinding(result, changes, found)
	t.miss(missed.set())
	t.HeldUp, t.Paused, t.Unknown = failing > 0 && t.Waiting > 0, paused > 0, unknown > 0
	return err
}

// Standing says in words how a tenant stands.
func (t *Tenant) Standing() (words []string) {
	for _, s := range []struct {
		is   bool
		word string
	}{
		{t.Invalid > 0, "invalid"},
		{!t.Missed.IsZero(), "missed"},
		{t.Parked > 0, "parked"},
		{t.HeldUp, "held up"},
		{t.Waiting > 0, "waiting"},
		{t.Paused, Pause{Until: t.Until}.With("paused")},
		{t.Unknown, "features unknown"},
		{t.Finding != nil, t.Finding.Words()},
	} {
		if s.is {
			words = append(words, s.word)
		}
	}
	if len(words) == 0 {
		words = []string{"all right"}
	}
	return words
}

// TenantFilter selects tenants; empty fields select all.
type TenantFilter struct {
	Search   string  // text, in upper or lower case, of the code, the platform's code or the name
	Typo     bool    // also tenants whose code is Search with one typing error
	Troubled bool    // only tenants with webhooks that are held up, parked, invalid or missed
	Unknown  bool    // with Troubled: also tenants whose features can't be read
	After    *Tenant // only tenants after this one, to continue a former list
	Limit    int
}

func (f *TenantFilter) match(t *Tenant) bool {
	search := strings.ToLower(f.Search)
	found := func(in string) bool { return strings.Contains(strings.ToLower(in), search) }
	return search == "" || found(ShowTenant(t.Platform, t.Tenant)) || found(t.Name) ||
		f.Typo && text.WithinEdits(strings.ToLower(t.Tenant), search, 1)
}

// Tenants returns the tenants that f selects, in the order of their codes. After an error, with f.Troubled, these are
// those that have missed webhooks in memory.
func (s *Inbox) Tenants(ctx context.Context, f TenantFilter) (all []*Tenant, err error) {
	add := func(t *Tenant) (more bool, err error) {
		if f.match(t) {
			all = append(all, t)
		}
		return f.Limit == 0 || len(all) < f.Limit, nil
	}
	var others []*Tenant
	if f.Troubled {
		others, err = s.othersInTrouble(ctx, always)
	}
	if err == nil {
		err = s.eachTenant(ctx, f, others, nil, add)
	}
	if err != nil && f.Troubled {
		all = nil
		for _, t := range s.missedTenants(always) {
			if more, _ := add(t); !more {
				break
			}
		}
	}
	return all, err
}

// missedTenants are those that have missed webhooks in memory, and missed some in a time, in the order of their codes.
func (s *Inbox) missedTenants(in period) (all []*Tenant) {
	for name, d := range s.missedInMemory() {
		if in.has(d) {
			t := &Tenant{Platform: name.Platform, Tenant: name.Tenant}
			t.miss(d)
			all = append(all, t)
		}
	}
	slices.SortFunc(all, (*Tenant).compare)
	return all
}

// othersInTrouble are those whom the database may not have as tenants, or not as troubled: they have missed webhooks in
// memory, or a reconcile has found them in that time.
func (s *Inbox) othersInTrouble(ctx context.Context, in period) ([]*Tenant, error) {
	alone, err := s.foundAlone(ctx, in)
	all := append(s.missedTenants(in), alone...)
	slices.SortStableFunc(all, (*Tenant).compare) // what was missed goes first
	return slices.CompactFunc(all, func(a, b *Tenant) bool { return a.compare(b) == 0 }), err
}

// eachTenant calls fn for the tenants that f selects by its other members than text, and for others that the database
// does not have, in the order of their codes, until fn returns false. ask see tenantPages.
func (s *Inbox) eachTenant(
	ctx context.Context, f TenantFilter, others []*Tenant,
	ask func(tx engine.Tx, page []*Tenant) error, fn func(*Tenant) (more bool, err error),
) error {
	more := true
	err := s.tenantPages(ctx, f, ask, func(page []*Tenant) (_ bool, err error) {
		for _, t := range page {
			for more && err == nil && len(others) > 0 && others[0].compare(t) < 0 {
				more, err = fn(others[0])
				others = others[1:]
			}
			if len(others) > 0 && others[0].compare(t) == 0 {
				others = others[1:]
			}
			if more && err == nil {
				more, err = fn(t)
			}
		}
		return more, err
	})
	for more && err == nil && len(others) > 0 {
		more, err = fn(others[0])
		others = others[1:]
	}
	return err
}

// maxTenantPage is how many tenants one query returns at most.
const maxTenantPage = 4000

// tenantPages reads tenants page by page, with their missed webhooks in memory. ask, which may be nil, asks more of the
// page's tenants in the transaction that has read it. each is called after that, until it returns false.
func (s *Inbox) tenantPages(
	ctx context.Context, f TenantFilter,
	ask func(tx engine.Tx, page []*Tenant) error, each func(page []*Tenant) (more bool, err error),
) error {
	last, missed := cmp.Or(f.After, new(Tenant)), s.missedInMemory()
	only := boolNumber(f.Troubled) + boolNumber(f.Troubled && f.Unknown)
	// Each query continues in the table where the last one has ended. Twice as many rows each time keep the queries few.
	for size := int64(pageSize); ; size = min(2*size, maxTenantPage) {
		var page []*Tenant
		err := s.browse(ctx, func(tx engine.Tx) error {
			tx.Queue("tenants", func(r engine.Row) error {
				var received int64
				t := new(Tenant)
				err := t.scan(r, &t.Platform, &t.Tenant, &t.Name, &received)
				if received > 0 {
					t.Latest = clock.Moment(received)
				}
				t.miss(missed[webhookgate.LaneName{Platform: t.Platform, Tenant: t.Tenant}])
				s.addPauseEnd(t)
				page = append(page, t)
				return err
			}, last.Tenant, last.Platform, only, size, missed.names())
			if err := tx.Send(); err != nil || ask == nil {
				return err
			}
			return ask(tx, page)
		})
		if err != nil {
			return err
		}
		if more, err := each(page); err != nil || !more || int64(len(page)) < size {
			return err
		}
		last = page[len(page)-1]
	}
}

// names are the tenants, for a query: the database does not know of some that they are troubled.
func (o missedTenants) names() engine.Table {
	tenants, platforms := []string{}, []string{}
	for name := range o {
		tenants, platforms = append(tenants, name.Tenant), append(platforms, name.Platform)
	}
	return engine.Table{tenants, platforms}
}

func (t *Tenant) compare(other *Tenant) int {
	return cmp.Or(strings.Compare(t.Tenant, other.Tenant), strings.Compare(t.Platform, other.Platform))
}

// History is what a tenant got in some time.
type History struct {
	Tenant
	Webhooks int
	Last     time.Time // when the last of them came
}

// A period is some time: from its first microsecond on, and before its last.
type period struct{ from, to int64 }

// periodOf returns the time between two; zero times: since ever, and for ever.
func periodOf(since, until time.Time) period {
	in := period{since.UnixMicro(), clock.Never}
	if !until.IsZero() {
		in.to = until.UnixMicro()
	}
	return in
}

var always = periodOf(time.Time{}, time.Time{})

// has says whether something was missed then.
func (in period) has(d webhookgate.MissedSet) bool {
	return len(d) > 0 && d.Since().UnixMicro() < in.to && d.Last().UnixMicro() >= in.from
}

// History calls fn for the tenants that got webhooks from since on and before until, in the order of their codes,
// page by page; zero times: for all that are known. troubled: only for those that are not all right now. begins is
// when the webhooks that are kept begin; zero: not later than since.
func (s *Inbox) History(
	ctx context.Context, since, until time.Time, troubled bool, fn func(*History) error,
) (begins time.Time, err error) {
	in := periodOf(since, until)
	others := s.missedTenants(in)
	if troubled {
		if others, err = s.othersInTrouble(ctx, in); err != nil {
			return begins, err
		}
	}
	var then map[*Tenant]*History // of the tenants of a page
	ask := func(tx engine.Tx, page []*Tenant) (err error) {
		then, err = historyOf(tx, page, in)
		if err == nil && begins.IsZero() && in != always {
			begins, err = historyBegins(tx, in)
		}
		return err
	}
	tell := func(t *Tenant) (more bool, err error) {
		h, known := then[t]
		if !known {
			h = &History{Tenant: *t}
		}
		if h == nil {
			return true, nil
		}
		return true, fn(h)
	}
	err = s.eachTenant(ctx, TenantFilter{Troubled: troubled, Unknown: true}, others, ask, tell)
	return begins, err
}

// MissedHistory returns those of whom usher has missed webhooks in memory then. It does not read the database.
func (s *Inbox) MissedHistory(since, until time.Time) (all []*History) {
	for _, t := range s.missedTenants(periodOf(since, until)) {
		all = append(all, &History{Tenant: *t})
	}
	return all
}

// historyOf returns what each of these tenants got in some time, or nil for one that got nothing and was missed
// nothing.
func historyOf(tx engine.Tx, page []*Tenant, in period) (map[*Tenant]*History, error) {
	then, named := make(map[*Tenant]*History, len(page)), make(map[TenantRef]*Tenant, len(page))
	tenants, platforms := make([]string, 0, len(page)), make([]string, 0, len(page))
	for _, t := range page {
		then[t], named[TenantRef{t.Platform, t.Tenant}] = nil, t
		tenants, platforms = append(tenants, t.Tenant), append(platforms, t.Platform)
	}
	tx.Queue("tenant_history", func(r engine.Row) error {
		var ref TenantRef
		var n, last int64
		err := r.Scan(&ref.Tenant, &ref.Platform, &n, &last)
		t := named[ref]
		if t == nil || n == 0 && in != always && !in.has(t.missed) {
			return err
		}
		then[t] = &History{Tenant: *t, Webhooks: int(n), Last: t.Latest}
		if n > 0 {
			then[t].Last = clock.Moment(last)
		}
		return err
	}, in.from, in.to, engine.Table{tenants, platforms})
	return then, tx.Send()
}

// historyBegins returns when the oldest finished webhook that is kept was finished; zero: not after the beginning of
// that time.
func historyBegins(tx engine.Tx, in period) (begins time.Time, err error) {
	tx.Queue("history_begin", func(r engine.Row) error {
		var at int64
		err := r.Scan(&at)
		if at > in.from {
			begins = clock.Moment(at)
		}
		return err
	})
	return begins, tx.Send()
}

// Unknown returns the first tenants whose features can't be read, those that are so for longest first.
func (s *Inbox) Unknown(ctx context.Context, limit int) ([]*Tenant, error) {
	scan := func(r engine.Row) (*Tenant, error) {
		t, received := &Tenant{Unknown: true}, int64(0)
		err := r.Scan(&t.Platform, &t.Tenant, &received)
		t.Latest = clock.Moment(received)
		return t, err
	}
	return listOf(ctx, s.read, scan, "tenants_unknown", int64(limit))
}

// HeldUp is the first webhook of a lane, if its last try failed: it holds up the webhooks behind it.
type HeldUp struct {
	*lane.Webhook
	Kind   string    // the lane's event type, if the lane has no tenant
	Down   bool      // the receiver fails for everybody, and the webhook is not to blame
	Next   time.Time // when the next try is due; if the receiver is back earlier, it comes earlier
	Behind int       // how many webhooks wait behind it
}

// Answer is the receiver's last answer, in words.
func (h *HeldUp) Answer() string { return h.Tried[len(h.Tried)-1].Words() }

// HeldUp returns the lanes that are held up, the one that waits longest first. In an outage they are those that were
// last known.
func (s *Inbox) HeldUp() []HeldUp {
	s.mu.Lock()
	all, old := s.heldUp, s.counted.err != nil && time.Now().Before(s.counted.until)
	s.mu.Unlock()
	if old { // Stats has just found out
		return slices.Clone(all)
	}
	ctx, cancel := context.WithTimeout(s.run, countPatience)
	defer cancel()
	now, err := s.readHeldUp(ctx)
	if err != nil {
		return slices.Clone(all) // Health reports the outage
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heldUp = now
	return slices.Clone(now)
}

func (s *Inbox) readHeldUp(ctx context.Context) (all []HeldUp, err error) {
	err = s.read(ctx, func(tx engine.Tx) error {
		var order []*lane.Lane
		heads := make(map[webhookgate.LaneName]int64)
		tx.Queue("lanes_held_up", func(r engine.Row) error {
			l, err := scanLane(r)
			heads[l.LaneName], order = 0, append(order, l)
			return err
		}, int64(maxHeldUp))
		if err := tx.Send(); err != nil || len(order) == 0 {
			return err
		}
		first := make(map[webhookgate.LaneName]*lane.Webhook)
		queueNext(tx, heads, -1, func(h *lane.Webhook) { first[h.LaneName] = h })
		if err := tx.Send(); err != nil {
			return err
		}
		for _, l := range order {
			if l.Owner != nil { // it is being tried, and due is the end of the lease
				l.Due = l.LastTry
			}
			h := first[l.LaneName]
			if h == nil || len(h.Tried) == 0 || l.LastTry < s.back(l.ReceiverName) && l.NotBefore <= s.Now().UnixMicro() {
				continue
			}
			held := HeldUp{
				Webhook: h,
				Kind:    l.Type,
				Down:    s.isDown(l.ReceiverName, h.Tried[len(h.Tried)-1]),
				Behind:  int(l.Waiting) - 1,
			}
			if l.Due < clock.Never { // else it is paused
				held.Next = clock.Moment(l.Due)
			}
			all = append(all, held)
		}
		return nil
	})
	return all, err
}

// back is when this process saw that a receiver was back; lanes that were not tried since are due at once.
func (s *Inbox) back(name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counted.Receivers[name].back
}

// isDown says whether a receiver fails for everybody. A replica that delivers nothing cannot know, and goes by the
// last try alone.
func (s *Inbox) isDown(name string, last lane.Try) bool {
	if s.courier == nil {
		return lane.IsDown(last.Status)
	}
	for _, rc := range s.cfg.Receivers.All() {
		if rc.Name == name {
			s.mu.Lock()
			counted := s.counted.Receivers[name]
			s.mu.Unlock()
			return s.courier.figures(rc).at(&counted).FailsForEverybody
		}
	}
	return false
}

// maxHeldUp is how many lanes HeldUp returns.
const maxHeldUp = 1000

// Unserved returns some of the platforms whose webhooks wait, and that no receiver takes.
func (s *Inbox) Unserved(ctx context.Context) ([]string, error) {
	return listOf(ctx, s.read, scanText, "unserved")
}

// find reads a webhook with its content. Of the result only the lane and the content never change.
func (s *Inbox) find(ctx context.Context, id int64) (w *lane.Webhook, err error) {
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("webhooks", func(r engine.Row) (err error) { w, err = scanWhole(r); return err }, engine.Among{id})
		return tx.Send()
	})
	if err == nil && w == nil {
		err = ErrNotFound
	}
	return w, err
}

// lanesOf returns the lanes of a tenant, on one platform or on all.
func (s *Inbox) lanesOf(ctx context.Context, platform *string, tenant string) (all []*lane.Lane, err error) {
	if !storable(tenant) {
		return nil, nil
	}
	scan := func(r engine.Row) (*lane.Lane, error) { return scanLane(r) }
	all, err = listOf(ctx, s.read, scan, "lanes_of_tenant", tenant)
	return slices.DeleteFunc(all, func(l *lane.Lane) bool { return platform != nil && l.Platform != *platform }), err
}

// ErrNotFound says that the inbox has no webhook with this id, or has deleted it.
var ErrNotFound = errors.New("no such webhook in the inbox: it may be too old, see 'usher inbox ls'")
