package inbox

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
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

	"usher/internal/clock"
	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/internal/text"
	"usher/webhookgate"
)

// State is the state of a webhook in the inbox.
type State = state.State

// The states, as package state has them.
const (
	Waiting    = state.Waiting
	Parked     = state.Parked
	Invalid    = state.Invalid
	Delivered  = state.Delivered
	Superseded = state.Superseded
	Discarded  = state.Discarded
	Stored     = state.Stored
	Replaced   = state.Replaced
)

// A Webhook is a row of the table webhook, from the database to the page.
type Webhook struct {
	ID       int64     `json:"id"`
	UUID     string    `json:"webhook"` // the webhook-id that the receiver gets
	Type     string    `json:"type"`
	Platform string    `json:"platform"`
	Tenant   string    `json:"tenant"`
	Received time.Time `json:"received"`
	Source   string    `json:"source,omitempty"` // FromReconcile if usher made it; else a sender did
	Newest   bool      `json:"-"`                // its tenant has no newer one, so it can be sent again without force
	Status

	Lane     webhookgate.LaneName `json:"-"` // empty: it is invalid, and its tenant is not certain
	Snapshot bool                 `json:"-"`
	Rank     int64                `json:"-"` // its number; if it is invalid: the number that it, or its last copy, took
	Digest   []byte               `json:"-"` // SHA-256 of the body
	Size     int64                `json:"-"` // about how many bytes it takes; counts towards MaxBytes

	HasContent bool        `json:"-"` // Header and Body are set
	Header     http.Header `json:"-"`
	Body       []byte      `json:"-"`
	Damaged    []string    `json:"-"` // the columns of its row that could not be read
	Verified   bool        `json:"-"` // the content comes from the gate and not from a disk, so its digest need not be checked

	// Only of what Show and Each return with its content: the last snapshot of the same tenant before this one that was accepted
	// (State.Taken), and the id of the tenant's snapshot right before this one, accepted or not. Nil and zero: none is stored.
	Previous *Webhook `json:"-"`
	Before   int64    `json:"-"`

	// For the transaction that has it in memory.
	isNew   bool // it has no row yet
	changed bool // its row must be written
	gone    bool // it was deleted
}

// stored returns the webhook as a later transaction reads it.
func (w *Webhook) Row() *Webhook {
	row := *w
	row.isNew, row.changed, row.gone = false, false, false
	return &row
}

// AgeFrom is the time from which the webhook's age counts: when it was received, or was last redelivered by hand.
func (w *Webhook) AgeFrom() time.Time {
	if !w.Again.IsZero() {
		return w.Again
	}
	return w.Received
}

// Status is the part of a Webhook that changes.
type Status struct {
	State   State     `json:"state"`
	Why     string    `json:"why,omitempty"` // the reason, if it is parked, superseded or discarded
	Changed time.Time `json:"changed"`       // when it came into this state; if it is invalid: when it, or a copy of it that was only counted, last came
	Record
}

// Record is what happened to a webhook.
type Record struct {
	Tries    int       `json:"tries"`              // since it was received, or since somebody last redelivered it
	FirstTry time.Time `json:"first_try,omitzero"` // when the first of them began; its age counts from here
	Counted  int       `json:"counted,omitempty"`  // the tries that count towards Config.MaxTries; see Outcome.Counts
	Receiver string    `json:"receiver,omitempty"` // the receiver of the last try
	Tried    []Try     `json:"tried,omitempty"`
	Next     time.Time `json:"next,omitzero"` // after a failed try: when the next one was due

	// Again is when somebody last redelivered the webhook. Forced: although its tenant had a newer one.
	Again  time.Time `json:"again,omitzero"`
	Forced bool      `json:"forced,omitempty"`

	// Only of a webhook that is invalid.
	Faults []content.Fault `json:"faults,omitempty"`
	Code   int             `json:"code,omitempty"`  // the HTTP status that its sender got
	From   string          `json:"from,omitempty"`  // the sender's address
	Times  int             `json:"times,omitempty"` // how often it was received
	Cut    bool            `json:"cut,omitempty"`   // only the beginning of its body is stored
	Newer  bool            `json:"newer,omitempty"` // after it, its tenant's last snapshot came again
}

