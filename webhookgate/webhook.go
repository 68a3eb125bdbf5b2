package webhookgate

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"usher/internal/clip"
	"usher/internal/trace"
	"usher/webhookgate/content"
)

// A Webhook has passed every check, and has everything that its delivery needs. It does not
// change any more.
type Webhook struct {
	ID       string // a UUIDv7: what the receiver gets as webhook-id, on every try
	Type     string
	Lane     Lane
	Snapshot bool              // a tenant's complete state: dedup applies
	Digest   [sha256.Size]byte // of Body
	Body     []byte            // unchanged
	Header   http.Header       // for the receiver, without what differs in each try
	Received time.Time
}

// A Lane is the queue in which webhooks wait for each other: that of a tenant or, if a webhook
// names no tenant, that of its platform and type. To share a lane costs only time; it is never
// a reason to drop anything. All webhooks of a lane go to one receiver, which the platform
// decides.
type Lane struct {
	Platform, Tenant string
	Type             string // only without a tenant
}

func (l Lane) size() int { return len(l.Platform) + len(l.Tenant) + len(l.Type) }

func (g *Gate) newWebhook(v *visit, body []byte, typ string, lane Lane) *Webhook {
	now := time.Now()
	return &Webhook{
		ID:   newID(now),
		Type: typ,
		Lane: lane,
		// Other events are not known to be snapshots, and without a tenant it is not known
		// whose: the same bytes twice may be two changes. A question changes nothing.
		Snapshot: typ == content.TenantProvisioningChange && lane.Tenant != "" && !g.asks(typ),
		Digest:   sha256.Sum256(body),
		Body:     body,
		Header:   g.forwardHeader(v),
		Received: now,
	}
}

// laneOf reads the names from the value that was validated.
func laneOf(typ string, value any) Lane {
	lane := Lane{
		Platform: content.StringAt(value, "payload", "tenant", "platform", "code"),
		Tenant:   content.StringAt(value, "payload", "tenant", "code"),
	}
	if lane.Tenant == "" {
		lane.Type = typ
	}
	return lane
}

// TraceID returns the trace id of the sender's traceparent, or nothing. The receiver gets that
// header, so it is stored with the webhook.
func (w *Webhook) TraceID() string { return trace.ID(w.Header) }

// maxShown is how many bytes of a foreign name are shown.
const maxShown = 200

func (w *Webhook) attrs() []slog.Attr {
	attrs := append(make([]slog.Attr, 0, 8),
		slog.String("webhook", w.ID),
		slog.String("type", clip.Text(w.Type, maxShown)),
		slog.String("platform", clip.Text(w.Lane.Platform, maxShown)),
		slog.String("tenant", clip.Text(w.Lane.Tenant, maxShown)),
	)
	if id := w.TraceID(); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	return attrs
}

// newID makes a UUIDv7 (RFC 9562): the time in milliseconds, then random bits.
func newID(now time.Time) string {
	var u [16]byte
	rand.Read(u[6:])
	for i, ms := 5, now.UnixMilli(); i >= 0; i, ms = i-1, ms>>8 {
		u[i] = byte(ms)
	}
	u[6] = u[6]&0x0f | 0x70 // version 7
	u[8] = u[8]&0x3f | 0x80 // variant
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
