// Package message is what the inbox writes to its streams: the subjects, the header that every message of a lane has, how a
// webhook stands, and its content. It knows what a message means, and not how it gets to the servers.
//
// Every message of a lane says how the lane ends (see Head). So the last one is all that one has to know of a lane: which
// webhook was the last, what a copy of it would look like, and which message has the lane's last snapshot.
package message

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
	"unique"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// Kinds of messages in a lane.
const (
	Webhook = "webhook" // one that waits
	Copy    = "copy"    // a copy of the lane's last came
	Kept    = "kept"    // a webhook that nobody takes: usher itself is its receiver
	Memory  = "memory"  // what is left of webhooks that are finished
	Forgot  = "forgot"  // the lane was told to forget
	Erased  = "erased"  // all before it is deleted
)

// Head is the header of every message of a lane, and says how the lane ends. What is about
// "the last" is, in a webhook, about itself.
type Head struct {
	Kind     string
	ID       uint64 // of the last webhook; zero: this message's own sequence
	Webhook  string
	Type     string
	Platform string
	Tenant   string
	Received time.Time
	Snapshot bool

	// Digest is that of the last webhook; empty: nothing is a copy of it.
	Digest []byte
	// Accepted is when the receiver of that name took it; zero: it waits.
	Accepted time.Time
	Receiver string

	// Arrived is the sequence of what came last into the lane, webhook or copy; zero: this
	// message. Replica is through which it came, and Foreign what came last through any other.
	Arrived uint64
	Replica string
	Foreign uint64

	// Last is the id of the lane's last snapshot; zero: this message, if it bears one, else there
	// is none. Bears says that it is this message's content; if not, Bearer is the sequence of
	// the message whose content it is.
	Last   uint64
	Bears  bool
	Bearer uint64
}

const (
	// HeadHeader, StatusHeader and encodingHeader are the headers of a message.
	HeadHeader     = "Usher"
	StatusHeader   = "Usher-Status"
	encodingHeader = "Usher-Encoding"
	// LongestHead bounds a head. The servers take headers up to 64 KiB, and an outcome is in them, too.
	LongestHead = 32 << 10
	// Outcome is how many bytes more a message takes that says what became of a webhook, at the most: its tries, and
	// the receiver's words. Without room for them it could be delivered, but never finished.
	Outcome = 32 << 10
)

// End is a lane's last message, and with it all that there is to know of the lane. The zero
// value is that of a lane in which nothing ever came.
type End struct {
	Seq uint64
	Head
}

// NewEnd completes what a message says of itself with its sequence.
func NewEnd(seq uint64, h Head) End {
	if h.ID == 0 {
		h.ID = seq
	}
	if h.Arrived == 0 {
		h.Arrived = seq
	}
	if h.Bears {
		if h.Bearer = seq; h.Last == 0 {
			h.Last = seq
		}
	}
	return End{seq, h}
}

// Others is what came last through another replica than this one.
func (e *End) Others(self string) uint64 {
	if e.Replica == self {
		return e.Foreign
	}
	return e.Arrived
}

// IsNote: all that the message says is said again by the one that comes after it.
func (e *End) IsNote() bool {
	return e.Kind == Copy || e.Kind == Forgot || e.Kind == Erased
}

// Lane is the lane of the message.
func (h *Head) Lane() webhookgate.Lane {
	if h.Tenant == "" {
		return webhookgate.Lane{Platform: h.Platform, Type: h.Type}
	}
	return webhookgate.Lane{Platform: h.Platform, Tenant: h.Tenant}
}

// NewHead is the head of w as the lane's last.
func NewHead(kind string, w *webhookgate.Webhook) Head {
	h := Head{
		Kind: kind, Webhook: w.ID, Type: w.Type, Platform: w.Lane.Platform, Tenant: w.Lane.Tenant,
		Received: w.Received, Snapshot: w.Snapshot, Bears: w.Snapshot,
	}
	if w.Snapshot {
		h.Digest = w.Digest[:]
	}
	return h
}

// Again is what e says, said by another message.
func (e *End) Again(kind string) Head {
	h := e.Head
	h.Kind, h.Bears = kind, false
	return h
}

// values are all that a head says, in the order in which it is written.
func (h *Head) values() []any {
	return []any{
		&h.Kind, &h.ID, &h.Webhook, &h.Type, &h.Platform, &h.Tenant, &h.Received, &h.Snapshot,
		&h.Digest, &h.Accepted, &h.Receiver, &h.Arrived, &h.Replica, &h.Foreign, &h.Last, &h.Bears, &h.Bearer,
	}
}

// Put writes the head into m.
func (h *Head) Put(m *nats.Msg) {
	m.Header.Set(HeadHeader, base64.RawStdEncoding.EncodeToString(record.Pack(h.values()...)))
}

// ReadHead reads the head of a message.
func ReadHead(h nats.Header) (out Head, err error) {
	b, err := base64.RawStdEncoding.DecodeString(h.Get(HeadHeader))
	if err != nil || record.Unpack(b, out.values()...) != nil {
		return out, record.ErrDamaged
	}
	// There are few of these, and a million webhooks may wait.
	for _, s := range []*string{&out.Kind, &out.Type, &out.Platform, &out.Receiver, &out.Replica} {
		*s = unique.Make(*s).Value()
	}
	return out, nil
}

// PutStatus writes how a webhook stands into m. It leaves < and > as they are: a header has few bytes.
func PutStatus(m *nats.Msg, s *record.Status) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // strings, numbers and times always marshal
	}
	m.Header.Set(StatusHeader, strings.TrimSuffix(b.String(), "\n"))
}

// ReadStatus reads how a webhook stands.
func ReadStatus(h nats.Header) (s record.Status, err error) {
	if json.Unmarshal([]byte(h.Get(StatusHeader)), &s) != nil || s.State == "" {
		return s, record.ErrDamaged
	}
	return s, nil
}

// Slim is what a head knows of its webhook.
func (h *Head) Slim() *webhookgate.Webhook {
	w := &webhookgate.Webhook{ID: h.Webhook, Type: h.Type, Lane: h.Lane(), Received: h.Received, Snapshot: h.Snapshot}
	copy(w.Digest[:], h.Digest)
	return w
}

// New is a webhook outside its lane: whole, and with how it stands.
func New(subject string, r *record.Record, c Content) *nats.Msg {
	m := nats.NewMsg(subject)
	c.Put(m)
	h := NewHead(Webhook, r.Webhook)
	h.ID = r.ID
	h.Put(m)
	PutStatus(m, &r.Status)
	return m
}

// Record is the webhook that a message is, or is about, by its headers; nil: it is about none.
func Record(header nats.Header, seq uint64) *record.Record {
	h, err := ReadHead(header)
	if err != nil || h.Kind != Webhook {
		return nil
	}
	r := &record.Record{ID: NewEnd(seq, h).ID, Webhook: h.Slim(), Status: record.Status{State: record.Waiting, Changed: h.Received}}
	if status, err := ReadStatus(header); err == nil {
		r.Status = status
	}
	return r
}