// Rejected says whether the webhook is invalid when it was received, also if somebody has dealt with it since.
func (s *Status) Rejected() bool { return s.Code != 0 || s.State == Invalid }

// Try is one try at the receiver. Of a webhook with many tries the last ones are kept.
type Try struct {
	At     time.Time     `json:"at"`
	Took   time.Duration `json:"took"`
	Status int           `json:"status,omitempty"` // the HTTP status; zero: there was no answer
	Error  string        `json:"error,omitempty"`
	Answer string        `json:"answer,omitempty"` // the beginning of the answer's body, if it is not a 2xx; safe to show
}

// Words returns the receiver's answer as a line of text.
func (a Try) Words() string {
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
	// keptTries is how many of a webhook's tries are stored, and keptAnswers how many of those with the receiver's
	// answer.
	KeptTries   = 20
	KeptAnswers = 3
)

// maxError is how many bytes of a try's error are stored. One about a certificate names all its hosts.
const maxError = 512

// noteTry adds a try. It copies the former tries and does not change them in place: others may still read them.
func (s *Status) noteTry(began time.Time, took time.Duration, a receiver.Try) {
	n := Try{At: began, Took: took, Status: a.Status}
	if a.Err != nil {
		n.Error = text.Readable(a.Err.Error(), maxError)
	}
	if !a.Accepted() {
		n.Answer = a.Excerpt
	}
	former := s.Tried[max(0, len(s.Tried)-KeptTries+1):]
	s.Tried = append(slices.Clone(former), n)
	if before := len(s.Tried) - KeptAnswers - 1; before >= 0 {
		s.Tried[before].Answer = ""
	}
	if s.Tries++; s.Tries == 1 {
		s.FirstTry = began
	}
}

// setNewer notes whether the last snapshot of an invalid webhook's tenant is newer than it.
func (w *Webhook) setNewer(yes bool) { w.changed, w.Newer = w.changed || w.Newer != yes, yes }

// overhead is about how many bytes a webhook takes beside its content.
const overhead = 512

func newWebhook(w *webhookgate.Webhook) *Webhook {
	row := &Webhook{
		UUID: w.ID, Type: w.Type, Platform: w.Lane.Platform, Tenant: w.Lane.Tenant,
		Lane: NameInRow(w.Lane), Snapshot: w.Snapshot, Digest: w.Digest[:],
		Header: w.Header, Body: w.Body, HasContent: true, Verified: true,
	}
	row.Size = int64(len(w.Body)+len(encodeHeader(w.Header))) + overhead
	return row
}

// check returns ErrDamaged if a receiver would not get what was taken in. Damage elsewhere in the row, such as in the record of its tries, is
// no reason not to deliver it.
func (w *Webhook) Check() error {
	if w.Verified {
		return nil
	}
	if sum := sha256.Sum256(w.Body); !bytes.Equal(sum[:], w.Digest) {
		return ErrDamaged
	}
	for _, column := range w.Damaged {
		switch column {
		case "uuid", "type", "header":
			return ErrDamaged
		}
	}
	return nil
}

// supersededWhy is the reason of every webhook that is superseded by another one that was taken in.
const supersededWhy = "a newer snapshot of the tenant has taken its place"

