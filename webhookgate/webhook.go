package webhookgate

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"usher/internal/content"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/internal/text"
)

// A Webhook has passed every check, and has everything that its delivery needs. Nobody changes it
// any more.
type Webhook struct {
	ID       string // a UUIDv7; the receiver gets it as webhook-id, the same on every try
	Type     string
	Lane     LaneName
	Snapshot bool              // it is a tenant's complete state: dedup applies
	Digest   [sha256.Size]byte // of Body
	Body     []byte            // as the sender sent it
	Header   http.Header       // for the receiver, without the headers that differ in each try
	Received time.Time         // when its last byte reached this machine

	// Gone says whether the sender's connection has ended. Then the webhook is not to be taken in: the sender will
	// send it again, perhaps after a newer one. Nil: there is no sender.
	Gone func() bool

	// Receiver takes the webhook. Nil: its platform has no receiver, and it is stored for
	// entitlements only.
	Receiver *receiver.Receiver

	// State is what an inbox stores of a snapshot. The gate sets it for Config.Store: a body is parsed only once.
	// Nil: parse Body if you need it.
	State *snapshot.Stored
}

// A LaneName names a queue: that of a tenant or, if a webhook names no tenant, that of its platform and type. All
// webhooks of a lane go to the same receiver, because they have the same platform.
type LaneName struct {
	Platform, Tenant string
	Type             string // empty if there is a tenant
}

// IsLane says whether a lane may have this name: each has a tenant, or else a type.
func (l LaneName) IsLane() bool { return l.Tenant != "" || l.Type != "" }

// newWebhook makes a webhook from a body that is not parsed yet.
func newWebhook(body []byte) *Webhook {
	return &Webhook{ID: NewID(), Digest: sha256.Sum256(body), Body: body, Received: time.Now()}
}

// read reads type, tenant and receiver from the parsed body. certain says that the tenant can be read; otherwise the
// webhook has no lane yet.
func (w *Webhook) read(value any, receivers *receiver.Set) (platform string, certain bool) {
	platform, tenant, certain := content.CertainTenant(value)
	if certain {
		w.Lane = LaneName{Platform: platform, Tenant: tenant}
	}
	w.Type, w.Receiver = content.TypeOf(value), receivers.For(platform)
	// Only a TenantProvisioningChange with a tenant is known to be a snapshot. Of any other event the
	// same bytes may mean two changes.
	w.Snapshot = w.Type == content.TenantProvisioningChange && certain
	return platform, certain
}

// maxShown is how many bytes of a name that others chose are shown.
const maxShown = 200

// attrs are what the log says of a webhook.
func (w *Webhook) attrs() []slog.Attr {
	attrs := append(make([]slog.Attr, 0, 8),
		slog.String("webhook", w.ID),
		slog.String("type", text.Clip(w.Type, maxShown)),
		slog.String("platform", text.Clip(w.Lane.Platform, maxShown)),
		slog.String("tenant", text.Clip(w.Lane.Tenant, maxShown)),
	)
	if id := text.TraceID(w.Header); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	return attrs
}

// NewID makes the id of a webhook, a UUIDv7 (RFC 9562): the time in milliseconds, then random bits.
func NewID() string {
	var u [16]byte
	binary.BigEndian.PutUint64(u[:], uint64(time.Now().UnixMilli())<<16)
	rand.Read(u[6:])
	u[6] = u[6]&0x0f | 0x70 // version 7
	u[8] = u[8]&0x3f | 0x80 // variant
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// An Invalid is a webhook whose sender passed every check, and whose content usher rejects. It may be
// a change that nobody will send again, so it is not enough to answer the sender: people must see it.
type Invalid struct {
	Webhook        // its Lane is empty unless the body says for certain which tenant it is about
	Cut     bool   // Body is only the beginning
	Status  int    // of the answer: 400, 413 or 422
	Reason  string // json, size, schema or platform
	Faults  []content.Fault
	From    string // the sender's address
}

// maxInvalidBody is how many bytes usher keeps of a body that is too large.
const maxInvalidBody = 64 << 10

// Accept makes a webhook from one that is invalid, without checking its type and schema again. It
// returns an error if the body is not JSON, or does not say for certain which tenant it is about.
func Accept(id string, header http.Header, body []byte, receivers *receiver.Set) (*Webhook, error) {
	value, fault := content.Parse(body)
	if fault != nil {
		return nil, errors.New(fault.String())
	}
	w := newWebhook(body)
	w.ID, w.Header = id, header
	if _, certain := w.read(value, receivers); !certain {
		return nil, errors.New("its tenant cannot be read for certain")
	}
	if !content.ValidCode(w.Type) {
		return nil, errors.New("its type is too long, or has a zero character")
	}
	return w, nil
}

// ReadSnapshot makes a webhook from a body that does not come through the gate, and checks it as the gate does.
// Only a snapshot of a tenant is accepted.
func ReadSnapshot(
	rules *content.Rules, header http.Header, body []byte, receivers *receiver.Set,
) (*Webhook, []content.Fault) {
	value, fault := content.Parse(body)
	if fault != nil {
		return nil, []content.Fault{*fault}
	}
	w := newWebhook(body)
	w.Header = header
	_, certain := w.read(value, receivers)
	if w.Type != "" && w.Type != content.TenantProvisioningChange {
		return nil, []content.Fault{{Path: "/type", Message: fmt.Sprintf("is %q, and only %s says what a tenant may use",
			text.Clip(w.Type, maxShown), content.TenantProvisioningChange)}}
	}
	switch faults := rules.Faults(value); {
	case len(faults) > 0:
		return nil, content.First(faults, content.MaxFaults)
	case w.Type == "": // possible with a schema of one's own
		return nil, []content.Fault{{Path: "/type", Message: "is missing"}}
	case !certain:
		return nil, []content.Fault{{Path: "/payload/tenant/code", Message: "cannot be read for certain"}}
	}
	w.State = snapshot.Of(value).Stored(w.Lane.Platform, w.Lane.Tenant, w.ID)
	return w, nil
}
