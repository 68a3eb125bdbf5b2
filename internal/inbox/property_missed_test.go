package inbox

import (
	"context"
	"slices"
	"time"

	"usher/internal/lane"
	"usher/webhookgate"
)

// judgeMissed looks at who is missed a webhook when nothing is on its way any more: on all replicas the same, because
// it is stored by then. It only judges what is certain: to usher, two webhooks that are a second apart may have come
// in either order.
func (w *world) judgeMissed(entries []*lane.Webhook, deadline time.Time) {
	const clocks = 200 * time.Millisecond // they may differ by so much, ours and the database's
	late := func(p *place) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		past := time.Since(deadline)
		// Other worlds may have killed the server.
		return past > time.Minute || past > 0 && !w.away(p.life, time.Now(), time.Now())
	}
	for _, p := range w.places {
		for p.inbox.cfg.Missed.Len() > 0 {
			if late(p) {
				w.fail("(j) place %d does not store what was missed", p.number)
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	isStored := func(a *arrival) bool {
		return slices.ContainsFunc(entries, func(e *lane.Webhook) bool { return e.UUID == a.webhook.ID })
	}
	for _, tenant := range w.tenants {
		var missed []bool
		for _, p := range w.places {
			since, err := p.inbox.MissedOf(context.Background(), platform(tenant), tenant)
			for ; err != nil; since, err = p.inbox.MissedOf(context.Background(), platform(tenant), tenant) {
				if late(p) {
					w.fail("(j) who has missed webhooks: %v", err)
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
			missed = append(missed, !since.IsZero())
		}
		w.mu.Lock()
		var last *arrival  // the last one that somebody sent
		var ends time.Time // when everything else about the tenant was over
		var failed, taken [][32]byte
		var lastFailed *arrival
		var maybeLast []*arrival // of those that were failed
		// An event was failed, or the last one is one: it settles, and is settled by, nothing else.
		apart := false
		over := func(at time.Time) {
			if at.After(ends) {
				ends = at
			}
		}
		for _, a := range w.arrivals {
			if a.tenant == tenant && a.run == nil && (last == nil || a.from.After(last.from)) {
				last = a
			}
		}
		for _, a := range w.arrivals {
			switch {
			case a.tenant != tenant || a == last:
				continue
			case a.ok || isStored(a): // its sender may not know it
				taken = append(taken, a.webhook.Digest)
			case a.run == nil:
				failed = append(failed, a.webhook.Digest)
				another := a.webhook.Digest != last.webhook.Digest
				apart = apart || another && (!a.webhook.Snapshot || !last.webhook.Snapshot)
				if lastFailed == nil || a.from.After(lastFailed.from) {
					lastFailed = a
				}
			}
			if over(a.from); a.ended {
				over(a.to)
			}
			if !a.life.dead.IsZero() {
				over(a.life.dead)
			}
		}
		for _, a := range w.arrivals {
			if lastFailed == nil || a == last || a.tenant != tenant || a.run != nil {
				continue
			}
			isLate := a.from.After(lastFailed.from.Add(-2 * lane.MaxJump))
			if isLate && slices.Contains(failed, a.webhook.Digest) {
				maybeLast = append(maybeLast, a)
			}
		}
		isAgain := !slices.ContainsFunc(maybeLast, func(a *arrival) bool {
			return a.webhook.Digest != last.webhook.Digest
		})
		for _, e := range slices.Concat(w.erasures, w.forgets) {
			if e.tenant == tenant {
				over(e.to)
			}
		}
		lost := false
		for _, r := range w.lost {
			if r.tenant == tenant {
				lost = true
				over(r.to)
			}
		}
		if last == nil || !last.from.After(ends.Add(clocks)) {
			w.mu.Unlock()
			continue
		}
		alive := slices.ContainsFunc(w.places, func(p *place) bool { return p.life == last.life })
		// It is a snapshot that nobody had sent before, so that it settles all others.
		isNews := last.webhook.Snapshot && !slices.Contains(failed, last.webhook.Digest)
		settles := (lastFailed == nil || isNews || isAgain) && (!lost || isNews)
		switch {
		case last.ok && !apart && settles && last.from.After(ends.Add(2*lane.MaxJump)):
			if slices.Contains(missed, true) {
				w.violation("(j) %s is missed nothing: arrival %d was taken in; "+
					"and usher says that it is, by place: %v", tenant, last.number, missed)
			}
			w.seen["missed nothing more"] = w.seen["missed nothing more"] || len(failed) > 0
		case last.ended && last.err != nil && !isStored(last) && alive && !slices.Contains(taken, last.webhook.Digest):
			if slices.Contains(missed, false) {
				w.violation("(j) %s is missed arrival %d, and usher does not say so, by place: %v",
					tenant, last.number, missed)
			}
			w.seen["missed"] = true
		}
		w.mu.Unlock()
	}
}

// judgeSettled says that after a complete reconcile nobody is missed anything whom it has compared.
func (w *world) judgeSettled(i *Inbox, all []lane.Compared) {
	for _, c := range all {
		since, err := i.MissedOf(context.Background(), c.Platform, c.Tenant)
		name := webhookgate.LaneName{Platform: c.Platform, Tenant: c.Tenant}
		inMemory := len(i.cfg.Missed.Of(name)) > 0
		if err == nil && c.Result == lane.Equal && !since.IsZero() && !inMemory {
			w.fail("(j) %s was found equal in the end, and has missed webhooks since %v", c.Tenant, since)
		}
	}
}
