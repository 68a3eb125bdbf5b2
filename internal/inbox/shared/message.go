package shared

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// Kinds of messages in a lane.
const (
	webhookKind = "webhook" // one that waits
	copyKind    = "copy"    // a copy of the lane's last came
	keptKind    = "kept"    // a webhook that nobody takes: usher itself is its receiver
	memoryKind  = "memory"  // what is left of webhooks that are finished
	forgotKind  = "forgot"  // the lane was told to forget
	erasedKind  = "erased"  // all before it is deleted
)

// head is the header of every message of a lane, and says how the lane ends. What is about
// "the last" is, in a webhook, about itself.
type head struct {
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
	headHeader     = "Usher"
	statusHeader   = "Usher-Status"
	encodingHeader = "Usher-Encoding"
	deflate        = "deflate"
	// longestHead bounds a head. The servers take headers up to 64 KiB, and an outcome is in them, too.
	longestHead = 32 << 10
	// deflateFrom is the size from which a content is compressed: the servers take messages
	// up to 1 MiB, unless they are told otherwise, and a webhook may be as large.
	deflateFrom = 64 << 10
	// memoryFrom is the size from which a content is compressed that is remembered. What is smaller
	// saves little, and takes as long.
	memoryFrom = 2 << 10
	// inflatedMost bounds what a content may grow to.
	inflatedMost = 1 << 30
)

// end is a lane's last message, and with it all that there is to know of the lane. The zero
// value is that of a lane in which nothing ever came.
type end struct {
	seq uint64
	head
}

// newEnd completes what a message says of itself with its sequence.
func newEnd(seq uint64, h head) end {
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
	return end{seq, h}
}

// others is what came last through another replica than this one.
func (e *end) others(self string) uint64 {
	if e.Replica == self {
		return e.Foreign
	}
	return e.Arrived
}

// isNote: all that the message says is said again by the one that comes after it.
func (e *end) isNote() bool {
	return e.Kind == copyKind || e.Kind == forgotKind || e.Kind == erasedKind
}

func (e *end) lane() webhookgate.Lane { return laneOf(&e.head) }

func laneOf(h *head) webhookgate.Lane {
	if h.Tenant == "" {
		return webhookgate.Lane{Platform: h.Platform, Type: h.Type}
	}
	return webhookgate.Lane{Platform: h.Platform, Tenant: h.Tenant}
}

// newHead is the head of w as the lane's last.
func newHead(kind string, w *webhookgate.Webhook) head {
	h := head{
		Kind: kind, Webhook: w.ID, Type: w.Type, Platform: w.Lane.Platform, Tenant: w.Lane.Tenant,
		Received: w.Received, Snapshot: w.Snapshot, Bears: w.Snapshot,
	}
	if w.Snapshot {
		h.Digest = w.Digest[:]
	}
	return h
}

// again is what e says, said by another message.
func (e *end) again(kind string) head {
	h := e.head
	h.Kind, h.Bears = kind, false
	return h
}

// values are all that a head says, in the order in which it is written.
func (h *head) values() []any {
	return []any{
		&h.Kind, &h.ID, &h.Webhook, &h.Type, &h.Platform, &h.Tenant, &h.Received, &h.Snapshot,
		&h.Digest, &h.Accepted, &h.Receiver, &h.Arrived, &h.Replica, &h.Foreign, &h.Last, &h.Bears, &h.Bearer,
	}
}

func (h *head) put(m *nats.Msg) {
	m.Header.Set(headHeader, base64.RawStdEncoding.EncodeToString(record.Pack(h.values()...)))
}

func readHead(h nats.Header) (out head, err error) {
	b, err := base64.RawStdEncoding.DecodeString(h.Get(headHeader))
	if err != nil || record.Unpack(b, out.values()...) != nil {
		return out, record.ErrDamaged
	}
	// There are few of these, and a million webhooks may wait.
	for _, s := range []*string{&out.Kind, &out.Type, &out.Platform, &out.Receiver, &out.Replica} {
		*s = unique.Make(*s).Value()
	}
	return out, nil
}

// putStatus leaves < and > as they are: a header has few bytes.
func putStatus(m *nats.Msg, s *record.Status) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // strings, numbers and times always marshal
	}
	m.Header.Set(statusHeader, strings.TrimSuffix(b.String(), "\n"))
}

func readStatus(h nats.Header) (s record.Status, err error) {
	if json.Unmarshal([]byte(h.Get(statusHeader)), &s) != nil || s.State == "" {
		return s, record.ErrDamaged
	}
	return s, nil
}

// slim is what a head knows of its webhook.
func slim(h *head) *webhookgate.Webhook {
	w := &webhookgate.Webhook{ID: h.Webhook, Type: h.Type, Lane: laneOf(h), Received: h.Received, Snapshot: h.Snapshot}
	copy(w.Digest[:], h.Digest)
	return w
}

// content is a webhook whole, as a message carries it.
type content struct {
	data     []byte
	encoding string
}

// pack makes w ready for a message.
func pack(w *webhookgate.Webhook) content {
	c := content{data: record.Encode(w, 0)}
	if len(c.data) >= deflateFrom {
		c = content{compress(c.data), deflate}
	}
	return c
}

// packed is what a message carries.
func packed(h nats.Header, data []byte) content { return content{data, h.Get(encodingHeader)} }

func (c content) put(m *nats.Msg) {
	m.Data = c.data
	if c.encoding != "" {
		m.Header.Set(encodingHeader, c.encoding)
	}
}

func (c content) unpack() (w *webhookgate.Webhook, err error) {
	data := c.data
	if c.encoding == deflate {
		if data, err = io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(data)), inflatedMost)); err != nil {
			return nil, record.ErrDamaged
		}
	}
	w, _, err = record.Decode(data)
	return w, err
}

// newMessage is a webhook outside its lane: whole, and with how it stands.
func newMessage(subject string, r *record.Record, c content) *nats.Msg {
	m := nats.NewMsg(subject)
	c.put(m)
	h := newHead(webhookKind, r.Webhook)
	h.ID = r.ID
	h.put(m)
	putStatus(m, &r.Status)
	return m
}

// compress makes a content smaller. What has hardly a repetition in it, base64 say, is stored
// as it is by every fast level since Go 1.27; by its letters alone it still gets smaller,
// and has to, or the servers would not take it.
func compress(data []byte) []byte {
	fast := compressAt(flate.BestSpeed, data)
	if len(fast) < len(data)/4*3 {
		return fast
	}
	if letters := compressAt(flate.HuffmanOnly, data); len(letters) < len(fast) {
		return letters
	}
	return fast
}

func compressAt(level int, data []byte) []byte {
	z, ok := compressors[level+2].Get().(*flate.Writer)
	if !ok {
		z, _ = flate.NewWriter(nil, level) // the level is known
	}
	defer compressors[level+2].Put(z)
	b := bytes.NewBuffer(make([]byte, 0, len(data)))
	z.Reset(b)
	z.Write(data) // to memory
	z.Close()
	return b.Bytes()
}

// compressors are by level. To make one takes a megabyte, and far longer than to use it.
var compressors [4]sync.Pool

// expect has m refused unless the last message on its subject is that one; zero: none.
func expect(m *nats.Msg, last uint64) {
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
}

// expectOn is expect for another subject than m's own.
func expectOn(m *nats.Msg, subject string, last uint64) {
	expect(m, last)
	m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, subject)
}

// rollup has m take the place of all before it on its subject.
func rollup(m *nats.Msg) { m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject) }

// isConflict says whether a message was refused because something else was there.
func isConflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
