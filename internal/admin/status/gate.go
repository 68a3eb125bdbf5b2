package status

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/receiver"
)

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

// Gate is the state of the webhook gate.
type Gate struct {
	Address   string     `json:"address"` // where webhooks are posted
	Receivers []Receiver `json:"receivers"`

	Set       *receiver.Set                  `json:"-"`
	Tries     map[string]metrics.RecentTries `json:"-"` // by the receiver's name
	Decisions []metrics.Minute               `json:"-"` // of metrics.Gate

	FailedChecks metrics.FailedChecks   `json:"-"`
	PassedChecks []metrics.FailedChecks `json:"-"` // after which one passed
	Questions    metrics.Questions      `json:"-"`

	CertificateEnds time.Time `json:"-"` // zero without TLS

	// Only without an inbox:
	Invalid        int     `json:"invalid,omitempty"` // webhooks that usher rejected, and that nobody has sent again
	InvalidDetails Details `json:"-"`
}

// Receiver is the state of a receiver.
type Receiver struct {
	Name string `json:"name"`
	// Platforms says whose webhooks it gets; if empty, those of all platforms that no other receiver has.
	Platforms []string      `json:"platforms"`
	Address   string        `json:"address"`
	LastTry   string        `json:"last_try,omitempty"` // see metrics.RecentTries.Last
	State     string        `json:"state"`              // in words; from the troubles
	Tone      string        `json:"tone"`               // good, warn or bad; empty: nobody knows
	Waiting   int           `json:"waiting"`            // webhooks in the inbox
	Oldest    time.Duration `json:"oldest"`
	Parked    int           `json:"parked"`
	Paused    bool          `json:"paused"` // somebody has paused its deliveries

	down    bool // it takes no webhooks
	failing int  // the tenants whose webhooks it does not take
	tries   metrics.RecentTries
	since   time.Time // since when; zero: not known
	last    time.Time // when it last took something; zero: never
}

// judge derives Receivers. box is nil without an inbox.
func (g *Gate) judge(box *Inbox) {
	g.Receivers = []Receiver{} // An empty list is written as [], not as null.
	for _, r := range g.Set.All() {
		g.Receivers = append(g.Receivers, newReceiver(r, g.Tries[r.Name], box))
	}
}

// newReceiver collects what is known about a receiver. box is nil without an inbox.
func newReceiver(r *receiver.Receiver, tries metrics.RecentTries, box *Inbox) Receiver {
	s := Receiver{
		Name:      r.Name,
		Platforms: append([]string{}, r.Platforms...),
		Address:   r.Address(),
		LastTry:   tries.Last,
		tries:     tries,
		since:     tries.Since,
	}
	if box == nil {
		s.down = tries.OK == 0 && tries.Last != "" && tries.Last != "ok" || tries.InARow >= manyInARow
		return s
	}
	if stats, ok := box.stats.Receivers[r.Name]; ok {
		// What waits says more than the last try, which may have been that of any tenant. The
		// rule is that of deliveries.
		s.Waiting = stats.Pending
		s.Oldest = stats.Oldest
		s.Parked = stats.Parked
		s.since = stats.FailingSince
		s.last = stats.LastAccepted
		s.down, s.failing = stats.Down(), stats.NotAccepted
	}
	s.Paused = slices.ContainsFunc(box.Paused, func(p inbox.Pause) bool {
		return p.Tenant == "" && (p.Receiver == "" || p.Receiver == r.Name)
	})
	return s
}

// manyInARow failures, whichever the tenants, mean that the receiver is down, and not that it does not take
// those of some tenants. With an inbox the courier decides that.
const manyInARow = 10

// quiet is what the line of a receiver says without a trouble, and its tone. One failed try is none, but it
// does not take webhooks either.
func (r *Receiver) quiet() (words, tone string) {
	switch elsewhere := r.Waiting == 0 && r.last.After(r.tries.Since); {
	case r.tries.Last == "":
		return "has not been tried yet", ""
	case r.tries.Last == "ok", elsewhere: // another replica has delivered what failed here
		return "takes webhooks", good
	default:
		return "did not take the last webhook", ""
	}
}

// failureWords describes how a receiver fails that takes nothing.
func failureWords(tries metrics.RecentTries) string {
	switch tries.LastFailed {
	case "error":
		return "can't be reached"
	case "timeout":
		return "does not answer in time"
	case "status":
		return fmt.Sprintf("answers %d to everything", tries.LastStatus)
	default: // other replicas have tried it
		return "takes nothing"
	}
}

