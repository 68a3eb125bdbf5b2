package status

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"usher/internal/inbox"
	"usher/internal/inbox/engine"
	"usher/internal/receiver"
	"usher/internal/view"
)

// NewInbox returns the state of an inbox. known are the receivers of the gate; err is why the inbox
// takes no webhooks, or nil.
func NewInbox(s inbox.Stats, held []inbox.HeldUp, known *receiver.Set, err error) *Inbox {
	out := &Inbox{
		Waiting:    s.Pending,
		Oldest:     s.Oldest,
		Parked:     s.Parked,
		Invalid:    s.Invalid,
		Used:       s.Used,
		Limit:      s.Limit,
		ClockAhead: s.ClockAhead,
		// An empty list is written as [], not as null.
		HeldUp:   []view.HeldUp{},
		Homeless: s.Receivers[""].Pending,
		Paused:   s.Paused,
		Unknown:  s.At.IsZero(),
		stats:    s,
	}
	if s.Old {
		out.Counted = s.At.UTC().Truncate(time.Second)
	}
	for i := range held {
		out.HeldUp = append(out.HeldUp, view.NewHeldUp(&held[i], known, s.Paused))
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

// shownHeldUp is how many tenants the overview lists that are held up.
const shownHeldUp = 10

// FirstHeldUp returns the tenants that the overview lists.
func (s *Inbox) FirstHeldUp() []view.HeldUp { return s.HeldUp[:min(shownHeldUp, len(s.HeldUp))] }

// MoreHeldUp returns how many tenants the overview does not list.
func (s *Inbox) MoreHeldUp() int { return max(0, len(s.HeldUp)-shownHeldUp) }

// fileGone and inboxFails say that the inbox takes no webhooks, from the first one on that it did not take. Without a
// gate usher only reads it.
func fileGone(s *Status, _ time.Time) []Trouble {
	if broken, ok := errors.AsType[*engine.BrokenError](s.Health.inboxErr()); ok && broken.Gone {
		return s.unusable().run("usher inbox backup inbox.db").only()
	}
	return nil
}

func inboxFails(s *Status, _ time.Time) []Trouble {
	box := s.Health.Inbox
	if s.Health.inboxErr() == nil || len(fileGone(s, time.Time{})) > 0 {
		return nil
	}
	t := s.unusable()
	if !s.Health.on("gate") { // there is nobody who sends, and nothing to deliver
		t.Means = "Questions about tenants that usher does not hold in memory may be answered 503."
	}
	switch full := (*engine.FullError)(nil); {
	case !box.Opened && !box.Shared:
		t.Severity, t.Do = Warning, "Wait some seconds: usher has just started."
	case errors.As(box.Err, &full):
		t.Do = "Free some space on this disk, or make it larger: usher needs 40 MiB, and then continues by itself. " +
			"Do not delete or move the inbox's files."
	case errors.Is(box.Err, engine.ErrReadOnly) && box.Shared:
		t.Do = "Make the database writable, or send usher to the primary: name all hosts in USHER_WEBHOOK_INBOX, " +
			"with target_session_attrs=read-write. usher then continues by itself."
	case errors.Is(box.Err, engine.ErrReadOnly):
		t.Do = "Find out why the file may only be read: its owner and mode, or a disk that was mounted read-only after " +
			"an error. Then restart usher."
	case errors.Is(box.Err, engine.ErrLocked):
		t.Do = "Find in pg_locks who has locked it: CREATE INDEX, VACUUM FULL or LOCK TABLE do. usher then continues by itself."
	case !box.Shared:
		t.Do = "Fix the disk, then restart usher. Do not delete or move the inbox's files."
	}
	return t.only()
}

// unusable says what still works: a full or broken file can be read, and a full one delivers; a database that only takes no
// writes can be read.
func (s *Status) unusable() Trouble {
	box, what := s.Health.Inbox, "The inbox takes no webhooks: "
	if !s.Health.on("gate") {
		what = "The inbox cannot be read: "
	}
	full, _ := errors.AsType[*engine.FullError](box.Err)
	_, broken := errors.AsType[*engine.BrokenError](box.Err)
	about := []Subject{ofGate("takes no webhooks: " + box.Err.Error())}
	for i := 0; s.Gate != nil && i < len(s.Gate.Receivers) && (full == nil || box.Shared); i++ {
		about = append(about, s.Gate.Receivers[i].of("gets nothing while the inbox cannot be written"))
	}
	reads := full != nil || broken || errors.Is(box.Err, engine.ErrReadOnly) || errors.Is(box.Err, engine.ErrLocked)
	if s.Entitlements != nil && !reads {
		about = append(about, ofEntitlements(s.fromMemory()))
	}
	return wrong(what+box.Err.Error(), about...).since(box.Since)
}

// rowDamaged says whose rows in the inbox cannot be read.
func rowDamaged(s *Status, _ time.Time) []Trouble {
	if s.Inbox == nil || len(s.Inbox.stats.Unreadable) == 0 {
		return nil
	}
	var names []string
	for _, t := range s.Inbox.stats.Unreadable {
		names = append(names, inbox.ShowTenant(t.Platform, t.Tenant))
	}
	what := "The inbox has a damaged row of " + view.FirstOf(names[:min(3, len(names))], len(names))
	return wrong(what, ofGate("")).naming(names).only()
}

// isCopy says that a backup made this inbox, and that nobody has resumed its deliveries yet.
func isCopy(s *Status, _ time.Time) []Trouble {
	if s.Inbox == nil {
		return nil
	}
	for _, p := range s.Inbox.Paused {
		if !p.Copied.IsZero() {
			at := p.Copied.UTC().Format(time.DateTime)
			return wrong("This inbox is a copy that a backup made at "+at+" UTC", ofGate("")).since(p.Copied).run("usher inbox resume").only()
		}
	}
	return nil
}

// inboxFull says that there is no room, or soon none.
func inboxFull(s *Status, _ time.Time) (all []Trouble) {
	box := s.Inbox
	if box == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(box.stats.Receivers)) {
		used, about := box.stats.Receivers[name].Used, ofGate("")
		whose := ""
		if len(box.stats.Receivers) > 1 {
			whose = " for the receiver " + name
		}
		if name == "" {
			whose = " for platforms without a receiver"
		} else {
			about = Subject{"gate", name, "has no room left in the inbox"}
		}
		share := fmt.Sprintf(": %s of %s are used", view.Bytes(used), view.Bytes(box.Limit))
		what, refused := "", box.stats.NoRoom[name]
		switch {
		case refused > box.Limit:
			what = "A webhook of " + view.Bytes(refused) + " is larger than the whole inbox, which has room for " + view.Bytes(box.Limit)
		case refused > 0:
			what = "The inbox has no room for a webhook of " + view.Bytes(refused) + whose + share
		case box.Limit > 0 && float64(used) > .85*float64(box.Limit):
			what = "The inbox is nearly full" + whose + share
		default:
			continue
		}
		t := wrong(what, about).link("/webhooks?state=waiting")
		t.which = name
		all = append(all, t)
	}
	return all
}

// noReceiver says that webhooks wait for no receiver. Without a gate usher knows none, and all would seem to.
func noReceiver(s *Status, _ time.Time) []Trouble {
	if s.Gate == nil || s.Inbox == nil || s.Inbox.Homeless == 0 {
		return nil
	}
	what := view.Plural(s.Inbox.Homeless, "webhook waits, but no receiver takes its platform any more",
		"webhooks wait, but no receiver takes their platform any more")
	return wrong(what, ofGate("")).link("/webhooks?state=waiting").run("usher inbox ls --state waiting").only()
}

func parked(s *Status, _ time.Time) []Trouble {
	if s.Inbox == nil || s.Inbox.Parked == 0 {
		return nil
	}
	d, are, about := &s.Inbox.ParkedDetails, " are parked", []Subject{ofGate("")}
	if s.Inbox.Parked == 1 {
		are = " is parked"
	}
	for i := 0; s.Gate != nil && i < len(s.Gate.Receivers); i++ {
		if r := &s.Gate.Receivers[i]; r.Parked > 0 {
			about = append(about, r.of("has "+view.Plural(r.Parked, "parked webhook", "parked webhooks")))
		}
	}
	return wrong(d.words(s.Inbox.Parked)+are, about...).quoting("the receiver answered", d.Reason).
		since(d.Since).link(d.Link).run("usher inbox ls --state parked").naming(d.Tenants).only()
}

// invalid says that usher has rejected the content of webhooks from the right sender. Without an inbox they are in memory.
func invalid(s *Status, _ time.Time) []Trouble {
	n, d, run := 0, new(Details), ""
	switch {
	case s.Inbox != nil:
		n, d, run = s.Inbox.Invalid, &s.Inbox.InvalidDetails, "usher inbox ls --state invalid"
	case s.Gate != nil:
		n, d = s.Gate.Invalid, &s.Gate.InvalidDetails
	}
	if n == 0 {
		return nil
	}
	return wrong("usher rejected "+d.words(n), ofGate("")).quoting("the last one", d.Reason).
		since(d.Since).link(d.Link).run(run).naming(d.Tenants).only()
}

// words counts the webhooks and names their tenants.
func (d *Details) words(n int) string {
	count := view.Plural(n, "webhook", "webhooks")
	if len(d.Tenants) == 0 {
		return count
	}
	return count + " of " + view.FirstFew(d.Tenants)
}

// Pauses are troubles: changes do not reach customers, and most of them somebody has to end. A banner on
// every page says the same.
func paused(s *Status, _ time.Time) (all []Trouble) {
	if s.Inbox == nil {
		return nil
	}
	for _, p := range s.Inbox.Paused {
		t := wrong("Paused: "+p.Words(), s.pausedBy(&p)...).since(p.Since).run("usher inbox resume" + p.Flag())
		if t.which = p.Flag(); p.Tenant != "" {
			t = t.naming([]string{inbox.ShowTenant(p.Platform, p.Tenant)})
		}
		all = append(all, t)
	}
	return all
}

// pausedBy returns the receivers that get nothing because of a pause.
func (s *Status) pausedBy(p *inbox.Pause) (all []Subject) {
	if s.Gate == nil || p.Tenant != "" {
		return []Subject{ofGate("")}
	}
	for i := range s.Gate.Receivers {
		if r := &s.Gate.Receivers[i]; p.CoversReceiver(r.Name) {
			all = append(all, r.of(p.With("paused")))
		}
	}
	return all
}

// Others returns the troubles without the pauses, which the page shows in a banner.
func (s *Status) Others() []Trouble {
	return slices.DeleteFunc(slices.Clone(s.Troubles), func(t Trouble) bool { return t.Kind == pausedKind })
}
