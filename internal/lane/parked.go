package lane

import "usher/internal/lane/state"

// supersededWhy is the reason of every webhook that is superseded by another one that was taken in.
const supersededWhy = "a newer snapshot of the tenant has taken its place"

// supersedeInvalid supersedes the tenant's invalid webhooks that were last received before a number: a snapshot of this type,
// or its copy, is newer and complete. It leaves alone events of other types, whose content no snapshot has.
func (l *Lane) supersedeInvalid(kind string, before int64) {
	for _, old := range l.webhooks {
		if old.State == state.Invalid && (old.Type == kind || old.Type == "") && old.Rank < before {
			l.move(old, state.Superseded, "a newer snapshot of the tenant was taken in")
		}
	}
}

// supersedeParked is for a snapshot that has just been accepted or parked. It supersedes the parked snapshot that is
// older. If one that is newer is parked already, because somebody redelivered this one with force, this one is
// superseded instead, if it is parked. So a lane has one parked snapshot at most.
func (l *Lane) supersedeParked(w *Webhook) {
	if !w.Snapshot {
		return
	}
	for _, p := range l.webhooks {
		switch {
		case p == w || p.State != state.Parked || !p.Snapshot:
		case p.ID < w.ID:
			l.move(p, state.Superseded, supersededWhy)
		case w.State == state.Parked:
			l.move(w, state.Superseded, supersededWhy)
		}
	}
}
