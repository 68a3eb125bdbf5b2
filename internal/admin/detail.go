package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin/recent"
	"usher/internal/admin/status"
	"usher/internal/inbox/store"
	"usher/internal/snapshot"
	"usher/webhookgate/content"
)

// WebhookDetail is the answer of GET /api/webhooks/{id}.
type WebhookDetail struct {
	Webhook
	Previous string          `json:"previous,omitempty"` // id of the snapshot that changes compares with
	Untaken  string          `json:"untaken,omitempty"`  // id of the tenant's snapshot right before it, if the receiver has not taken that
	Counted  int             `json:"counted,omitempty"`  // of its tries: those that did not find the receiver down
	Attempts []store.Attempt `json:"attempts,omitempty"` // the last 20
	Faults   []content.Fault `json:"faults,omitempty"`
	Original string          `json:"duplicate_of,omitempty"` // a webhook-id
	Header   http.Header     `json:"header,omitempty"`       // as the receiver gets it, less what could be a secret
	Payload  json.RawMessage `json:"payload,omitempty"`      // the body; one that is no JSON as a string

	held  *status.HeldUp // what holds it up while it waits; nil: nothing
	lines []snapshot.Line
	body  []byte // the payload as it came
}

// webhook returns one, by its id as it stands in an address.
func (h *Handler) webhook(id string) (*WebhookDetail, error) {
	if seq, ok := strings.CutPrefix(id, "d"); ok && h.cfg.Decisions != nil {
		n, err := strconv.ParseInt(seq, 10, 64)
		if err != nil {
			return nil, store.ErrNotFound
		}
		return h.decision(n)
	}
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || h.cfg.Inbox == nil {
		return nil, store.ErrNotFound
	}
	item, err := h.cfg.Inbox.Show(n)
	if err != nil {
		return nil, err
	}
	d := &WebhookDetail{Webhook: bare(&item.Entry), Counted: item.Counted, Attempts: item.Attempts, Faults: item.Faults, body: item.Body}
	d.compare(item)
	if item.Body != nil {
		var tried time.Time
		if n := len(item.Attempts); n > 0 {
			tried = item.Attempts[n-1].At
		}
		d.Header, d.Payload = h.asSent(item.Header, &d.Webhook, tried), payload(item.Body)
	}
	var taken int64
	if item.Previous != nil {
		taken = item.Previous.ID
		d.Previous = strconv.FormatInt(taken, 10)
		d.lines, _ = snapshot.Lines(item.Previous.Body, item.Body)
	}
	if item.Before != 0 && item.Before != taken {
		d.Untaken = strconv.FormatInt(item.Before, 10)
	}
	if !d.waits() {
		return d, nil
	}
	d.Paused = status.PausedBy(h.paused(), h.receivers(), d.Platform, d.Tenant, d.Receiver) != nil
	d.NoReceiver = h.someHomeless() && h.receivers().For(d.Platform) == nil
	switch d.held = h.heldUpOf(d.Platform, d.Tenant); {
	case d.held == nil:
	case d.held.Webhook == d.ID:
		d.Behind, d.Down = d.held.Behind, d.held.Down
	default:
		d.HeldBy = d.held.Webhook
	}
	return d, nil
}

func (h *Handler) decision(seq int64) (*WebhookDetail, error) {
	e := h.cfg.Decisions.Get(seq)
	if e == nil {
		return nil, &refusal{http.StatusNotFound, "this decision is not remembered any more: the last 1,000 are"}
	}
	d := &WebhookDetail{Webhook: h.ofDecision(e, true), Faults: e.Faults, Original: e.DuplicateOf}
	if d.body = e.Payload(); d.body != nil {
		d.Header, d.Payload = h.asSent(e.Header, &d.Webhook, time.Time{}), payload(d.body)
	}
	if previous := h.cfg.Decisions.Payload(e.Previous); previous != nil && d.body != nil {
		d.Previous = "d" + strconv.FormatInt(e.Previous, 10)
		d.lines, _ = snapshot.Lines(previous, d.body)
	}
	if e.Before != 0 && e.Before != e.Previous {
		d.Untaken = "d" + strconv.FormatInt(e.Before, 10)
	}
	return d, nil
}

// neighbours returns the ids of the tenant's webhooks that came before and after one; empty: there is none, or it is
// too far back. With an inbox they are those in it, else those that the gate remembers.
func (h *Handler) neighbours(w *Webhook) (before, after string) {
	if w.Tenant == "" {
		return "", ""
	}
	var ids []string // the newest first
	switch {
	case w.State != "":
		entries, err := h.cfg.Inbox.List(store.Filter{Tenant: w.Tenant, Platform: &w.Platform, Limit: maxPage})
		if err != nil {
			return "", ""
		}
		for _, e := range entries {
			ids = append(ids, strconv.FormatInt(e.ID, 10))
		}
	case h.cfg.Decisions != nil:
		for _, e := range h.cfg.Decisions.List(recent.Filter{Tenant: w.Tenant, Platform: &w.Platform, Limit: maxPage}) {
			ids = append(ids, "d"+strconv.FormatInt(e.Seq, 10))
		}
	}
	at := slices.Index(ids, w.ID)
	if at > 0 {
		after = ids[at-1]
	}
	if at >= 0 && at+1 < len(ids) {
		before = ids[at+1]
	}
	return before, after
}

// curlMost is how long a payload may be within a line for a shell.
const curlMost = 64 << 10

// curlLine sends a webhook as usher does, but for what may be a secret, the time and the signature: to a copy of the receiver on
// somebody's desk. Where the receiver is can't be shown here: its address may hold a secret.
func curlLine(d *WebhookDetail) string {
	if d.Payload == nil {
		return ""
	}
	var line strings.Builder
	line.WriteString(`curl -X POST "$RECEIVER_URL"`)
	header := d.Header.Clone()
	for _, name := range []string{"Content-Length", "Webhook-Timestamp", "Webhook-Signature"} {
		header.Del(name)
	}
	names := make([]string, 0, len(header))
	for name := range header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range header[name] {
			fmt.Fprintf(&line, " -H %s", quote(name+": "+value))
		}
	}
	if len(d.Payload) > curlMost {
		fmt.Fprintf(&line, " --data-binary @%s", fileName(d.ID))
	} else {
		fmt.Fprintf(&line, " --data-binary %s", quote(string(d.Payload)))
	}
	return line.String()
}

// quote writes a word so that no shell finds anything in it. Codes are foreign.
func quote(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:") == "" && word[0] != '-' {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func fileName(id string) string { return "webhook-" + id + ".json" }

// download answers with a webhook's payload, as it came, for a file.
func (h *Handler) download(w http.ResponseWriter, r *http.Request) {
	d, err := h.webhook(r.PathValue("id"))
	if err != nil {
		h.explain(w, r, err)
		return
	}
	if d.body == nil {
		h.explain(w, r, &refusal{http.StatusNotFound, "the payload of this webhook is not kept"})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Disposition", "attachment; filename="+fileName(d.ID))
	_, _ = w.Write(d.body) // the reader may be gone; nothing to do about it
}
