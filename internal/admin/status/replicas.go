package status

import (
	"cmp"
	"strings"
	"time"

	"usher/internal/inbox"
	"usher/internal/view"
)

// notificationsFail says that usher cannot send notifications.
func notificationsFail(s *Status, _ time.Time) []Trouble {
	if s.Notifications == nil || s.Notifications.Error == "" {
		return nil
	}
	return wrong("usher cannot send notifications: " + s.Notifications.Error).since(s.Notifications.Since).only()
}

// Found returns what is wrong, as the history has it. replica is the name of this one.
func (s *Status) Found(now time.Time, replica string) (all []inbox.Trouble) {
	for i := range s.Troubles {
		if t := &s.Troubles[i]; t.Replica == "" {
			all = append(all, t.record(now, replica))
		}
	}
	return all
}

// key is that of the row in the history: the kind, and what it is about.
func (t *Trouble) key() string {
	key := t.Kind
	if len(t.about) > 0 {
		key += " " + t.about[0].Part
	}
	if len(t.about) == 1 { // else it is about several receivers, not always the same
		key += " " + t.about[0].Name
	}
	return key + t.which
}

func (t *Trouble) record(now time.Time, replica string) inbox.Trouble {
	out := inbox.Trouble{About: t.key(), Began: t.Since, TroubleWords: t.TroubleWords}
	out.What = cmp.Or(t.bare, t.What)
	if t.Kind == NotifyFails { // no message says that none can be sent
		out.Told = inbox.ToldOver
	}
	if t.own {
		out.Replica = replica
	}
	if t.Since.IsZero() || t.Since.After(now) {
		out.Began = now
	}
	return out
}

// elsewhere is a trouble that only another replica sees.
func elsewhere(r *inbox.Trouble) Trouble {
	t := Trouble{TroubleWords: r.TroubleWords, Replica: r.Replica}
	t.What = What(r)
	return t.since(r.Began)
}

// Lasted says from when to when something was wrong, and how long, in words.
func Lasted(t *inbox.Trouble) string {
	return strings.TrimSpace(between(t.Began, t.Ended)) + ", for " +
		view.Span(max(t.Ended.Sub(t.Began), time.Second).Round(time.Second))
}

// What says what was wrong, and on which replica.
func What(t *inbox.Trouble) string {
	if t.Replica == "" {
		return t.What
	}
	return "on " + t.Replica + ": " + t.What
}