// scanWebhook reads a row of {webhook}, followed by the content's columns if withContent is true. One that is damaged says so.
func scanWebhook(r engine.Row, withContent bool) (*Webhook, error) {
	w := new(Webhook)
	var number, snapshot, received, changed, tail int64
	var record string
	var header []byte
	into := []any{&w.ID, &w.UUID, &w.Tenant, &w.Platform, &w.Lane.Type, &w.Type, &snapshot, &w.Digest, &w.Size, &received, &number, &w.Rank, &changed, &w.Why, &w.Source, &record, &tail}
	if withContent {
		into = append(into, &header, &w.Body)
	}
	unreadable, err := engine.Unreadable(r.Scan(into...))
	if err != nil {
		return nil, err
	}
	w.Damaged = named(unreadable, append(slices.Clip(engine.WebhookColumns), "tail", "header", "body"))
	if w.State = knownState(number); w.State == "" && !slices.Contains(w.Damaged, "state") {
		w.Damaged = append(w.Damaged, "state")
	}
	if slices.Contains(w.Damaged, "state") {
		w.State = Parked // no statement finds it by its state; see lane.know
	}
	if json.Unmarshal([]byte(record), &w.Record) != nil && record != "" {
		w.Record, w.Damaged = Record{}, append(w.Damaged, "record")
	}
	w.Lane.Platform, w.Lane.Tenant = w.Platform, w.Tenant
	w.Changed, w.Received, w.Snapshot = clock.Moment(changed), clock.Moment(received), snapshot != 0
	if w.Size < 0 || w.Size > engine.MaxAmount {
		w.Size, w.Damaged = 0, append(w.Damaged, "size")
	}
	w.Newest = w.Tenant == "" || w.ID >= tail
	if withContent && header != nil {
		w.Header, w.HasContent = decodeHeader(header), true
		if w.Header == nil {
			w.Damaged = append(w.Damaged, "header")
		}
	}
	if w.Damaged != nil && w.Why == "" {
		w.Why = "its row is damaged: " + strings.Join(w.Damaged, ", ")
	}
	return w, nil
}

// named returns the names of values of a row.
func named(values []int, columns []string) (names []string) {
	for _, n := range values {
		if n < len(columns) {
			names = append(names, columns[n])
		}
	}
	return names
}

// knownState returns the state with a number of the database; empty: there is none, so the row is damaged.
func knownState(number int64) State {
	s, _ := state.Of(number)
	return s
}

// webhookColumns returns a webhook's row.
func webhookColumns(w *Webhook) []any {
	return []any{w.ID, w.UUID, w.Lane.Tenant, w.Lane.Platform, w.Lane.Type, w.Type, w.Snapshot, w.Digest, w.Size, w.Received.UnixMicro(),
		w.State.Number(), w.Rank, w.Changed.UnixMicro(), w.Why, w.Source, encodeRecord(w)}
}

// webhookChanges returns the arguments of webhook_save.
func webhookChanges(w *Webhook) []any {
	return []any{w.ID, w.State.Number(), w.Rank, w.Changed.UnixMicro(), w.Why, encodeRecord(w)}
}

func encodeRecord(w *Webhook) string {
	text, _ := json.Marshal(&w.Record) // strings, numbers and times
	return string(text)
}

// encodeHeader writes a header as HTTP does, and decodeHeader reads it: not as JSON, because its values may be any bytes. It returns nil for one
// that no request can have: it is damaged.
func encodeHeader(h http.Header) []byte {
	var out bytes.Buffer
	h.Write(&out)
	return out.Bytes()
}

func decodeHeader(text []byte) http.Header {
	h, err := textproto.NewReader(bufio.NewReader(io.MultiReader(bytes.NewReader(text), strings.NewReader("\r\n")))).ReadMIMEHeader()
	if err != nil {
		return nil
	}
	for _, values := range h {
		for _, v := range values {
			if strings.ContainsFunc(v, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
				return nil
			}
		}
	}
	return http.Header(h)
}

// LaneOf returns the name of a lane as its row has it: with an event type only if there is no tenant.
func NameInRow(l webhookgate.LaneName) webhookgate.LaneName {
	if l.Tenant != "" {
		l.Type = ""
	}
	return l
}

