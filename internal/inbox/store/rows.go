package store

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/receiver"
	"usher/internal/text"
	"usher/webhookgate"
	"usher/webhookgate/content"
)

// State is where a webhook in the inbox stands.
type State string

// A webhook waits until it is delivered, parked, superseded by a newer snapshot of its tenant, or discarded by
// hand. A redelivery makes it wait again. One that is kept has no receiver but usher itself, and is never
// delivered. One that is refused was never taken in; if somebody accepts it, it is taken in as a new one.
const (
	Waiting    State = "waiting"
	Parked     State = "parked"
	Refused    State = "refused"
	Delivered  State = "delivered"
	Superseded State = "superseded"
	Discarded  State = "discarded"
	Kept       State = "kept"
	Accepted   State = "accepted"
)

// States are all of them, what somebody may have to look at first. Their index is the number in the database:
// new ones come last.
var States = []State{Waiting, Parked, Refused, Delivered, Superseded, Discarded, Kept, Accepted}

func (s State) number() int64 { return int64(slices.Index(States, s)) }

// stateOf is the state with that number, which may be damaged.
func stateOf(number int64) State { return States[min(max(0, number), int64(len(States)-1))] }

// Taken says whether a receiver accepted what is in this state, or usher itself, if it has no receiver.
func (s State) Taken() bool { return s == Delivered || s == Kept }

// Finished says whether a webhook in this state is only there to be looked at.
func (s State) Finished() bool { return s != Waiting && s != Parked && s != Refused }

// Entry is what the inbox knows about a webhook, except its content.
type Entry struct {
	ID       int64     `json:"id"`
	Webhook  string    `json:"webhook"` // what the receiver gets as webhook-id
	Type     string    `json:"type"`
	Platform string    `json:"platform"`
	Tenant   string    `json:"tenant"`
	Received time.Time `json:"received"`
	Status
}

// Status is the part of an Entry that changes.
type Status struct {
	State    State     `json:"state"`
	Why      string    `json:"why,omitempty"`      // it is parked, superseded or discarded
	Changed  time.Time `json:"changed"`            // when it came into this state
	Tries    int       `json:"tries"`              // since it came, or was last sent again by hand
	Counted  int       `json:"counted,omitempty"`  // of them: not those that found the receiver down
	Receiver string    `json:"receiver,omitempty"` // that was last tried; once delivered: that accepted it
	Attempts []Attempt `json:"attempts,omitempty"`
	Next     time.Time `json:"next,omitzero"` // when it was to be tried again, after the last try

	// Again is when somebody last sent it again. Its age counts from there, and it goes ahead of what its
	// lane has waiting. Forced: although a newer one had come.
	Again  time.Time `json:"again,omitzero"`
	Forced bool      `json:"forced,omitempty"`

	// Of one that was refused: what is wrong with it, who sent it, and how often it came.
	Faults []content.Fault `json:"faults,omitempty"`
	Code   int             `json:"code,omitempty"` // what its sender was answered
	From   string          `json:"from,omitempty"`
	Times  int             `json:"times,omitempty"`
	Last   time.Time       `json:"last,omitzero"`
	Cut    bool            `json:"cut,omitempty"`   // only the beginning of its body is stored
	Newer  bool            `json:"newer,omitempty"` // since it last came, its tenant's last snapshot came again
}

// Rejected says whether it was refused when it came, whatever somebody has done with it since.
func (s *Status) Rejected() bool { return s.Code != 0 || s.State == Refused }

// Attempt is one try at the receiver. Of many the last are kept.
type Attempt struct {
	At     time.Time     `json:"at"`
	Took   time.Duration `json:"took"`
	Status int           `json:"status,omitempty"` // zero: there was no answer
	Error  string        `json:"error,omitempty"`
	Answer string        `json:"answer,omitempty"` // the receiver's own words, if it refused; safe to show
}

// Words say what the receiver answered.
func (a Attempt) Words() string {
	status := strings.TrimSpace(strconv.Itoa(a.Status) + " " + http.StatusText(a.Status))
	switch {
	case a.Status == 0:
		return cmp.Or(a.Error, "no answer")
	case text.Plain(a.Answer) != "":
		return strconv.Itoa(a.Status) + ": " + text.Plain(a.Answer)
	case a.Error != "":
		return status + ": " + a.Error
	}
	return status
}

