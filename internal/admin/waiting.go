package admin

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"usher/internal/admin/status"
	"usher/internal/inbox/store"
	"usher/internal/receiver"
	"usher/webhookgate"
)

// What webhooks wait for: their next try, another webhook of their tenant, or somebody who has paused them.

// laneOf is the queue that a webhook of that tenant, or else of that type, waits in.
func laneOf(platform, tenant, kind string) webhookgate.Lane {
	if tenant != "" {
		kind = ""
	}
	return webhookgate.Lane{Platform: platform, Tenant: tenant, Type: kind}
}

func (w *Webhook) lane() webhookgate.Lane { return laneOf(w.Platform, w.Tenant, w.Type) }

// first is the webhook that a lane waits behind.
type first struct {
	id     string
	behind int
	down   bool // the receiver is
}

// whyWaiting says of those listed what they wait for.
func (h *Handler) whyWaiting(list []Webhook) {
	if h.cfg.Inbox == nil || !slices.ContainsFunc(list, func(w Webhook) bool { return w.waits() }) {
		return
	}
	paused, homeless, known, heads := h.paused(), h.someHomeless(), h.receivers(), make(map[webhookgate.Lane]first)
	for _, held := range h.cfg.Inbox.HeldUp() {
		heads[laneOf(held.Platform, held.Tenant, held.Kind)] = first{strconv.FormatInt(held.ID, 10), held.Behind, held.Down}
	}
	for i := range list {
		w := &list[i]
		if !w.waits() {
			continue
		}
		w.Paused = status.PausedBy(paused, known, w.Platform, w.Tenant, w.Receiver) != nil
		w.NoReceiver = homeless && known.For(w.Platform) == nil
		switch f, ok := heads[w.lane()]; {
		case ok && f.id == w.ID:
			w.Behind, w.Down = f.behind, f.down
		case ok:
			w.HeldBy = f.id
		}
	}
}

func (w *Webhook) waits() bool { return w.State == store.Waiting }

// heldUpOf returns what holds up a tenant's webhooks; nil: nothing does.
func (h *Handler) heldUpOf(platform, tenant string) *status.HeldUp {
	if h.cfg.Inbox == nil || tenant == "" {
		return nil
	}
	for _, held := range h.cfg.Inbox.HeldUp() {
		if held.Platform == platform && held.Tenant == tenant {
			words := status.NewHeldUp(&held, h.receivers(), h.paused())
			return &words
		}
	}
	return nil
}

// paused is what somebody has paused.
func (h *Handler) paused() []store.Pause {
	if h.cfg.Inbox == nil {
		return nil
	}
	return h.cfg.Inbox.Stats().Paused
}

// receivers are those of the gate; none where it is off, and other replicas know them.
func (h *Handler) receivers() *receiver.Set {
	if h.cfg.Gate == nil {
		return nil
	}
	return h.cfg.Gate().Set
}

// someHomeless says whether anything waits though no receiver takes its platform. A replica without a gate, which has no
// receivers at all, does not know.
func (h *Handler) someHomeless() bool {
	return h.cfg.Inbox != nil && h.cfg.Gate != nil && h.cfg.Inbox.Stats().Receivers[""].Pending > 0
}

// asSent is a webhook's header as its receiver gets it, but for what may be a secret. at is when it was last tried.
func (h *Handler) asSent(header http.Header, w *Webhook, at time.Time) http.Header {
	sent := shown(header)
	sent.Set("Webhook-Id", w.Webhook)
	sent.Set("Webhook-Timestamp", "[each try has its own]")
	if !at.IsZero() {
		sent.Set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
	}
	if r := h.receivers().For(w.Platform); r != nil && r.SignSecret != nil {
		sent.Set("Webhook-Signature", "[redacted]")
	}
	return sent
}