// laneColumns returns the three columns that name lanes, for a statement that runs for each of them.
func laneColumns(lanes []webhookgate.LaneName) (tenants, platforms, types []string) {
	for _, l := range lanes {
		tenants, platforms, types = append(tenants, l.Tenant), append(platforms, l.Platform), append(types, l.Type)
	}
	return tenants, platforms, types
}

// The values of lane.lastResult: how the last try of the lane's first webhook ended.
const (
	LastOK     = 0 // it was not tried yet, or was given back without a failure
	LastFailed = 1
	LastMiss   = 2 // a miss: the receiver is to blame, and not the webhook
)

// A lane is a row of the table lane.
type Lane struct {
	webhookgate.LaneName
	ReceiverName string // the name of the receiver that takes its webhooks; empty: none does

	// Dedup compares an arriving webhook with the tail, which arrived last, while webhooks wait. If none waits, it compares
	// with the snapshot that the receiver holds for sure; see intake.duplicate.
	Tail       int64
	TailID     string // its webhook-id
	TailDigest []byte // nil: no webhook counts as a copy of the tail, e.g. because the tail does not wait any more
	Held       []byte // the digest of what the receiver holds; nil: nobody knows
	HeldAt     int64  // when the receiver accepted it
	HeldBy     string // the receiver's name; empty: usher itself
	HeldID     string // its webhook-id

	// How many webhooks the lane has.
	Waiting int64
	Parked  int64
	Invalid int64
	Bytes   int64 // of the webhooks that wait or are parked

	// When the lane may be tried.
	WaitingSince int64 // when the first of the waiting webhooks came
	LastResult   int64 // lastOK or lastFailed
	Failures     int64 // tries of that webhook that failed in a row
	FailingSince int64 // since when the tries of all its webhooks have failed; 0: the last one was accepted, or there was none
	LastTry      int64 // when it began
	NotBefore    int64 // no try before this time: the receiver has asked for it (Retry-After), or an erasure waits
	Paused       bool
	Due          int64 // without an owner: when the lane may be tried; with one: when its lease ends

	// The lease.
	Owner    []byte // the process that has it; nil: none
	LeasedID int64  // the webhook that the owner delivers
	Token    int64  // counts leases, so that a late outcome of a former one is recognised

	Last   int64 // the number of whatever came last for it; see lane.note
	LastAt int64

	StateAt     int64 // when the last state of the tenant arrived that usher took in
	MissedSince int64 // since when it is missed webhooks; 0: none. See lane.missing

	Damaged []string // the columns of its row that cannot be right
	inMemory
}

// laneFields are what a lane's row has, in the order of the columns in 001.sql. paused is whether the lane is paused, as
// its row has it.
func laneFields(l *Lane, paused *int64) []any {
	return []any{
		&l.Tenant, &l.Platform, &l.Type, &l.ReceiverName,
		&l.Tail, &l.TailID, &l.TailDigest, &l.Held, &l.HeldAt, &l.HeldBy, &l.HeldID,
		&l.Waiting, &l.Parked, &l.Invalid, &l.Bytes,
		&l.WaitingSince, &l.LastResult, &l.Failures, &l.FailingSince, &l.LastTry, &l.NotBefore, paused, &l.Due,
		&l.Owner, &l.LeasedID, &l.Token,
		&l.Last, &l.LastAt, &l.StateAt, &l.MissedSince,
	}
}