const (
	// keptAttempts is how many of a webhook's attempts are remembered, and keptAnswers how many of those
	// with the receiver's words.
	keptAttempts = 20
	keptAnswers  = 3
)

// noteAttempt notes a try. It does not change the attempts noted before: others may still read them.
func (s *Status) noteAttempt(began time.Time, took time.Duration, a receiver.Attempt) {
	n := Attempt{At: began, Took: took, Status: a.Status}
	if a.Err != nil {
		n.Error = readable(a.Err.Error(), maxError)
	}
	if !a.Accepted() {
		n.Answer = readable(a.Excerpt, maxAnswer)
	}
	former := s.Attempts[max(0, len(s.Attempts)-keptAttempts+1):]
	s.Attempts = append(slices.Clone(former), n)
	if before := len(s.Attempts) - keptAnswers - 1; before >= 0 {
		s.Attempts[before].Answer = ""
	}
	s.Tries++
}

// enter changes the state.
func (s *Status) setState(state State, why string, now time.Time) {
	s.State, s.Why, s.Changed, s.Next = state, why, now, time.Time{}
}

// A Webhook is a row of the table webhook.
type Webhook struct {
	Entry
	lane     Key // zero: it names no tenant for certain
	snapshot bool
	digest   []byte // of the body; SHA-256
	size     int64  // what it counts for in MaxBytes

	Header     http.Header // of what it has to be delivered with; see whole
	Body       []byte
	hasContent bool // Header and Body are there
	verified   bool // they come from the gate, and not from a disk
}

// Held says whether its content is in memory, and Size what it counts for.
func (w *Webhook) HasContent() bool { return w.hasContent }

// Size is about how many bytes it takes.
func (w *Webhook) Size() int64 { return w.size }

// since is when its age begins.
func (w *Webhook) ageFrom() time.Time {
	if !w.Again.IsZero() {
		return w.Again
	}
	return w.Received
}

// lastCame is when it, or a copy that was only counted, last came.
func (w *Webhook) lastReceived() time.Time {
	if !w.Last.IsZero() {
		return w.Last
	}
	return w.Received
}

// order is its place in the lane: those that somebody sent again come first.
func (w *Webhook) position() int64 {
	if !w.Again.IsZero() {
		return w.ID - never
	}
	return w.ID
}

// overhead is what a webhook takes beside its content, about.
const overhead = 512

func newWebhook(w *webhookgate.Webhook) *Webhook {
	row := &Webhook{
		Entry: Entry{Webhook: w.ID, Type: w.Type, Platform: w.Lane.Platform, Tenant: w.Lane.Tenant},
		lane:  LaneOf(w.Lane), snapshot: w.Snapshot, digest: w.Digest[:],
		Header: w.Header, Body: w.Body, hasContent: true, verified: true,
	}
	row.size = int64(len(w.Body)+len(encodeHeader(w.Header))) + overhead
	return row
}

// ErrDamaged says that a webhook's content is not what was taken in.
var ErrDamaged = errors.New("the stored webhook is damaged: its content does not fit its checksum")

// check says whether the content is what was taken in.
func (w *Webhook) check() error {
	if w.verified {
		return nil
	}
	if sum := sha256.Sum256(w.Body); !bytes.Equal(sum[:], w.digest) {
		return ErrDamaged
	}
	return nil
}

// scanWebhook reads a row. Platform and tenant come from its lane.
func (s *Store) scanWebhook(r Row, whole bool) (*Webhook, error) {
	w := new(Webhook)
	var c struct {
		state, snapshot, received       int64
		uuid, lane, typ, status, tenant []byte
	}
	var header []byte
	into := []any{&w.ID, &c.uuid, &c.lane, &c.typ, &c.snapshot, &w.digest, &w.size, &c.received, &c.state, &c.status, &c.tenant}
	if whole {
		into = append(into, &header, &w.Body)
	}
	if err := r.Scan(into...); err != nil {
		return nil, err
	}
	if len(c.status) > 0 {
		if err := json.Unmarshal(c.status, &w.Status); err != nil {
			w.Why = ErrDamaged.Error()
		}
	}
	copy(w.lane[:], c.lane)
	w.Webhook, w.Type, w.Tenant, w.Platform = string(c.uuid), string(c.typ), string(c.tenant), s.platforms.code(w.lane[16:])
	w.State = stateOf(c.state)
	w.Received, w.snapshot = moment(c.received), c.snapshot != 0
	if whole {
		w.Header, w.hasContent = decodeHeader(header), header != nil
	}
	return w, nil
}