// GateChart returns the chart of the gate's decisions. It leaves out those that do not occur.
func (s *Status) GateChart() page.Chart {
	var starts []time.Time
	var series []page.Series
	minutes := sinceFirst(s.Gate.Decisions)
	for _, m := range minutes {
		starts = append(starts, m.Start)
	}
	notWebhooks := metrics.Sum(minutes, len(minutes), metrics.NoWebhooks, metrics.FailedQuestions)
	total := metrics.Sum(minutes, len(minutes)) - notWebhooks
	summary := ""
	for i, decision := range metrics.Decisions {
		n := metrics.Sum(minutes, len(minutes), i)
		if n == 0 {
			continue
		}
		one := page.Series{Class: "c-" + decision, Label: decision, Total: page.Count(n)}
		for _, m := range minutes {
			one.Add(float64(m.Counts[i]), strconv.Itoa(m.Counts[i]))
		}
		series = append(series, one)
		summary += fmt.Sprintf(", %s %s", page.Count(n), decision)
	}
	return page.NewBars("decisions", "Webhooks per minute",
		page.Plural(total, "webhook", "webhooks")+" in the last hour"+summary+".", starts, series, figure)
}

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
		of, reads, run = fileGone, true, "usher inbox export > inbox.jsonl"
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
	fileOn    = " usher continues by itself, and delivers meanwhile what it has."
	dataOn    = " Deliveries wait, too. Entitlements are answered for the tenants that usher holds in " +
		"memory; for others they are 503."
	readOn = " Deliveries wait, too. Entitlements are answered."
)

var (
	diskFull = kind("disk-full", Critical, "UsherDown", nothingIn+safe+fileOn,
		"Free some space on this disk, or make it larger: usher needs 32 MiB. "+
			"Do not delete or move the inbox's files.").ofReplica()
	fileReadOnly = kind("file-read-only", Critical, "UsherDown", nothingIn+safe,
		"Find out why the file may only be read: its owner and mode, or a disk that was mounted read-only "+
			"after an error. Then restart usher.").ofReplica()
	fileGone = kind("file-gone", Critical, "UsherDown",
		nothingIn+" usher still has the file open. What is in it is lost when usher stops.",
		"Do not stop or restart usher. First save the inbox with the command below. "+
			"Then put the file back and restart usher; or move what is left of it away, restart usher on a "+
			"port that nobody sends to (USHER_WEBHOOK_LISTEN), run 'usher inbox import inbox.jsonl', "+
			"and restart it on its own port. At the end compare with the billing service ('usher help "+
			"reconcile' says how): a restart forgets whose webhooks got 503 meanwhile.").ofReplica()
	fileBroken = kind("file-broken", Critical, "UsherDown", nothingIn+safe,
		"Fix the disk, then restart usher, and compare with the billing service ('usher help reconcile' says "+
			"how): a restart forgets whose webhooks got 503 meanwhile.").ofReplica()
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
			"What it will never take: 'usher inbox discard ID'.")
	invalid = kind("invalid", Critical, "UsherWebhooksInvalid",
		"Each may be a change that nobody sends again: their tenants may not get what they paid for.",
		"See what is wrong with each: 'usher inbox show ID'. Correct it in the billing service and send it "+
			"again (if you customised the payload, set USHER_WEBHOOK_SCHEMA_FILE first), or take it in as it "+
			"is with 'usher inbox accept ID', or 'usher inbox discard ID'.")
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

const (
	// patience is how long a webhook may wait before that is a trouble; shortPatience, if the last try failed.
	patience      = time.Minute
	shortPatience = 3 * time.Second
)

// receiverTroubles are those of the receivers, one for each. They name the receiver if it takes nothing, and
// the tenants if it takes the webhooks of others.
func receiverTroubles(s *Status, now time.Time) (all []Trouble) {
	if s.Gate == nil {
		return nil
	}
	for i := range s.Gate.Receivers {
		r := &s.Gate.Receivers[i]
		var found []Trouble
		switch {
		case r.Paused: // pauseTroubles say so
			continue
		case s.Inbox == nil:
			found = s.passThrough(r)
		default:
			found = s.deliveries(r)
		}
		silent := now.Sub(r.tries.Unanswered)
		if len(found) == 0 && !r.tries.Unanswered.IsZero() && silent >= shortPatience {
			words := "has not answered for " + page.Span(silent.Truncate(time.Second))
			found = []Trouble{unanswered.is(s.Gate.nameOf(r)+" "+words, r.of(words)).since(r.tries.Unanswered)}
		}
		all = append(all, found...)
	}
	return all
}

