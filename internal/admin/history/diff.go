package history

import (
	"cmp"
	"crypto/rand"
	"slices"
	"time"

	"usher/internal/inbox"
)

// again is how soon something that comes back is the same trouble, and not a new one.
const again = 30 * time.Second

// next brings records up to date with what is found now, and returns those that have changed. What is found
// with an end is over already.
func next(records, found []inbox.Trouble, now time.Time) (changed []inbox.Trouble) {
	still := make(map[string]bool) // ids of records that are found
	for i := range found {
		f := &found[i]
		r := lastOf(records, f, now)
		switch {
		case r == nil:
			f.ID = rand.Text()
			changed = append(changed, *f)
			records = append(records, *f) // two that look the same are one
			still[f.ID] = true
			continue
		case r.Then != "": // its end is known
			continue
		}
		still[r.ID] = true
		is := *r
		is.Ended = f.Ended
		if f.Then != "" || worse(f, r) {
			is.TroubleWords = f.TroubleWords
		}
		if !is.Ended.Equal(r.Ended) || f.Then != "" || worse(f, r) {
			changed = append(changed, is)
		}
	}
	for _, r := range records {
		if r.Ended.IsZero() && !still[r.ID] {
			r.Ended = now
			changed = append(changed, r)
		}
	}
	return changed
}

// lastOf returns the record of something that is found: one that is not over, or was a moment ago; nil: there is none.
func lastOf(records []inbox.Trouble, found *inbox.Trouble, now time.Time) (last *inbox.Trouble) {
	for i := range records {
		r := &records[i]
		same := r.About == found.About && r.Replica == found.Replica
		lately := r.Ended.IsZero() || now.Sub(r.Ended) < again || !found.Ended.IsZero()
		if !found.Ended.IsZero() || r.Then != "" { // an end that is known belongs to this begin alone
			lately = r.Began.Equal(found.Began)
		}
		if same && lately && (last == nil || r.Began.After(last.Began)) {
			last = r
		}
	}
	return last
}

// worse says whether words say something worse than those of a record.
func worse(a, b *inbox.Trouble) bool {
	return cmp.Or(
		cmp.Compare(b.Severity, a.Severity), // critical < warning
		cmp.Compare(a.Webhooks, b.Webhooks),
		cmp.Compare(a.Tenants, b.Tenants),
	) > 0
}

// Of a replica.
const (
	goneAfter = time.Minute // nothing was heard of it for so long
	goneFor   = 24 * time.Hour
)

func isGone(r *inbox.Replica, now time.Time) bool { return now.Sub(r.Seen) > goneAfter }

// missing returns the replicas that are gone without a word, and have nobody in their place: each that
// started since takes the place of one. forget are those of which nobody needs to know any more.
func missing(all []inbox.Replica, now time.Time) (gone []inbox.Replica, forget []string) {
	var fresh []time.Time
	for i := range all {
		if r := &all[i]; !r.Ended && !isGone(r, now) {
			fresh = append(fresh, r.Since)
		}
	}
	slices.SortFunc(fresh, time.Time.Compare)
	all = slices.SortedFunc(slices.Values(all), func(a, b inbox.Replica) int { return a.Seen.Compare(b.Seen) })
	for i := range all {
		r := &all[i]
		if !isGone(r, now) {
			continue
		}
		n := slices.IndexFunc(fresh, func(since time.Time) bool { return since.After(r.Seen) })
		switch {
		case r.Ended || now.Sub(r.Seen) > goneFor:
			forget = append(forget, r.Name)
		case n >= 0:
			fresh = slices.Delete(fresh, n, n+1)
			forget = append(forget, r.Name)
		default:
			gone = append(gone, *r)
		}
	}
	return gone, forget
}

// ended says when a replica's own troubles have ended: it is gone, or has ended a while ago and did not come
// back. Zero: it is there.
func ended(all []inbox.Replica, name string, now time.Time) (at time.Time) {
	i := slices.IndexFunc(all, func(r inbox.Replica) bool { return r.Name == name })
	switch {
	case i < 0:
		return now
	case isGone(&all[i], now):
		return all[i].Seen
	}
	return at
}