func (w *Webhook) encodeStatus() []byte {
	text, _ := json.Marshal(&w.Status) // strings, numbers and times
	return text
}

// encodeHeader and decodeHeader write an http.Header as HTTP does: its values may be any bytes.
func encodeHeader(h http.Header) []byte {
	var out bytes.Buffer
	h.Write(&out)
	return out.Bytes()
}

func decodeHeader(text []byte) http.Header {
	h, _ := textproto.NewReader(bufio.NewReader(io.MultiReader(bytes.NewReader(text), strings.NewReader("\r\n")))).ReadMIMEHeader() // ours
	return http.Header(h)
}

func moment(micro int64) time.Time { return time.UnixMicro(micro).UTC() }

// A Key is a lane's: a hash of the tenant, and one of its platform. So the lanes of a tenant are neighbours,
// whatever their platforms. A code may have a megabyte, and no database can index that.
type Key [32]byte

// LaneOf is the key of a lane's row.
func LaneOf(l webhookgate.Lane) (k Key) {
	whose := "t" + l.Tenant
	if l.Tenant == "" {
		whose = "e" + l.Type
	}
	first := sha256.Sum256([]byte(whose))
	copy(k[:16], first[:])
	copy(k[16:], platformHash(l.Platform))
	return k
}

func platformHash(code string) []byte {
	hash := sha256.Sum256([]byte(code))
	return hash[:16]
}

// tenantKey is the key of a tenant's lane.
func tenantKey(platform, tenant string) Key {
	return LaneOf(webhookgate.Lane{Platform: platform, Tenant: tenant})
}

// tenantRange is between which keys all lanes of a tenant are.
func tenantRange(tenant string) (from, to []byte) {
	k := tenantKey("", tenant)
	from = slices.Concat(k[:16], make([]byte, 16))
	return from, slices.Concat(k[:16], bytes.Repeat([]byte{0xff}, 16))
}

// How the last try of a lane's first webhook ended.
const (
	lastOK     = 0
	lastFailed = 1 // the receiver did not take that webhook
	lastMissed = 2 // the receiver could not be reached, was too slow, or said that it is down
)

// A lane is a row of the table lane.
type lane struct {
	key Key
	webhookgate.Lane

	// Dedup. While something waits a copy is compared with the tail, which is what arrived last, if that
	// one waits. If nothing waits, with what the receiver holds for sure.
	tail       int64
	tailID     string
	tailDigest []byte // nil: the tail does not wait, or is to be delivered again whatever comes
	held       []byte // nil: nobody knows
	heldAt     int64
	heldBy     string // the receiver; empty: usher itself
	heldID     string

	waiting, resent, parked, refused int64 // how many; again: of those that wait, somebody has sent
	bytes                            int64 // of those that wait or are parked
	waitingSince                     int64 // when the first of those that wait came

	leasedID   int64 // is being delivered, if the lane has an owner
	lastResult int64
	failures   int64 // in a row
	lastTry    int64
	notBefore  int64 // not before: the receiver has asked for that, or an erasure
	paused     bool
	due        int64 // when it may be tried, or when its owner's leave ends
	owner      []byte
	token      int64 // counts leaves

	dirty bool
}

// scanLane reads a row.
func (s *Store) scanLane(r Row) (*lane, error) {
	l := new(lane)
	var key, tenant, kind, memory []byte
	var paused int64
	err := r.Scan(&key, &tenant, &kind, &l.tail, &memory,
		&l.waiting, &l.resent, &l.parked, &l.refused, &l.bytes, &l.waitingSince, &l.lastResult, &l.lastTry, &l.notBefore, &paused, &l.due, &l.owner)
	copy(l.key[:], key)
	l.Lane = webhookgate.Lane{Platform: s.platforms.code(l.key[16:]), Tenant: string(tenant), Type: string(kind)}
	l.paused = paused != 0
	if len(l.owner) == 0 {
		l.owner = nil
	}
	l.unpackDetails(memory)
	return l, err
}

