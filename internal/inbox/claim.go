package inbox

import (
	"cmp"
	"slices"

	"usher/internal/lane"
	"usher/internal/receiver"
	"usher/webhookgate"
)

// A claim asks for leases of one receiver's lanes that nobody delivers, in the order of its fields.
type claim struct {
	Receiver *receiver.Receiver
	Room     int // how many leases at the most
	Failed   int // how many of them for lanes whose last try failed

	Fresh  int // lanes that are due and have not failed, those that wait longest
	Newest int // the same, those that came last
	// Early are lanes that have failed, due or not, and were last tried before TriedBefore: those that were tried
	// longest ago.
	Early       int
	TriedBefore int64 // zero: a second ago
	DownOnly    bool  // of these only lanes whose receiver was down, and after the retries
	Retries     int   // lanes that are due and have failed

	skip    map[webhookgate.LaneName]bool // not these
	touched []webhookgate.LaneName        // what the last run of the transaction has leased
	result  claimed
}

// claimed is what came of a claim.
type claimed struct {
	Leases      []*lane.Lease
	Fresh       int   // how many of the leases are for lanes that have not failed
	MoreFresh   bool  // there may be more lanes that have not failed
	MoreRetries bool  // there may be more lanes that have failed and are due
	MoreEarly   bool  // there may be more that were last tried before TriedBefore
	err         error // why there are no leases
}

// The kinds of lanes that the statement claim finds, in the order in which they get leases.
const (
	foundFresh, foundNewest, foundEarly, foundRetry = 0, 1, 2, 3
)

// found is a lane that a claim has found.
type found struct {
	kind int64
	lane *lane.Lane
}

// order sorts what a claim has found: by kind, and each kind by its turn. The statement's parts are in order, but
// nothing promises that.
func (c *claim) order(all []found) {
	turn := func(f found) (kind, turn int64) {
		switch f.kind {
		case foundNewest:
			return f.kind, -f.lane.Due
		case foundEarly:
			if c.DownOnly {
				return foundRetry + 1, f.lane.LastTry
			}
			return f.kind, f.lane.LastTry
		}
		return f.kind, f.lane.Due
	}
	slices.SortStableFunc(all, func(a, b found) int {
		kindA, turnA := turn(a)
		kindB, turnB := turn(b)
		return cmp.Or(cmp.Compare(kindA, kindB), cmp.Compare(turnA, turnB))
	})
}

// take leases the lanes that a claim has found, as far as there is room.
func (c *claim) take(all []found) (r claimed) {
	c.order(all)
	c.touched = nil
	var seen [foundRetry + 1]int
	failed := 0
	for _, f := range all {
		if c.skip[f.lane.LaneName] {
			continue
		}
		seen[f.kind]++
		mayFail := f.kind == foundEarly || f.kind == foundRetry
		if len(r.Leases) >= c.Room || mayFail && failed >= c.Failed {
			r.MoreEarly = r.MoreEarly || f.kind == foundEarly
			continue
		}
		lease := f.lane.Claim(c.Receiver)
		if f.lane.RowChanged() {
			c.touched = append(c.touched, f.lane.LaneName)
		}
		if lease == nil {
			continue
		}
		r.Leases = append(r.Leases, lease)
		if mayFail {
			failed++
		} else {
			r.Fresh++
		}
	}
	r.MoreFresh = c.Fresh > 0 && seen[foundFresh] >= c.Fresh
	r.MoreEarly = r.MoreEarly || c.Early > 0 && seen[foundEarly] >= c.Early
	r.MoreRetries = c.Retries > 0 && seen[foundRetry] >= c.Retries
	return r
}

// maxReadAhead is the size up to which a content is read together with its lease. A larger one is read when it is sent.
const maxReadAhead = 64 << 10