// deliveries returns the trouble of a receiver behind an inbox.
func (s *Status) deliveries(r *Receiver) []Trouble {
	name := s.Gate.nameOf(r)
	waiting := page.Plural(r.Waiting, "webhook waits", "webhooks wait")
	waits := fmt.Sprintf("%s, the oldest for %s", waiting, page.Span(r.Oldest.Round(time.Second)))
	switch {
	case r.down:
		fails, last := failureWords(r.tries), ""
		held := slices.DeleteFunc(slices.Clone(s.Inbox.HeldUp), func(h HeldUp) bool {
			return h.Receiver != r.Name || h.Paused || !h.Down
		})
		if len(held) > 0 {
			last = quoted("the last try", held[0].Answer)
		}
		if slices.ContainsFunc(held, func(h HeldUp) bool { return h.status != held[0].status }) {
			fails, last = "takes nothing", "; the last tries: "+answersOf(held)
		}
		nothing := name + " " + fails + ": nothing is delivered, "
		t := receiverFails.is(nothing+waits+last, r.of(fails)).
			since(r.since).
			link("/webhooks?state=waiting").
			counts(r.Waiting, r.failing)
		t.bare = nothing + waiting
		return []Trouble{t}
	case r.Oldest <= shortPatience:
	case r.failing > 0:
		return s.failingTenants(r)
	case r.Oldest > patience && len(s.Inbox.Paused) == 0: // with a pause, the oldest may be one that is paused
		t := receiverSlow.is(name+" is slow to take webhooks: "+waits, r.of("is slow")).
			link("/webhooks?state=waiting").
			counts(r.Waiting, 0)
		t.bare = name + " is slow to take webhooks: " + waiting
		return []Trouble{t}
	}
	return nil
}

// failingTenants returns the trouble of a receiver that does not take some tenants' webhooks.
func (s *Status) failingTenants(r *Receiver) []Trouble {
	var held []HeldUp
	paused := false
	for i := range s.Inbox.HeldUp {
		switch h := s.Inbox.HeldUp[i]; {
		case h.Receiver != r.Name || h.Down:
		case h.Paused:
			paused = true
		default:
			held = append(held, h)
		}
	}
	if paused && len(held) == 0 {
		return nil
	}
	var since time.Time
	who, last := "some tenants", ""
	var names []string
	waiting := 0
	for _, h := range held {
		names = append(names, h.Name())
		waiting += 1 + h.Behind
	}
	if len(held) > 0 {
		since = held[0].Since
		who, last = namesAndAnswers(held)
	}
	name, tenants := s.Gate.nameOf(r), page.Plural(r.failing, "tenant", "tenants")
	const butNot = "takes webhooks, but not those of "
	trouble := tenantsFail.is(name+" "+butNot+who, r.of(butNot+tenants)).quoting("the last answer", last)
	trouble.turned = true // the receiver may have been down until a moment ago
	if !since.IsZero() && r.last.Before(since) {
		trouble = onlyTenantsFail.is(name+" does not take the webhooks of "+who+", and has taken no others since",
			r.of("fails for "+tenants+", and has taken no others since")).quoting("the last try", last)
	}
	if len(names) > 0 {
		trouble.bare = strings.Replace(trouble.bare, who, page.FirstFew(names), 1)
	}
	trouble = trouble.counts(waiting, r.failing).naming(names, r.failing)
	if r.Oldest > longWait {
		trouble.Severity = Critical
	}
	return []Trouble{trouble.since(since).link("/webhooks?state=waiting").run("usher inbox ls --state waiting")}
}

// namesAndAnswers returns the first tenants, and their last answer. If they got different ones, each name has
// its own, and last is empty.
func namesAndAnswers(held []HeldUp) (who, last string) {
	if slices.ContainsFunc(held, func(h HeldUp) bool { return h.Answer != held[0].Answer }) {
		return answersOf(held), ""
	}
	var names []string
	for i := range held {
		names = append(names, held[i].Name())
	}
	return page.FirstFew(names), held[0].Answer
}