// memory is what no statement asks for, in one column: each column of each row costs.
func (l *lane) packDetails() (out []byte) {
	for _, n := range []int64{l.heldAt, l.leasedID, l.failures, l.token} {
		out = binary.AppendVarint(out, n)
	}
	for _, b := range [][]byte{[]byte(l.tailID), l.tailDigest, l.held, []byte(l.heldBy), []byte(l.heldID)} {
		out = append(binary.AppendUvarint(out, uint64(len(b))), b...)
	}
	return out
}

// remember reads what memory has written. A new lane has nothing yet, and what is damaged counts as nothing.
func (l *lane) unpackDetails(memory []byte) {
	from := bytes.NewReader(memory)
	number := func() int64 { n, _ := binary.ReadVarint(from); return max(0, n) }
	text := func() []byte {
		n, _ := binary.ReadUvarint(from)
		if n == 0 || n > uint64(from.Len()) {
			return nil
		}
		b := make([]byte, n)
		from.Read(b)
		return b
	}
	l.heldAt, l.leasedID, l.failures, l.token = number(), number(), number(), number()
	l.tailID, l.tailDigest, l.held, l.heldBy, l.heldID = string(text()), text(), text(), string(text()), string(text())
}

// columns is what lane_save writes of a lane.
func (l *lane) columns() []any {
	return []any{l.tail, l.packDetails(), l.waiting, l.resent, l.parked, l.refused, l.bytes, l.waitingSince, l.lastResult, l.lastTry, l.notBefore, l.paused, l.due, l.owner, l.key[:]}
}

// queueRows queues a statement for rows: the statement gets each column as one slice. No value is NULL.
func queueRows[T any](tx Tx, name string, rows []T, row func(T) []any) {
	if len(rows) == 0 {
		return
	}
	values := make([][]any, len(rows))
	for n, r := range rows {
		values[n] = row(r)
	}
	columns := make([]any, len(values[0]))
	for i, v := range values[0] {
		switch v.(type) {
		case []byte, string:
			columns[i] = column(values, i, toBytes)
		default:
			columns[i] = column(values, i, toNumber)
		}
	}
	tx.Queue(name, nil, columns...)
}

func column[V any](values [][]any, i int, to func(any) V) []V {
	all := make([]V, len(values))
	for n := range values {
		all[n] = to(values[n][i])
	}
	return all
}

func toBytes(v any) []byte {
	if text, ok := v.(string); ok {
		return []byte(text)
	}
	return notNull(v.([]byte))
}

func toNumber(v any) int64 {
	if yes, ok := v.(bool); ok {
		return boolNumber(yes)
	}
	return v.(int64)
}