// scanLane reads a row of {lane}. One that is damaged says so; lane.recount makes it whole.
func scanLane(r engine.Row, before ...any) (*Lane, error) {
	l, paused := NewLane(webhookgate.LaneName{}), int64(0)
	unreadable, err := engine.Unreadable(r.Scan(append(before, laneFields(l, &paused)...)...))
	for i := range unreadable {
		unreadable[i] -= len(before)
	}
	l.Damaged = named(unreadable, engine.LaneColumns)
	for _, n := range []struct {
		value  *int64
		column string
		most   int64
	}{
		{&l.Tail, "tail", maxNumber}, {&l.Last, "last", maxNumber},
		{&l.Waiting, "waiting", engine.MaxAmount}, {&l.Parked, "parked", engine.MaxAmount},
		{&l.Invalid, "invalid", engine.MaxAmount}, {&l.Bytes, "bytes", engine.MaxAmount},
		{&l.Failures, "failures", engine.MaxAmount}, {&l.LastResult, "last_result", LastMiss},
		{&l.MissedSince, "missed_since", clock.Never},
	} {
		if *n.value < 0 || *n.value > n.most { // a number that large would leave none for the next webhooks
			*n.value, l.Damaged = 0, append(l.Damaged, n.column)
		}
	}
	l.Paused = paused != 0
	l.TailDigest, l.Held, l.Owner = orNil(l.TailDigest), orNil(l.Held), orNil(l.Owner)
	if l.Owner == nil {
		l.LeasedID = 0 // the engine may have ended the lease, at its start
	}
	return l, err
}

