package inbox

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// scanWebhook reads a row of {webhook}, followed by the content's columns if withContent is true.
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
	err := r.Scan(into...)
	w.State = state.Of(number)
	w.LaneName.Platform, w.LaneName.Tenant = w.Platform, w.Tenant
	w.Changed, w.Received, w.Snapshot = clock.Moment(changed), clock.Moment(received), snapshot != 0
	if err == nil && (w.State == "" || w.Size < 0 || json.Unmarshal([]byte(record), &w.Record) != nil) {
		err = engine.ErrRow
	}
	if err != nil {
		w.Why = "its row is damaged"
	}
	w.Newest = w.Tenant == "" || w.ID >= tail
	if withContent && header != nil {
		w.Header, w.HasContent = decodeHeader(header), true
	}
	return w, err
}

// scanWhole reads a row of {webhook} with its content, and scanBare one without.
func scanWhole(r engine.Row) (*lane.Webhook, error) { return scanWebhook(r, true) }
func scanBare(r engine.Row) (*lane.Webhook, error)  { return scanWebhook(r, false) }

// webhookColumns returns a webhook's row.
func webhookColumns(w *lane.Webhook) []any {
	return []any{
		w.ID, w.UUID, w.LaneName.Tenant, w.LaneName.Platform, w.LaneName.Type, w.Type,
		w.Snapshot, w.Digest, w.Size, w.Received.UnixMicro(),
		w.State.Number(), w.Rank, w.Changed.UnixMicro(), w.Why, w.Source, encodeRecord(w),
	}
}

// webhookChanges returns the row of webhook_save.
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

// laneFields are what a lane's row has, in the order of the columns in 001.sql.
func laneFields(l *lane.Lane) []any {
	return []any{
		&l.Tenant, &l.Platform, &l.Type, &l.ReceiverName,
		&l.Tail, &l.TailID, &l.TailDigest, &l.HeldAt,
		&l.Waiting, &l.Parked, &l.Invalid, &l.Bytes,
		&l.WaitingSince, &l.Failures, &l.FailingSince, &l.NotBefore, &l.Due,
		&l.Owner, &l.LeasedID, &l.Token,
		&l.Last, &l.LastAt, &l.Erased,
	}
}

// scanLane reads a row of {lane}. With engine.ErrRow it returns what can be read.
func scanLane(r engine.Row) (*lane.Lane, error) {
	l := lane.New(webhookgate.LaneName{})
	err := r.Scan(laneFields(l)...)
	// A number that large would leave none for the next webhooks.
	readable := max(l.Tail, l.Last) <= engine.MaxNumber && min(l.Tail, l.Last, l.Waiting, l.Parked, l.Invalid, l.Bytes, l.Failures) >= 0
	if err == nil && !readable {
		err = engine.ErrRow
	}
	l.TailDigest, l.Owner = orNil(l.TailDigest), orNil(l.Owner)
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
	row := laneFields(l)
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

// queueFirst reads the first waiting webhooks of lanes beside some, with contents up to a size.
func queueFirst(tx engine.Tx, names []webhookgate.LaneName, except func(webhookgate.LaneName) int64, size int64, each func(*lane.Webhook, error)) {
	if len(names) == 0 {
		return
	}
	excepts, leasts, sizes := make([]int64, len(names)), make([]int64, len(names)), make([]int64, len(names))
	for i, name := range names {
		excepts[i], sizes[i] = except(name), size
		leasts[i] = boolNumber(excepts[i] != 0)
	}
	tenants, platforms, types := laneColumns(names)
	tx.Queue("lane_first", func(r engine.Row) error {
		w, err := scanWhole(r)
		each(w, err)
		return err
	}, tenants, platforms, types, excepts, leasts, sizes)
}

// snapshotColumns returns the row of a snapshot.
func snapshotColumns(r *snapshot.Stored) []any {
	return []any{r.Tenant, r.Platform, r.Seq, r.Webhook, r.Received.UnixMicro(), r.Name, string(r.Features), r.ID, r.Change, r.Source, r.Erased}
}

// withoutZero replaces the zero character, which PostgreSQL's text cannot have.
func withoutZero(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }

func scanSnapshot(r engine.Row) (t snapshot.Stored, err error) {
	var received int64
	var features string
	err = r.Scan(&t.Platform, &t.Tenant, &t.Seq, &t.Webhook, &received, &t.Name, &features, &t.Change, &t.Source)
	t.Received, t.Features = clock.Moment(received), orNil([]byte(features))
	return t, err
}

// queueNumbers queues a statement that finds a number for each of some names.
func queueNumbers(tx engine.Tx, statement string, each func(name string, number int64)) {
	tx.Queue(statement, func(r engine.Row) error {
		var name string
		var number int64
		err := r.Scan(&name, &number)
		each(name, number)
		return err
	})
}

func momentOrZero(at int64) (zero time.Time) {
	if at == 0 {
		return zero
	}
	return clock.Moment(at)
}

func microsOrZero(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.UnixMicro()
}
