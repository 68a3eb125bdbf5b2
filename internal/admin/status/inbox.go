package status

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/receiver"
)

// Inbox is the state of the inbox.
type Inbox struct {
	Waiting    int           `json:"waiting"`
	Oldest     time.Duration `json:"oldest"`
	Parked     int           `json:"parked"`
	Invalid    int           `json:"invalid"`     // webhooks that usher rejected, and that nobody has dealt with
	Used       int64         `json:"used"`        // bytes of the webhooks that wait or are parked
	Limit      int64         `json:"limit"`       // how large Used may become
	HeldUp     []HeldUp      `json:"held_up"`     // the one that waits longest first
	ClockAhead time.Duration `json:"clock_ahead"` // by how much this machine's clock is ahead of the database's
	Homeless   int           `json:"homeless"`    // webhooks that wait although no receiver takes their platform
	Shared     bool          `json:"shared"`      // with other replicas
	Paused     []inbox.Pause `json:"paused,omitempty"`
	// Error says why the inbox takes no webhooks; also during the first seconds, before usher is unready.
	Error   string    `json:"error,omitempty"`
	Counted time.Time `json:"counted,omitzero"` // the inbox cannot be read now, and its counts are those of this time
	Unknown bool      `json:"-"`                // it was never read, so the counts mean nothing
	// Compared says when it was last compared with the billing service, and what was found.
	Compared string `json:"compared,omitempty"`

	ParkedDetails  Details `json:"-"`
	InvalidDetails Details `json:"-"`

	stats inbox.Stats
}

// Details describes a group of webhooks that somebody should look at.
type Details struct {
	Tenants []string  // the newest first
	Reason  string    // of the newest webhook; may be empty
	Since   time.Time // when the oldest came
	Link    string    // the page that shows them
}