// orNil returns nil for an empty slice, which is how the database stores "none".
func orNil(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

// laneRow returns a lane's row.
func laneRow(l *Lane) []any {
	paused := boolNumber(l.Paused)
	row := laneFields(l, &paused)
	for n, field := range row {
		switch field := field.(type) {
		case *int64:
			row[n] = *field
		case *string:
			row[n] = *field
		case *[]byte:
			row[n] = *field
		}
	}
	return row
}

// queueRows queues a statement for many rows: it passes each column as one slice. No value is NULL.
func queueRows[T any](tx engine.Tx, name string, rows []T, row func(T) []any) {
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
		case []byte:
			columns[i] = column(values, i, func(v any) []byte { return notNull(v.([]byte)) })
		case string:
			columns[i] = column(values, i, func(v any) string { return v.(string) })
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

func toNumber(v any) int64 {
	if yes, ok := v.(bool); ok {
		return boolNumber(yes)
	}
	return v.(int64)
}

// notNull returns an empty slice for nil, which the database would store as NULL.
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

// release ends the lease, if there is one. From the time at on any process may lease the lane, if a webhook waits and the
// lane is not paused.
func (l *Lane) release(at int64) {
	l.Owner, l.LeasedID, l.changed = nil, 0, true
	switch {
	case l.Waiting == 0:
		l.Due, l.WaitingSince, l.LastResult, l.Failures = clock.Never, clock.Never, LastOK, 0
	case l.Paused:
		l.Due = clock.Never
	default:
		l.Due = max(at, l.NotBefore)
	}
}

// clearFailures is for a lane whose first webhook is a new one: it has not failed yet.
func (l *Lane) clearFailures() { l.LastResult, l.Failures, l.changed = LastOK, 0, true }

// clearBackoff lets the lane be tried at once: it also ignores a Retry-After.
func (l *Lane) clearBackoff() { l.clearFailures(); l.NotBefore = 0 }

// forgetCopies drops the digests that dedup compares with, and says whether there were any.
func (l *Lane) forgetCopies() bool {
	known := l.TailDigest != nil || l.Held != nil
	l.TailDigest, l.Held, l.changed = nil, nil, true
	return known
}

// A Pause holds deliveries back: all of them, those to one receiver, or those of one tenant. Deliveries that have begun may
// finish.
type Pause struct {
	Receiver string    `json:"receiver,omitempty"`
	Platform string    `json:"platform,omitempty"`
	Tenant   string    `json:"tenant,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Until    time.Time `json:"until,omitzero"` // when it ends by itself, by the inbox's clock; zero: somebody has to resume
}

// LongestPause bounds how long a pause with an end lasts.
const LongestPause = 366 * 24 * time.Hour

// Covers says whether p holds back the webhooks of a tenant for a receiver.
func (p Pause) Covers(platform, tenant, receiver string) bool {
	switch {
	case p.Tenant != "":
		return p.Tenant == tenant && p.Platform == platform
	case p.Receiver != "":
		return p.Receiver == receiver
	}
	return true
}

// String returns what the pause holds back, for people.
func (p Pause) String() string {
	switch {
	case p.Tenant != "":
		return "tenant " + ShowTenant(p.Platform, p.Tenant)
	case p.Receiver != "":
		return "receiver " + p.Receiver
	}
	return "all deliveries"
}

// Words returns what the pause holds back, and until when.
func (p Pause) Words() string { return p.With(p.String()) }

// With returns words, such as "paused", and until when the pause lasts, if it ends by itself.
func (p Pause) With(words string) string {
	if p.Until.IsZero() {
		return words
	}
	return words + " until " + p.Until.UTC().Format("2006-01-02 15:04:05 UTC")
}

// Same says whether both hold back the same.
func (p Pause) Same(other Pause) bool {
	return p.Receiver == other.Receiver && p.Platform == other.Platform && p.Tenant == other.Tenant
}

// Flag returns the pause as an option of a command line that people copy into a shell.
func (p Pause) Flag() string {
	switch {
	case p.Tenant != "":
		return " --tenant " + text.Quote(ShowTenant(p.Platform, p.Tenant))
	case p.Receiver != "":
		return " --receiver " + text.Quote(p.Receiver)
	}
	return ""
}

// ErrNotFound says that the inbox has no webhook with this id, or has deleted it.
var ErrNotFound = errors.New("no such webhook in the inbox: it may be too old, see 'usher inbox ls'")

// GiveToReceiver says what to do about a platform that no receiver takes.
const GiveToReceiver = "Give the platform to a receiver (USHER_WEBHOOK_RECEIVERS_n_PLATFORMS), or set USHER_WEBHOOK_FORWARD_URL, then restart usher"

// Denied says why something that a person asked for is not possible as things stand. The admin port answers it with 409.
type Denied string

func (d Denied) Error() string { return string(d) }

const (
	// ErrFinished says that a webhook can't be discarded because it is only history.
	ErrFinished Denied = "only waiting, parked or invalid webhooks can be discarded"
	// ErrStored says that a webhook can't be sent again: it was stored, and still no receiver takes its platform.
	ErrStored Denied = "no receiver takes webhooks of its platform. " + GiveToReceiver
	// ErrMeanwhile says that something has come for a tenant since somebody asked to erase it.
	ErrMeanwhile Denied = "something arrived for this tenant meanwhile, so nothing was erased; try again"
	// ErrBusy says that a webhook is still being delivered.
	ErrBusy Denied = "it is being delivered right now; try again"
	// ErrInvalid says that a webhook was never taken in, so that it can't be sent again.
	ErrInvalid Denied = "it is invalid: use 'usher inbox accept ID'"
	// ErrNotInvalid says that only invalid webhooks can be accepted.
	ErrNotInvalid Denied = "somebody has dealt with it, its tenant has a newer snapshot, or it was not invalid: see 'usher inbox show ID'"
	// ErrDamaged says that the stored content of a webhook is not the content that was taken in.
	ErrDamaged Denied = "the stored webhook is damaged: its content does not fit its checksum"
)

// An OverwriteError says that a redelivery would replace a newer snapshot at the receiver by an older one.
type OverwriteError struct {
	ID     int64
	Latest *Webhook
}

func (e *OverwriteError) Error() string {
	text := fmt.Sprintf("webhook %d is not the latest of tenant %q: it would overwrite %d", e.ID, e.Latest.Tenant, e.Latest.ID)
	if e.Latest.State == "" { // the history has dropped it
		return text
	}
	return text + fmt.Sprintf(", received %s, %s", e.Latest.Received.Format(time.RFC3339), e.Latest.State)
}
