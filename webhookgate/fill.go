package webhookgate

import (
	"fmt"

	"usher/internal/content"
	"usher/internal/snapshot"
	"usher/internal/text"
)

// fill reads from a webhook's parsed body what the gate must know of it. If the webhook is invalid, it returns the
// reason (type, schema or platform) and the faults. A question needs nothing but its type.
func (c *Config) fill(w *Webhook, value any) (reason string, faults []content.Fault) {
	platform, certain := w.read(value, c.Receivers)
	if c.isQuestion(w.Type) {
		return "", nil
	}
	if faults := c.Rules.Faults(value); len(faults) > 0 {
		if w.Type != "" && !c.Rules.Accept(w.Type) {
			return "type", faults
		}
		return "schema", faults
	}
	if c.Store != nil && !certain && w.Type == "" { // possible if * is among the types
		return "schema", []content.Fault{{Path: "/type", Message: "must name the event, as there is no tenant"}}
	}
	if w.Receiver == nil && !c.StoreUnclaimed {
		return "platform", []content.Fault{unclaimed(platform)}
	}
	if !certain { // the webhook names no tenant; a code that cannot be read is one of the faults above
		w.Lane = LaneName{Platform: platform, Type: w.Type}
	}
	if w.Snapshot && c.Store != nil {
		w.State = snapshot.Of(value).Stored(platform, w.Lane.Tenant, w.ID)
	}
	return "", nil
}

func unclaimed(platform string) content.Fault {
	message := fmt.Sprintf("is %q, and no receiver takes webhooks of this platform", text.Clip(platform, maxShown))
	if platform == "" {
		message = "is missing, and no receiver takes webhooks without a platform"
	}
	return content.Fault{Path: "/payload/tenant/platform/code", Message: message}
}
