package status

import (
	"cmp"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/inbox"
)

// Notifications is how usher says by itself that something is wrong.
type Notifications struct {
	Last  time.Time `json:"last,omitzero"`   // when the last message went out; zero: none did that anybody knows of
	Error string    `json:"error,omitempty"` // why the last try failed; empty: it did not
	Since time.Time `json:"since,omitzero"`  // since when tries fail
	Fails int       `json:"-"`               // how many have failed in a row
}

// Found returns the troubles of this replica, and of the inbox, as the history has them; shared: those of the
// inbox, too, which all replicas see. What is over already has its end. replica is the name of this one.
func (s *Status) Found(now time.Time, replica string, shared bool) (all []inbox.Trouble) {
	for _, found := range [][]Trouble{s.Troubles, s.overSenders(now)} {
		for i := range found {
			if t := &found[i]; t.Replica == "" && (t.own || shared) {
				all = append(all, t.record(now, replica))
			}
		}
	}
	return all
}

func (t *Trouble) record(now time.Time, replica string) inbox.Trouble {
	out := inbox.Trouble{About: t.Name, Began: t.Since, Noticed: now, Ended: t.over}
	if t.own {
		out.Replica = replica
	}
	if t.Since.IsZero() || t.Since.After(now) || t.turned {
		out.Began = now
	}
	out.TroubleWords = inbox.TroubleWords{
		Kind:     t.Name,
		Severity: t.Severity,
		What:     cmp.Or(t.bare, t.What),
		Means:    t.Means,
		Do:       t.Do,
		Run:      t.Run,
		Then:     t.then,
		Webhooks: t.Webhooks,
		Tenants:  t.Tenants,
		Named:    t.named,
		Others:   t.others,
	}
	if len(t.about) > 0 {
		about := &t.about[0]
		out.Part = about.Part
		if about.Part == "gate" {
			out.Receiver = about.Name
		}
		if len(t.about) == 1 || about.Name != "" { // else it is about several receivers, not always the same
			out.About += " " + about.Part + " " + about.Name
		}
	}
	out.About += " " + t.which
	return out
}

// replicaTroubles are those of other replicas, and of which nothing is heard.
func replicaTroubles(s *Status, _ time.Time) (all []Trouble) {
	for i := range s.Gone {
		r := &s.Gone[i]
		seen := r.Seen.UTC().Format(time.TimeOnly) + " UTC"
		t := replicaGone.is(r.Name + " is gone: nothing was heard of it since " + seen).since(r.Seen)
		t.which = r.Name
		all = append(all, t)
	}
	for i := range s.Elsewhere {
		r := &s.Elsewhere[i]
		t := Trouble{
			What:     "on " + r.Replica + ": " + r.What,
			Run:      r.Run,
			Replica:  r.Replica,
			Webhooks: r.Webhooks,
			Tenants:  r.Tenants,
			named:    r.Named,
			others:   r.Others,
			Kind:     Kind{Name: r.Kind, Severity: r.Severity, Means: r.Means, Do: r.Do, own: true},
		}
		all = append(all, t.since(r.Began))
	}
	return all
}

var replicaGone = kind("replica-gone", Warning, "",
	"Other replicas deliver what it had, but if they go, too, nobody takes webhooks. "+
		"If nobody does now, senders get an error.",
	"Look into its log, and start it again; it may also run, and not reach the database. "+
		"This ends when it is back, when a new replica has started in its place, or after a day.")

// messageTroubles say that usher cannot send notifications.
func messageTroubles(s *Status, _ time.Time) []Trouble {
	n := s.Notifications
	if n == nil || n.Fails < someFails {
		return nil
	}
	return []Trouble{notifyFails.is("usher cannot send notifications: " + n.Error).since(n.Since)}
}

// someFails is how many tries of a message may fail in a row before that is a trouble.
const someFails = 3

// NotifyFails is the kind that no message says.
const NotifyFails = "notifications-fail"

var notifyFails = kind(NotifyFails, Warning, "",
	"Nobody hears from usher itself what is wrong. This page, 'usher status' and the alerts say it.",
	"Check the address in USHER_NOTIFY_URL and the way to it ('usher check' tries to reach it), then send a "+
		"test message from the admin page.").ofReplica()

// Lasted says from when to when something was wrong, and how long, in words.
func Lasted(t *inbox.Trouble) string {
	return strings.TrimSpace(between(t.Began, t.Ended)) + ", for " +
		page.Span(max(t.Ended.Sub(t.Began), time.Second).Round(time.Second))
}

// Counted says how many webhooks and tenants it was about; empty: nobody knows.
func Counted(t *inbox.Trouble) string {
	var parts []string
	if t.Webhooks > 0 {
		parts = append(parts, page.Plural(t.Webhooks, "webhook", "webhooks"))
	}
	if t.Tenants > 0 {
		parts = append(parts, page.Plural(t.Tenants, "tenant", "tenants"))
	}
	return strings.Join(parts, " of ")
}

// What says what was wrong, and on which replica.
func What(t *inbox.Trouble) string {
	if t.Replica == "" {
		return t.What
	}
	return "on " + t.Replica + ": " + t.What
}

// Concerns says whether a trouble may be about a tenant, as for one of the history.
func (t *Trouble) Concerns(platform, tenant, receiver string) bool {
	record := t.record(time.Time{}, "")
	return Concerns(&record, platform, tenant, receiver)
}

// Concerns says whether a trouble may be about a tenant, whose webhooks this receiver gets; empty: not known.
func Concerns(t *inbox.Trouble, platform, tenant, receiver string) bool {
	if t.Part == "outbound" || t.Kind == NotifyFails || t.Kind == replicaGone.Name {
		return false
	}
	if receiver != "" && t.Receiver != "" && receiver != t.Receiver {
		return false
	}
	for _, name := range t.Named {
		if name == inbox.ShowTenant(platform, tenant) || name == tenant {
			return true
		}
	}
	return len(t.Named) == 0 || t.Others
}