// answersOf returns the first tenants, each with its last answer.
func answersOf(held []HeldUp) string {
	var both []string
	for i := range held {
		both = append(both, fmt.Sprintf("%s (%s)", held[i].Name(), page.Excerpt(held[i].Answer)))
	}
	return page.FirstFew(both)
}

// longWait is how long a webhook may wait before that is worth waking somebody up for; the alert
// UsherWebhooksWait goes by it, too.
const longWait = 10 * time.Minute

const tenantsHurt = "These tenants do not get what they paid for, or keep what they no longer pay for. "

var (
	receiverFails = kind("receiver-down", Critical, "UsherReceiverFails",
		"No change reaches your customers: they do not get what they paid for, or keep what they no longer "+
			"pay for. Nothing is lost.",
		"Fix the receiver, or the way to it: usher then delivers what waits by itself, in order.")
	unanswered = kind("receiver-silent", Warning, "",
		"While usher waits for the answer, the webhooks behind this one wait, too.",
		"Find out what the receiver is doing. When its answer is late, or does not come, "+
			"usher tries again by itself.").ofReplica()
	receiverSlow = kind("receiver-slow", Critical, "UsherWebhooksWait",
		"Changes reach your customers late. Nothing is lost.",
		"Find out why the receiver is slow; usher delivers what waits by itself, in order. "+
			"'usher inbox ls' shows which webhook holds up which tenant, and what the receiver answered.")
	tenantsFail = kind("tenants-fail", Warning, "UsherWebhooksWait", tenantsHurt+"Others' webhooks are delivered.",
		"Find out why the receiver does not take them: 'usher inbox ls' shows what it answered. "+
			"usher tries again by itself.")
	onlyTenantsFail = kind("tenants-fail", Warning, "UsherWebhooksWait",
		tenantsHurt+"Nothing else was delivered since: perhaps the receiver takes nothing at all.",
		"Find out why the receiver does not take them: 'usher inbox ls' shows what it answered. "+
			"usher tries again by itself.")
)

// nameOf returns the subject of a sentence about a receiver. Its name is left out if there is only one.
func (g *Gate) nameOf(r *Receiver) string {
	if len(g.Receivers) > 1 {
		return "The receiver " + r.Name + " (" + r.Address + ")"
	}
	return "The receiver " + r.Address
}

// passThrough returns the trouble of a receiver without an inbox.
func (s *Status) passThrough(r *Receiver) []Trouble {
	n := decided(s.Gate, "failed")
	if !r.down || n == 0 {
		return nil
	}
	fails := failureWords(r.tries)
	what := fmt.Sprintf("%s %s: %s in the last %d minutes",
		s.Gate.nameOf(r), fails, page.Plural(n, "webhook failed", "webhooks failed"), lately)
	return []Trouble{failing.is(what, r.of(fails)).since(r.since).link("/webhooks?state=failed").counts(n, 0)}
}

var failing = kind("receiver-down", Critical, "UsherWebhooksMissed",
	"No change reaches your customers, and the sender might not send it again.",
	"Fix the receiver, or the way to it, then resend the failed webhooks from the webhook log of the billing "+
		"service. With USHER_WEBHOOK_INBOX usher would keep them.")

// decided returns how many webhooks got this decision lately.
func decided(g *Gate, decision string) int {
	return metrics.Sum(g.Decisions, lately, slices.Index(metrics.Decisions[:], decision))
}

// questionTroubles say that webhooks which ask the receiver a question got a 5xx. Of all other webhooks that
// got one, missedTroubles say so.
func questionTroubles(s *Status, now time.Time) []Trouble {
	if s.Gate == nil {
		return nil
	}
	n := metrics.Sum(s.Gate.Decisions, lately, metrics.FailedQuestions)
	if n == 0 || isOver(s.Gate.Questions.Failed, s.Gate.Questions.Answered, now) {
		return nil
	}
	what := fmt.Sprintf("The receiver did not answer %s in the last %d minutes",
		page.Plural(n, "question", "questions"), lately)
	return []Trouble{questionsFail.is(what, ofGate("")).link("/webhooks?state=failed")}
}

var questionsFail = kind("questions-fail", Critical, "",
	"The billing service has asked (USHER_WEBHOOK_SYNC_TYPES), and got a 5xx: what it asked for, such as a "+
		"checkout, did not go on.",
	"Fix the receiver, or the way to it. The page of the failed webhooks says what each of them got.").ofReplica()

