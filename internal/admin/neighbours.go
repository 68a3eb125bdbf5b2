package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"usher/internal/admin/decisions"
	"usher/internal/inbox"
)

// neighbours returns the ids of the tenant's webhooks that came before and after one; empty: there is none, or it is
// too far back. With an inbox they are those in it, else those that the gate remembers.
func (h *Handler) neighbours(w *Webhook) (before, after string) {
	if w.Tenant == "" {
		return "", ""
	}
	var ids []string // the newest first
	switch {
	case w.State != "":
		entries, err := h.cfg.Inbox.List(inbox.Filter{Tenant: w.Tenant, Platform: &w.Platform, Limit: maxPage})
		if err != nil {
			return "", ""
		}
		for _, e := range entries {
			ids = append(ids, strconv.FormatUint(e.ID, 10))
		}
	case h.cfg.Decisions != nil:
		for _, e := range h.cfg.Decisions.List(decisions.Filter{Tenant: w.Tenant, Platform: &w.Platform, Limit: maxPage}) {
			ids = append(ids, "d"+strconv.FormatUint(e.Seq, 10))
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
