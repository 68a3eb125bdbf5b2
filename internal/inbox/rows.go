package inbox

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/text"
	"usher/webhookgate"
)

// overhead is about how many bytes a webhook takes beside its content.
const overhead = 512

func newWebhook(w *webhookgate.Webhook) *lane.Webhook {
	row := &lane.Webhook{
		UUID: w.ID, Type: w.Type, Platform: w.Lane.Platform, Tenant: w.Lane.Tenant,
		LaneName: lane.NameInRow(w.Lane), Snapshot: w.Snapshot, Digest: w.Digest[:],
		Header: w.Header, Body: w.Body, HasContent: true, Verified: true,
	}
	row.Size = int64(len(w.Body)+len(encodeHeader(w.Header))) + overhead
	return row
}

// scanWebhook reads a row of {webhook}, followed by the content's columns if withContent is true. One that is damaged
// says so.
func scanWebhook(r engine.Row, withContent bool) (*lane.Webhook, error) {
	w := new(lane.Webhook)
	var number, snapshot, received, changed, tail int64
	var record string
	var header []byte
	into := []any{
		&w.ID, &w.UUID, &w.Tenant, &w.Platform, &w.LaneName.Type, &w.Type,
		&snapshot, &w.Digest, &w.Size, &received,
		&number, &w.Rank, &changed, &w.Why, &w.Source, &record,
		&tail,
	}
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
		w.State = lane.Parked // no statement finds it by its state; see Lane.Load
	}
	if json.Unmarshal([]byte(record), &w.Record) != nil && record != "" {
		w.Record, w.Damaged = lane.Record{}, append(w.Damaged, "record")
	}
	w.LaneName.Platform, w.LaneName.Tenant = w.Platform, w.Tenant
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
func knownState(number int64) lane.State {
	s, _ := state.Of(number)
	return s
}

// webhookColumns returns a webhook's row.
func webhookColumns(w *lane.Webhook) []any {
	return []any{
		w.ID, w.UUID, w.LaneName.Tenant, w.LaneName.Platform, w.LaneName.Type, w.Type,
		w.Snapshot, w.Digest, w.Size, w.Received.UnixMicro(),
		w.State.Number(), w.Rank, w.Changed.UnixMicro(), w.Why, w.Source, encodeRecord(w),
	}
}

// webhookChanges returns the arguments of webhook_save.
func webhookChanges(w *lane.Webhook) []any {
	return []any{w.ID, w.State.Number(), w.Rank, w.Changed.UnixMicro(), w.Why, encodeRecord(w)}
}

func encodeRecord(w *lane.Webhook) string {
	text, _ := json.Marshal(&w.Record) // strings, numbers and times
	return string(text)
}

// encodeHeader writes a header as HTTP does, and decodeHeader reads it: not as JSON, because its values may be any
// bytes. It returns nil for one that no request can have: it is damaged.
func encodeHeader(h http.Header) []byte {
	var out bytes.Buffer
	h.Write(&out)
	return out.Bytes()
}

func decodeHeader(text []byte) http.Header {
	lines := io.MultiReader(bytes.NewReader(text), strings.NewReader("\r\n"))
	h, err := textproto.NewReader(bufio.NewReader(lines)).ReadMIMEHeader()
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

// laneColumns returns the three columns that name lanes, for a statement that runs for each of them.
func laneColumns(lanes []webhookgate.LaneName) (tenants, platforms, types []string) {
	for _, l := range lanes {
		tenants, platforms, types = append(tenants, l.Tenant), append(platforms, l.Platform), append(types, l.Type)
	}
	return tenants, platforms, types
}

// laneFields are what a lane's row has, in the order of the columns in 001.sql. paused is whether the lane is paused,
// as its row has it.
func laneFields(l *lane.Lane, paused *int64) []any {
	return []any{
		&l.Tenant, &l.Platform, &l.Type, &l.ReceiverName,
		&l.Tail, &l.TailID, &l.TailDigest, &l.Held, &l.HeldAt, &l.HeldBy, &l.HeldID,
		&l.Waiting, &l.Parked, &l.Invalid, &l.Bytes,
		&l.WaitingSince, &l.LastResult, &l.Failures, &l.FailingSince, &l.LastTry, &l.NotBefore, paused, &l.Due,
		&l.Owner, &l.LeasedID, &l.Token,
		&l.Last, &l.LastAt, &l.StateAt, &l.MissedSince,
	}
}

// scanLane reads a row of {lane}. One that is damaged says so; Lane.Recount makes it whole.
func scanLane(r engine.Row, before ...any) (*lane.Lane, error) {
	l, paused := lane.New(webhookgate.LaneName{}), int64(0)
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
		{&l.Failures, "failures", engine.MaxAmount}, {&l.LastResult, "last_result", lane.LastDown},
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
func laneRow(l *lane.Lane) []any {
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

// A Pause holds deliveries back: all of them, those to one receiver, or those of one tenant. Deliveries that have
// begun may finish.
type Pause struct {
	Receiver string    `json:"receiver,omitempty"`
	Platform string    `json:"platform,omitempty"`
	Tenant   string    `json:"tenant,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Until    time.Time `json:"until,omitzero"` // when it ends by itself, by the inbox's clock; zero: it does not
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