// senderTroubles say that every webhook fails the check of its sender, from the third one on. One that failed
// it is normal: anybody can send something.
func senderTroubles(s *Status, now time.Time) []Trouble {
	if s.Gate == nil {
		return nil
	}
	f := s.Gate.FailedChecks
	if f.Count < metrics.SomeFailed || now.Sub(f.Last) > 15*time.Minute {
		return nil
	}
	begin := f.Since.UTC().Format(time.TimeOnly) + " UTC"
	what := "Every webhook since " + begin + " failed the check of its sender: " + page.Count(f.Count)
	return []Trouble{allRejected.is(what, ofGate("")).
		since(f.Since).
		link("/webhooks?state=rejected").
		counts(f.Count, 0)}
}

// overSenders are those that ended because a webhook passed, in the last minute: perhaps before anybody looked.
func (s *Status) overSenders(now time.Time) (all []Trouble) {
	if s.Gate == nil {
		return nil
	}
	for _, f := range s.Gate.PassedChecks {
		if now.Sub(f.Passed) > time.Minute {
			continue
		}
		webhooks := page.Plural(f.Count, "webhook", "webhooks")
		what := webhooks + " failed the check of their sender" + between(f.Since, f.Last) + ", then one passed"
		t := allRejected.is(what, ofGate("")).since(f.Since).counts(f.Count, 0)
		t.over = f.Passed.UTC()
		t.then = "See at /webhooks?state=rejected of the admin page, of each replica its own, who sent them. " +
			"If it was the billing service, resend them from its webhook log: usher has not taken them in."
		all = append(all, t)
	}
	return all
}

var allRejected = kind("senders-rejected", Warning, "UsherEverythingRejected",
	"Either strangers try the address, or no change reaches your customers.",
	"The admin page, of each replica its own, shows at /webhooks?state=rejected who sent them, and why each "+
		"was rejected. If it was the billing service: give it and the gate the same secret, then resend them "+
		"from its webhook log.").ofReplica()

// clockTroubles say that the clocks of this machine and of the inbox's database differ.
func clockTroubles(s *Status, _ time.Time) []Trouble {
	if s.Inbox == nil || s.Inbox.ClockAhead.Abs() <= maxClockDifference {
		return nil
	}
	way := "ahead of"
	if s.Inbox.ClockAhead < 0 {
		way = "behind"
	}
	by := page.Span(s.Inbox.ClockAhead.Abs().Round(time.Second))
	what := "The clock of this machine is " + by + " " + way + " the database's"
	return []Trouble{clocksDiffer.is(what, ofGate(""))}
}

// maxClockDifference is how much the clocks may differ.
const maxClockDifference = 5 * time.Second

var clocksDiffer = kind("clocks-differ", Warning, "",
	"Receivers that check webhook-timestamp reject what this replica delivers, if its clock is the wrong "+
		"one: most allow five minutes. usher's own times may be wrong, too.",
	"Set the clock that is wrong, by NTP: this machine's, or that of the database's machine.").ofReplica()

// certificateTroubles say that the gate's certificate ends, from a week before, as the alert does.
func certificateTroubles(s *Status, now time.Time) []Trouble {
	if s.Gate == nil || s.Gate.CertificateEnds.IsZero() {
		return nil
	}
	const what = "The TLS certificate of the webhook gate"
	switch left := s.Gate.CertificateEnds.Sub(now); {
	case left <= 0:
		return []Trouble{certificateEnded.is(what+" has expired", ofGate("")).since(s.Gate.CertificateEnds)}
	case left < 24*time.Hour:
		return []Trouble{certificateEnded.is(what+" expires in "+page.Span(left.Round(time.Second)), ofGate(""))}
	case left < 7*24*time.Hour:
		return []Trouble{certificateEnds.is(what+" expires in "+page.Span(left.Round(time.Second)), ofGate(""))}
	}
	return nil
}

const newCertificate = "Put a new one into the files that USHER_WEBHOOK_TLS_CERT_FILE and " +
	"USHER_WEBHOOK_TLS_KEY_FILE name: usher uses it without a restart."

var (
	certificateEnds = kind("certificate-ends", Warning, "UsherCertificateEnds",
		"When it has expired, senders do not connect, and changes do not reach your customers.",
		newCertificate).ofReplica()
	certificateEnded = kind("certificate-ends", Critical, "UsherCertificateEnds",
		"When it has expired, senders do not connect, and changes do not reach your customers.",
		newCertificate).ofReplica()
)