// blob is never NULL: an empty one means that there is none.
func notNull(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func boolNumber(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// rest gives the lane back: it may be tried from at on, if something waits and nobody has paused it.
func (l *lane) release(at int64) {
	l.owner, l.leasedID, l.dirty = nil, 0, true
	switch {
	case l.waiting == 0:
		l.due, l.waitingSince, l.lastResult, l.failures = never, never, lastOK, 0
	case l.paused:
		l.due = never
	default:
		l.due = max(at, l.notBefore)
	}
}

// well says that what is first from now on has not failed.
func (l *lane) clearFailures() { l.lastResult, l.failures, l.dirty = lastOK, 0, true }

// fresh drops the pauses, too, and what somebody has asked for.
func (l *lane) clearBackoff() { l.clearFailures(); l.notBefore = 0 }

// forget drops what a copy is compared with.
func (l *lane) forgetCopies() bool {
	known := l.tailDigest != nil || l.held != nil
	l.tailDigest, l.held, l.dirty = nil, nil, true
	return known
}

// leave takes w out of the state it is in, and counts.
func (l *lane) countOut(w *Webhook) {
	l.dirty = true
	switch w.State {
	case Waiting:
		l.waiting--
		l.bytes -= w.size
		if !w.Again.IsZero() {
			l.resent--
		}
		if l.tail == w.ID {
			l.tailDigest = nil
		}
	case Parked:
		l.parked--
		l.bytes -= w.size
	case Refused:
		l.refused--
	}
}

// enter puts w into a state, and counts.
func (l *lane) countIn(w *Webhook, state State, why string, now time.Time) {
	w.setState(state, why, now)
	l.dirty = true
	switch state {
	case Waiting:
		l.waiting++
		l.bytes += w.size
		if !w.Again.IsZero() {
			l.resent++
		}
	case Parked:
		l.parked++
		l.bytes += w.size
	case Refused:
		l.refused++
	}
}

// Pause holds deliveries back: all of them, those of one receiver, or those of one tenant. What is under way may
// finish.
type Pause struct {
	Receiver string    `json:"receiver,omitempty"`
	Platform string    `json:"platform,omitempty"`
	Tenant   string    `json:"tenant,omitempty"`
	Since    time.Time `json:"since,omitzero"`
}

// Covers says whether p holds back a tenant's webhooks, whose receiver has that name.
func (p Pause) Covers(platform, tenant, receiver string) bool {
	switch {
	case p.Tenant != "":
		return p.Tenant == tenant && p.Platform == platform
	case p.Receiver != "":
		return p.Receiver == receiver
	}
	return true
}

// Same says whether p and q hold back the same.
func (p Pause) Same(q Pause) bool {
	p.Since, q.Since = time.Time{}, time.Time{}
	return p == q
}

// String says what is held back.
func (p Pause) String() string {
	switch {
	case p.Tenant != "":
		return "tenant " + ShowTenant(p.Platform, p.Tenant)
	case p.Receiver != "":
		return "receiver " + p.Receiver
	}
	return "all deliveries"
}

// Flag is how the pause is named on the command line.
func (p Pause) Flag() string {
	switch {
	case p.Tenant != "":
		// Exact, as the line is there to be copied: a tenant without a platform may have a namesake on one.
		return " --tenant " + Exact(p.Platform, p.Tenant)
	case p.Receiver != "":
		return " --receiver " + p.Receiver
	}
	return ""
}

var (
	// ErrNotFound says that the inbox has no webhook of that id (any more).
	ErrNotFound = errors.New("no such webhook in the inbox")
	// ErrFinished says that a webhook can't be discarded: nothing would be done with it any more.
	ErrFinished = errors.New("it neither waits nor is parked")
	// ErrKept says that a webhook can't be sent again: it was kept, and still nobody takes it.
	ErrKept = errors.New("it was kept: no receiver takes webhooks of its platform")
	// ErrBusy says that a webhook is still being delivered.
	ErrBusy = errors.New("it is being delivered at this moment; try again")
	// ErrRefused says that a webhook was never taken in, so that it can't be sent again.
	ErrRefused = errors.New("it was refused, and never taken in ('usher inbox accept' does that, if nobody has dealt with it)")
)

// OverwriteError says that a redelivery would put an old snapshot in the place of a newer one.
type OverwriteError struct {
	ID     int64
	Latest Entry
}

func (e *OverwriteError) Error() string {
	text := fmt.Sprintf("webhook %d is not the latest of tenant %q: it would overwrite %d", e.ID, e.Latest.Tenant, e.Latest.ID)
	if e.Latest.State == "" { // the history has dropped it
		return text
	}
	return text + fmt.Sprintf(", received %s, %s", e.Latest.Received.Format(time.RFC3339), e.Latest.State)
}

// Columns are what the engines' statements put for {lane} and {webhook}: what scanLane and scanWebhook read.
var Columns = strings.NewReplacer(
	"{lane}", "l.key, l.tenant, l.event_type, l.tail, l.details, "+
		"l.waiting, l.resent, l.parked, l.refused, l.bytes, l.waiting_since, l.last_result, l.last_try, l.not_before, l.paused, l.due, l.owner",
	"{webhook}", "w.seq, w.uuid, w.lane, w.type, w.snapshot, w.digest, w.size, w.received, w.state, w.status, l.tenant",
	"{never}", strconv.FormatInt(never, 10),
)

// Statements splits the text of an engine's .sql file: each statement stands below a line "-- name: NAME".
func Statements(text string) map[string]string {
	all := make(map[string]string)
	for _, part := range strings.Split(text, "-- name: ")[1:] {
		name, statement, _ := strings.Cut(part, "\n")
		all[strings.TrimSpace(name)] = Columns.Replace(strings.TrimSpace(statement))
	}
	return all
}