// HeldUp is a tenant whose webhooks wait behind one whose delivery failed.
type HeldUp struct {
	Platform string `json:"platform"`
	Tenant   string `json:"tenant"`
	Receiver string `json:"receiver"`
	Webhook  string `json:"webhook"` // id of the webhook that failed
	Tries    int    `json:"tries"`
	Answer   string `json:"answer"` // the receiver's last answer, in words
	// Next is when usher tries it again; while it is paused, the end of the pause, if it has one.
	Next   time.Time `json:"next,omitzero"`
	Behind int       `json:"behind"`         // how many webhooks wait behind it
	Since  time.Time `json:"since,omitzero"` // when it came
	Down   bool      `json:"down"`           // the receiver fails for everybody
	Paused bool      `json:"paused"`         // deliveries of the tenant are paused

	status int // of the last answer
}

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
		HeldUp:   []HeldUp{},
		Homeless: s.Receivers[""].Pending,
		Paused:   s.Paused,
		Unknown:  s.At.IsZero(),
		stats:    s,
	}
	if s.Old {
		out.Counted = s.At.UTC().Truncate(time.Second)
	}
	for i := range held {
		out.HeldUp = append(out.HeldUp, NewHeldUp(&held[i], known, s.Paused))
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

// NewHeldUp describes a tenant that is held up. known are the receivers of the gate, paused the pauses in force.
func NewHeldUp(held *inbox.HeldUp, known *receiver.Set, paused []inbox.Pause) HeldUp {
	next, pause := held.Next, PausedBy(paused, known, held.Platform, held.Tenant, held.Receiver)
	if pause != nil {
		next = pause.Until
	}
	return HeldUp{
		Platform: held.Platform,
		Tenant:   held.Tenant,
		Receiver: held.Receiver,
		Webhook:  strconv.FormatInt(held.ID, 10),
		Tries:    held.Tries,
		Answer:   held.Answer(),
		Next:     next,
		Behind:   held.Behind,
		Since:    held.Received,
		Down:     held.Down,
		Paused:   pause != nil,
		status:   held.Tried[len(held.Tried)-1].Status,
	}
}

// PausedBy returns the pause that holds back a tenant's webhooks, or nil. known are the receivers of the
// gate; if the gate is off, nil, and only other replicas know them. tried is the name of the receiver that
// was tried last. It counts only if known has none for the platform.
func PausedBy(paused []inbox.Pause, known *receiver.Set, platform, tenant, tried string) *inbox.Pause {
	if r := known.For(platform); r != nil {
		tried = r.Name
	}
	if i := slices.IndexFunc(paused, func(p inbox.Pause) bool { return p.Covers(platform, tenant, tried) }); i >= 0 {
		return &paused[i]
	}
	return nil
}

// Name returns the tenant as people write it.
func (h *HeldUp) Name() string { return page.TenantName(h.Platform, h.Tenant) }

func (h *HeldUp) NextTry() string { return NextTry(h.Next, h.Paused, h.Down) }

// NextTry says when usher tries a webhook next. While the receiver is down there is no time for that: usher
// probes it with one webhook after the other, whichever comes next.
func NextTry(at time.Time, paused, down bool) string {
	switch next := max(0, time.Until(at)).Round(time.Second); {
	case paused:
		return inbox.Pause{Until: at}.With("paused")
	case down:
		return "next try when the receiver is back"
	case next == 0:
		return "next try now"
	default:
		return "next try in " + page.Span(next)
	}
}

// shownHeldUp is how many tenants the overview lists that are held up.
const shownHeldUp = 10

// FirstHeldUp returns the tenants that the overview lists.
func (s *Inbox) FirstHeldUp() []HeldUp { return s.HeldUp[:min(shownHeldUp, len(s.HeldUp))] }

// MoreHeldUp returns how many tenants the overview does not list.
func (s *Inbox) MoreHeldUp() int { return max(0, len(s.HeldUp)-shownHeldUp) }

// storageTroubles say that the inbox takes no webhooks, from the first one on that it did not take. Without
// a gate usher only reads.
func storageTroubles(s *Status, _ time.Time) []Trouble {
	box := s.Health.Inbox
	if box == nil || box.Err == nil {
		return nil
	}
	var full *engine.FullError
	var broken *engine.BrokenError
	of := fileFails
	if box.Shared {
		of = databaseAway
	}
	reads := false      // what the tenants may use can be read
	deliveries := false // what is in the inbox goes on to the receivers
	run := ""
	switch {
	case !box.Opened && !box.Shared:
		of = notOpened
	case !s.Health.on("gate"):
		of = inboxUnread
	case errors.As(box.Err, &full) && box.Shared:
		of, reads = databaseFull, true
	case errors.As(box.Err, &full):
		of, reads, deliveries = diskFull, true, true
	case errors.Is(box.Err, engine.ErrReadOnly) && box.Shared:
		of, reads = databaseReadOnly, true
	case errors.Is(box.Err, engine.ErrReadOnly):
		of, reads = fileReadOnly, true
	case errors.Is(box.Err, engine.ErrLocked):
		of, reads = databaseLocked, true
	case errors.As(box.Err, &broken) && broken.Gone:
		of, reads, run = fileGone, true, "usher inbox backup inbox.db"
	case errors.As(box.Err, &broken):
		of, reads = fileBroken, true
	}
	what := "The inbox takes no webhooks: "
	if of == inboxUnread {
		what = "The inbox cannot be read: "
	}
	about := []Subject{ofGate("takes no webhooks: " + box.Err.Error())}
	for i := 0; s.Gate != nil && i < len(s.Gate.Receivers) && !deliveries; i++ {
		about = append(about, s.Gate.Receivers[i].of("gets nothing while the inbox cannot be written"))
	}
	if s.Entitlements != nil && !reads {
		about = append(about, ofEntitlements(s.fromMemory()))
	}
	return []Trouble{of.is(what+box.Err.Error(), about...).since(box.Since).run(run).counts(0, s.Missed.Tenants)}
}

// What it means that the inbox takes no webhooks.
const (
	nothingIn = "Senders get 503 and might not try again: changes do not reach your customers."
	safe      = " Nothing that was answered 200 is lost."
	fileOn    = " usher still delivers what it has."
	dataOn    = " Deliveries wait, too. Entitlements are answered for the tenants that usher holds in " +
		"memory; for others the answer is 503."
	readOn = " Deliveries wait, too. Entitlements are answered."
)

var (
	diskFull = kind("disk-full", Critical, "UsherDown", nothingIn+safe+fileOn,
		"Free some space on this disk, or make it larger: usher needs 32 MiB, and then continues by itself. "+
			"Do not delete or move the inbox's files.").ofReplica()
	fileReadOnly = kind("file-read-only", Critical, "UsherDown", nothingIn+safe,
		"Find out why the file may only be read: its owner and mode, or a disk that was mounted read-only "+
			"after an error. Then restart usher.").ofReplica()
	fileGone = kind("file-gone", Critical, "UsherDown",
		nothingIn+" usher still has the file open. What is in it is lost when usher stops.",
		"Do not stop or restart usher. First save the inbox with the command below. "+
			"Then stop usher, put the saved file in the inbox's place, and start usher: it begins paused. "+
			"Reconcile with the billing service ('usher help reconcile' says how), then resume.").ofReplica()
	fileBroken = kind("file-broken", Critical, "UsherDown", nothingIn+safe,
		"Fix the disk, then restart usher, and reconcile with the billing service ('usher help reconcile' says "+
			"how): a restart forgets whose webhooks got 503.").ofReplica()
	fileFails = kind("file-fails", Critical, "UsherDown", nothingIn+safe,
		"Check the disk and the file in USHER_WEBHOOK_INBOX. If it does not end by itself, restart usher.").ofReplica()
	notOpened = kind("inbox-not-opened", Warning, "UsherDown", "Senders get 503 until it is open.",
		"Wait some seconds: usher has just started.").ofReplica()
	databaseAway = kind("database-away", Critical, "UsherDown", nothingIn+safe+dataOn,
		"Check the database in USHER_WEBHOOK_INBOX, and the way to it. "+
			"When it is back, usher continues by itself.").ofReplica()
	databaseLocked = kind("database-locked", Critical, "UsherDown", nothingIn+safe+" Deliveries wait, too.",
		"Find in pg_locks who has locked it: CREATE INDEX, VACUUM FULL or LOCK TABLE do, and so does an "+
			"import through another usher. When the lock is gone, usher continues by itself.").ofReplica()
	databaseReadOnly = kind("database-read-only", Critical, "UsherDown", nothingIn+safe+readOn,
		"Make the database writable, or send usher to the primary: name all hosts in USHER_WEBHOOK_INBOX, "+
			"with target_session_attrs=read-write. usher then continues by itself.").ofReplica()
	databaseFull = kind("database-full", Critical, "UsherDown", nothingIn+safe+readOn,
		"Free some space on the disk of the database, or make it larger. usher then continues by itself.").ofReplica()
	inboxUnread = kind("inbox-unread", Critical, "",
		"usher answers only what the tenants may use that it holds in memory. "+
			"For all others the answer is 503: your program uses its own default, and may lock them out.",
		"Check the database in USHER_WEBHOOK_INBOX, and the way to it. "+
			"When it is back, usher continues by itself.").ofReplica()
)

// inboxTroubles are those of what is in the inbox; without one, of what is in memory.
func inboxTroubles(s *Status, _ time.Time) (all []Trouble) {
	box := s.Inbox
	if box == nil {
		if g := s.Gate; g != nil && g.Invalid > 0 {
			all = append(all, g.InvalidDetails.invalid(invalidInMemory, g.Invalid))
		}
		return all
	}
	used := fmt.Sprintf("%s of %s", page.Bytes(box.Used), page.Bytes(box.Limit))
	full := false
	for _, name := range slices.Sorted(maps.Keys(box.stats.NoRoom)) {
		n, about := box.stats.NoRoom[name], ofGate("")
		what := "The inbox has no room for a webhook of " + page.Bytes(n.Size)
		switch {
		case n.Share != inbox.AllOfIt:
			what += " for " + n.Who() + ", which has " + page.Bytes(n.Held) + " in it: " + page.Bytes(n.Free) +
				" are free. Others' are taken in"
			if n.Share == inbox.ReceiverShare && name != "" {
				about = Subject{"gate", name, "has no room left in the inbox"}
			}
		case full:
			continue // one says it
		case n.Size > box.Limit:
			what = "A webhook of " + page.Bytes(n.Size) + " is larger than the whole inbox, which has room for " +
				page.Bytes(box.Limit)
			full = true
		default:
			what, full = what+": "+used+" are used", true
		}
		t := nearlyFull.is(what, about).link("/webhooks?state=waiting")
		t.which = name
		all = append(all, t)
	}
	if !full && box.Limit > 0 && float64(box.Used) > .85*float64(box.Limit) {
		all = append(all, nearlyFull.is("The inbox is nearly full: "+used, ofGate("")).link("/webhooks?state=waiting"))
	}
	if box.Homeless > 0 {
		what := page.Plural(box.Homeless,
			"webhook waits, but no receiver takes its platform any more",
			"webhooks wait, but no receiver takes their platform any more")
		all = append(all, homeless.is(what, ofGate("")).
			link("/webhooks?state=waiting").
			run("usher inbox ls --state waiting"))
	}
	if box.Parked > 0 {
		are := " are parked"
		if box.Parked == 1 {
			are = " is parked"
		}
		d := &box.ParkedDetails
		all = append(all, parked.is(d.words(box.Parked)+are, s.parkedAt()...).
			quoting("the receiver answered", d.Reason).
			since(d.Since).
			link(d.Link).
			run("usher inbox ls --state parked").
			counts(box.Parked, len(d.Tenants)).
			naming(d.Tenants, len(d.Tenants)))
	}
	if box.Invalid > 0 {
		all = append(all, box.InvalidDetails.invalid(invalid, box.Invalid).run("usher inbox ls --state invalid"))
	}
	return all
}

var (
	nearlyFull = kind("inbox-full", Warning, "UsherInboxNearlyFull",
		"When it is full, senders get 503, and changes do not reach your customers.",
		"Fix the receivers so that they take what waits, discard what they will never take, or raise "+
			"USHER_WEBHOOK_INBOX_MAX_BYTES.")
	homeless = kind("no-receiver", Critical, "UsherWebhooksWait",
		"The tenants of these platforms do not get what they paid for, or keep what they no longer pay for.",
		lane.GiveToReceiver+".")
	parked = kind("parked", Critical, "UsherWebhooksParked",
		"Their tenants may not get what they paid for: usher does not try a parked webhook again by itself.",
		"Fix the receiver, then redeliver them with 'usher inbox redeliver --state parked'. "+
			"To set aside one that it will never take: 'usher inbox discard ID'.")
	invalid = kind("invalid", Critical, "UsherWebhooksInvalid",
		"Each may be a change that nobody sends again: their tenants may not get what they paid for.",
		"See what is wrong with each: 'usher inbox show ID'. Correct it in the billing service and send it "+
			"again (if you customised the payload, set USHER_WEBHOOK_SCHEMA_FILE first), or take it in as it "+
			"is with 'usher inbox accept ID', or set it aside with 'usher inbox discard ID'.")
	invalidInMemory = kind("invalid", Critical, "UsherWebhooksInvalid",
		"Each may be a change that nobody sends again: their tenants may not get what they paid for.",
		"Correct them in the billing service, or describe its payload in USHER_WEBHOOK_SCHEMA_FILE, "+
			"then send them again from its webhook log.")
)

// invalid returns the trouble of webhooks that came from the right sender, and whose content usher rejected.
func (d *Details) invalid(k *Kind, n int) Trouble {
	return k.is("usher rejected "+d.words(n), ofGate("")).
		quoting("the last one", d.Reason).
		since(d.Since).
		link(d.Link).
		counts(n, len(d.Tenants)).
		naming(d.Tenants, len(d.Tenants))
}

// parkedAt returns the receivers for which webhooks are parked.
func (s *Status) parkedAt() []Subject {
	about := []Subject{ofGate("")}
	for i := 0; s.Gate != nil && i < len(s.Gate.Receivers); i++ {
		if r := &s.Gate.Receivers[i]; r.Parked > 0 {
			about = append(about, r.of("has "+page.Plural(r.Parked, "parked webhook", "parked webhooks")))
		}
	}
	return about
}

// words counts the webhooks and names their tenants.
func (d *Details) words(n int) string {
	count := page.Plural(n, "webhook", "webhooks")
	if len(d.Tenants) == 0 {
		return count
	}
	return count + " of " + page.FirstFew(d.Tenants)
}

// quoted returns somebody's words, or nothing if there are none.
func quoted(who, words string) string {
	if words == "" {
		return ""
	}
	return "; " + who + ": " + page.Excerpt(words)
}
