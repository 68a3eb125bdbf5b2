package inbox

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/clock"
	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// Export and import: the whole inbox as lines of JSON. The first line says what the file is. Then each row of each
// table of engine.Exported is one line, {"TABLE":{"COLUMN":VALUE,…}}: integers are numbers, bytes are text in base64.
// The last line has the number of rows, so that a truncated file is noticed. A golden file guards the format.

// exportVersion is the version of the format.
const exportVersion = 1

// A firstLine says what the file is.
type firstLine struct {
	Program string    `json:"program"`
	Version int       `json:"version"`
	At      time.Time `json:"at"`
}

// A lastLine says how many rows come before it.
type lastLine struct {
	Rows int `json:"rows"`
}

// Export writes the whole inbox, as it is at one moment, and returns the number of webhooks. The inbox works on
// meanwhile.
func (s *Inbox) Export(ctx context.Context, to io.Writer) (webhooks int, err error) {
	<-s.opened
	if !s.Ready() {
		return 0, s.outage()
	}
	// One at a time: each keeps one of the few connections that read for as long as its caller takes to receive it.
	select {
	case s.exporting <- struct{}{}:
		defer func() { <-s.exporting }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if err := s.startBrowsing(ctx); err != nil {
		return 0, err
	}
	defer s.endBrowsing()
	out := bufio.NewWriterSize(to, 64<<10)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	rows := 0
	err = s.engine.Read(ctx, func(tx engine.Tx) error {
		var now int64
		tx.Now(&now)
		if err := tx.Send(); err != nil {
			return err
		}
		first := firstLine{"usher", exportVersion, clock.Moment(s.applyOffset(now))}
		if err := enc.Encode(map[string]firstLine{"inbox": first}); err != nil {
			return err
		}
		for _, table := range engine.Exported {
			tx.Queue("export_"+table.Name, func(r engine.Row) error {
				if rows++; table.Name == "webhook" {
					webhooks++
				}
				return writeRow(out, table, r)
			})
		}
		return tx.Send()
	})
	if err == nil {
		err = enc.Encode(map[string]lastLine{"end": {rows}})
	}
	return webhooks, errors.Join(err, out.Flush())
}

// writeRow writes a row as a line.
func writeRow(out *bufio.Writer, table engine.Layout, r engine.Row) error {
	var into []any
	for _, c := range table.Columns {
		switch {
		case c.LeftOut:
		case c.Kind == "int":
			into = append(into, new(int64))
		case c.Kind == "bytes":
			into = append(into, new([]byte))
		default:
			into = append(into, new(string))
		}
	}
	unreadable, err := engine.Unreadable(r.Scan(into...))
	if err != nil {
		return fmt.Errorf("a row of %s can't be read: %w", table.Name, err)
	}
	for _, n := range unreadable { // an import says that this line is faulty
		into[n] = nil
	}
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	separator := `{"` + table.Name + `":{"`
	for _, c := range table.Columns {
		if c.LeftOut {
			continue
		}
		line.WriteString(separator + c.Name + `":`)
		separator = `,"`
		value := into[0]
		if into = into[1:]; c.Kind == "json" && value != nil {
			value = sameFeatures(*value.(*string))
		}
		if err := enc.Encode(value); err != nil {
			return err
		}
		line.Truncate(line.Len() - 1) // the line end
	}
	line.WriteString("}}\n")
	_, err = out.Write(line.Bytes())
	return err
}

// sameFeatures spells features, which PostgreSQL spells in its own way, as SQLite has them; "": none are known.
func sameFeatures(text string) any {
	known, err := snapshot.Decode([]byte(text))
	switch {
	case err != nil:
		return text // damaged: the import says so
	case !known.Known:
		return nil
	}
	return json.RawMessage(known.Encode())
}

// A FaultyError says which lines of a file cannot be imported, and why.
type FaultyError struct {
	Lines []string // "line 7: …"; the first of them
	Count int
}

func (e *FaultyError) Error() string {
	lines := "lines"
	if e.Count == 1 {
		lines = "line"
	}
	return fmt.Sprintf("%d faulty %s, and nothing was imported: %s", e.Count, lines, strings.Join(e.Lines, "; "))
}

// ErrNotEmpty says that an export can only be imported into an empty inbox.
const ErrNotEmpty lane.Denied = "the inbox is not empty: an export can only be imported into an empty one"

// Imported says what an import did.
type Imported struct {
	Webhooks  int `json:"webhooks"`
	Snapshots int `json:"snapshots"`
}

// An importJob imports a file: in one transaction, however large the file is.
type importJob struct {
	s      *Inbox
	from   *bufio.Reader
	by     *Action
	result Imported
	noted  *Action // by, once it is committed
	reply  chan error

	now    int64 // the database's time
	filled bool  // the inbox has webhooks or snapshots
	missed int64 // since when it has missed some; 0: it has not

	// The file, as far as it was read.
	at      int64 // when it was exported; 0: its first line was not read
	rows    int
	ended   bool     // the last line was read
	highest int64    // the highest number of a webhook, of the inbox and of the file
	faults  []string // the first maxNamed
	faulty  int

	// The rows that go to the database together, and their lines. All are of the table at this index of engine.Exported.
	table int
	chunk [][]any
	lines []int
	bytes int
	last  []any // the key of the row before
}

// Import reads an export into an empty inbox. If it fails, nothing is imported.
func (s *Inbox) Import(ctx context.Context, from io.Reader, by *Action) (Imported, error) {
	i := &importJob{s: s, from: bufio.NewReaderSize(from, 256<<10), by: by, reply: make(chan error, 1)}
	select {
	case s.imports <- i:
	case <-ctx.Done():
		return Imported{}, ctx.Err()
	case <-s.run.Done():
		return Imported{}, ErrClosed
	}
	err := <-i.reply
	return i.result, err
}

// run imports the file. The writer calls it, so everything else waits meanwhile.
func (i *importJob) run() error {
	s := i.s
	if full := s.engine.Full(); full != nil { // the last room is for outcomes
		return full
	}
	err := s.engine.Import(i.readFile)
	if err != nil {
		i.result = Imported{}
	} else {
		i.by.become(i.noted)
	}
	s.checkDatabase()
	s.mu.Lock()
	s.publish(counted{}) // what there was before says nothing
	s.mu.Unlock()
	// The pauses that came with the file must be known before anything of it can be delivered.
	for err == nil && s.ReadPauses(s.run) != nil && s.run.Err() == nil {
		time.Sleep(100 * time.Millisecond)
	}
	s.cfg.Changed("")
	s.wakeCourier()
	return err
}

const (
	// A chunk of this many rows, or Limits.ChunkBytes, goes to the database together.
	chunkRows = 200
	// maxLine is the length of the longest line.
	maxLine = 64 << 20
	// maxText is more than any text takes, but for features.
	maxText = 1 << 20
	// maxNamed is how many faulty lines an import names.
	maxNamed = 20
)

// readFile reads the file, and writes it chunk by chunk.
func (i *importJob) readFile(tx engine.Tx) error {
	tx.Now(&i.now)
	tx.Queue("import_lock", nil)
	tx.Queue("inbox_filled", func(r engine.Row) error {
		var n int64
		err := r.Scan(&n)
		i.filled = n > 0
		return err
	})
	tx.Queue("missed_count", func(r engine.Row) error { return r.Scan(new(int64), &i.missed, new(int64)) })
	tx.Queue("last_number", func(r engine.Row) error { return r.Scan(&i.highest) })
	tx.Queue("missed_clear", nil) // it was part of the outage until now, see finish
	tx.Queue("lane_missed_clear", nil)
	if err := tx.Send(); err != nil {
		return err
	}
	i.now = i.s.applyOffset(i.now)
	for n := 1; ; n++ {
		text, fault := readLine(i.from)
		switch {
		case fault == io.EOF:
			return i.finish(tx)
		case fault != nil && !errors.Is(fault, errLongLine):
			return fmt.Errorf("line %d can't be read: %w", n, fault)
		case fault == nil:
			if text = bytes.TrimSpace(text); len(text) == 0 {
				continue
			}
			var err error
			if fault, err = i.addLine(tx, n, text); err != nil {
				return err
			}
		}
		if fault != nil {
			i.fault(fmt.Sprintf("line %d: %v", n, fault))
		}
	}
}

func (i *importJob) fault(text string) {
	if i.faulty++; len(i.faults) < maxNamed {
		i.faults = append(i.faults, text)
	}
}

var (
	errLongLine  = errors.New("is too long")
	errNoLane    = errors.New("does not name its tenant")
	errBadCode   = errors.New("has a code that is longer than 255 bytes, or has a zero character")
	errNoPart    = errors.New("is no part of an export")
	errFirstLine = errors.New("is a line of an export, but the export's first line is missing")
)

// readLine reads one line. If it is too long it returns errLongLine, and the next call reads the next line.
func readLine(r *bufio.Reader) (text []byte, err error) {
	tooLong := false
	for {
		part, err := r.ReadSlice('\n')
		if tooLong = tooLong || len(text)+len(part) > maxLine; tooLong {
			text = nil
		} else {
			text = append(text, part...)
		}
		switch {
		case err == bufio.ErrBufferFull:
		case tooLong && (err == nil || err == io.EOF):
			return nil, errLongLine
		case err == io.EOF && len(text) > 0:
			return text, nil
		default:
			return text, err
		}
	}
}

// addLine adds line n. It returns a fault, or an error, which ends the import.
func (i *importJob) addLine(tx engine.Tx, n int, text []byte) (fault, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	kind, err := openObject(dec)
	table := slices.IndexFunc(engine.Exported, func(t engine.Layout) bool { return t.Name == kind })
	switch {
	case err != nil:
		return err, nil
	case kind != "inbox" && kind != "end" && table < 0:
		return errNoPart, nil
	case kind == "inbox" && i.at != 0:
		return errors.New("is a second first line"), nil
	case kind != "inbox" && i.at == 0:
		return errFirstLine, nil
	case i.ended:
		return errors.New("comes after the end"), nil
	case kind == "inbox":
		var first firstLine
		if err := decodeLast(dec, &first); err != nil {
			return err, nil
		}
		switch {
		case first.Program != "usher" || first.Version < 1:
			return errNoPart, nil
		case first.Version > exportVersion:
			return nil, fmt.Errorf("line %d: the export has version %d, and this usher knows version %d: "+
				"use a newer usher", n, first.Version, exportVersion)
		case i.filled:
			return nil, ErrNotEmpty
		}
		i.at = max(1, first.At.UnixMicro())
		return nil, nil
	case kind == "end":
		var last lastLine
		if err := decodeLast(dec, &last); err != nil {
			return err, nil
		}
		if i.ended = true; last.Rows != i.rows {
			return fmt.Errorf("says that %d rows come before it, but there are %d: the file is not complete",
				last.Rows, i.rows), nil
		}
		return nil, nil
	}
	i.rows++
	return i.addRow(tx, n, table, dec, len(text))
}

// addRow adds a row of the table at this index.
func (i *importJob) addRow(tx engine.Tx, n, table int, dec *json.Decoder, size int) (fault, err error) {
	t := engine.Exported[table]
	row, fault := readRow(dec, t)
	if fault != nil {
		return fault, nil
	}
	if table != i.table {
		if table < i.table {
			return fmt.Errorf("is a row of %s after one of %s", t.Name, engine.Exported[i.table].Name), nil
		}
		if err := i.flush(tx); err != nil {
			return nil, err
		}
		i.table, i.last = table, nil
	}
	values := make(map[string]any, len(row))
	for k, c := range t.Columns {
		values[c.Name] = row[k]
	}
	if fault := i.check(t, values); fault != nil {
		return fault, nil
	}
	if t.Unique {
		var key []any
		for _, name := range t.Key {
			key = append(key, values[name])
		}
		if i.last != nil && compareKeys(i.last, key) >= 0 { // so that none occurs twice
			return fmt.Errorf("is a row of %s that should come before the one before it", t.Name), nil
		}
		i.last = key
	}
	if t.Name == "lane" {
		platform := values["platform"].(string)
		values["receiver"] = lane.ReceiverName(i.s.cfg.Receivers.For(platform))
	}
	for k, c := range t.Columns {
		row[k] = values[c.Name]
	}
	i.result.Webhooks += int(boolNumber(t.Name == "webhook"))
	i.result.Snapshots += int(boolNumber(t.Name == "snapshot"))
	i.chunk, i.lines = append(i.chunk, row), append(i.lines, n)
	i.bytes += size
	if len(i.chunk) >= chunkRows || i.bytes >= i.s.cfg.Limits.ChunkBytes {
		return nil, i.flush(tx)
	}
	return nil, nil
}

// openObject reads the begin of {"NAME":…, up to the value, and returns the name.
func openObject(dec *json.Decoder) (name string, err error) {
	open, err := dec.Token()
	if err == nil && open != json.Delim('{') {
		return "", errors.New("is not a JSON object")
	}
	token, err2 := dec.Token()
	name, _ = token.(string)
	return name, spoken(errors.Join(err, err2))
}

// decodeLast reads the value, and the end of the object and of the line.
func decodeLast(dec *json.Decoder, into any) error {
	if err := dec.Decode(into); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // its text names our Go types
			return fmt.Errorf("has a JSON %s in %q", wrong.Value, wrong.Field)
		}
		return spoken(err)
	}
	return closeObject(dec)
}

// closeObject reads the end of the object and of the line.
func closeObject(dec *json.Decoder) error {
	closed, err := dec.Token()
	switch {
	case err != nil:
		return spoken(err)
	case closed != json.Delim('}'):
		return errors.New("has more than one member")
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("has something behind its end")
	}
	return nil
}

// spoken is an error of a decoder in words. Where a line is cut off it says EOF; from Go 1.27 on it may be a syntax
// error, too.
func spoken(err error) error {
	cut := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if cut || err != nil && strings.HasPrefix(err.Error(), "unexpected end of JSON input") {
		return errors.New("is not complete")
	}
	return err
}

// readRow reads the columns of a row, each once, and up to the end of the line. Columns that are missing get their
// default.
func readRow(dec *json.Decoder, t engine.Layout) ([]any, error) {
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("has no object in %q", t.Name)
	}
	row := make([]any, len(t.Columns))
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, spoken(err)
		}
		name, _ := token.(string)
		k := slices.IndexFunc(t.Columns, func(c engine.Column) bool { return c.Name == name && !c.LeftOut })
		if k < 0 || row[k] != nil {
			return nil, fmt.Errorf("has a column that %s does not have, or twice", t.Name)
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, spoken(err)
		}
		if row[k], err = readValue(t.Columns[k], raw); err != nil {
			return nil, err
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, spoken(err)
	}
	for k, c := range t.Columns {
		if row[k] != nil {
			continue
		}
		if row[k] = c.Default; c.Default == nil {
			return nil, fmt.Errorf("has no %q", c.Name)
		}
	}
	return row, closeObject(dec)
}

// readValue reads the value of a column: an int64, a string or a []byte.
func readValue(c engine.Column, raw json.RawMessage) (value any, err error) {
	isText := raw[0] == '"'
	switch c.Kind {
	case "int":
		value, err = strconv.ParseInt(string(raw), 10, 64)
	case "json":
		known, bad := snapshot.Decode(raw)
		hasBadCode := func(f snapshot.Feature) bool { return !storable(f.Code) }
		switch {
		case string(raw) == "null":
			return "", nil
		case bad != nil || !known.Known || slices.ContainsFunc(known.Features, hasBadCode):
			return nil, errors.New("has a snapshot whose features can't be read")
		}
		return string(known.Encode()), nil
	case "bytes":
		var bytes []byte
		err = json.Unmarshal(raw, &bytes)
		value = notNull(bytes)
	default:
		var text string
		err = json.Unmarshal(raw, &text)
		if len(text) > maxText || strings.Contains(text, "\x00") {
			return nil, fmt.Errorf("has a text in %q that is too long, or has a zero character", c.Name)
		}
		value = text
	}
	if err != nil || isText == (c.Kind == "int") {
		return nil, fmt.Errorf("has something in %q that is not of its type (%s)", c.Name, c.Kind)
	}
	return value, nil
}

// firstMoment is the begin of the year 1, and lastMoment the last microsecond of the year 9999. JSON can't have
// another time.
const (
	firstMoment = -62135596800_000000
	lastMoment  = 253402300799_999999
)

// check checks the values of a row, which may come from anybody: what usher would not have written could harm those
// who read it.
func (i *importJob) check(t engine.Layout, row map[string]any) error {
	for name, value := range row {
		switch value := value.(type) {
		case int64:
			switch name {
			case "seq", "rank", "tail", "last", "mark":
				if value < 0 || value > maxImported || value == 0 && name == "seq" {
					return fmt.Errorf("has the number %d, and not one from 0 to %d", value, int64(maxImported))
				}
				i.highest = max(i.highest, value)
			case "state", "size", "webhooks":
				if value < 0 || value > maxNumber {
					return fmt.Errorf("has a number in %q that nothing has", name)
				}
			default:
				if value != clock.Never && (value < firstMoment || value > lastMoment) {
					return fmt.Errorf("has a number in %q that nothing has", name)
				}
			}
		case string:
			switch name {
			case "tenant", "platform", "event_type", "receiver":
				if !storable(value) {
					return errBadCode
				}
			case "uuid", "tail_id":
				if len(value) > 255 || strings.ContainsFunc(value, func(c rune) bool { return c <= ' ' || c > '~' }) {
					return errors.New("has a webhook-id that no webhook has")
				}
			}
		case []byte:
			if t.Name != "content" && len(value) != 0 && len(value) != sha256.Size {
				return fmt.Errorf("has something in %q that is no digest", name)
			}
		}
	}
	text := func(name string) string { v, _ := row[name].(string); return v }
	number := func(name string) int64 { v, _ := row[name].(int64); return v }
	flag := func(name string) bool { return number(name) == 0 || number(name) == 1 }
	name := webhookgate.LaneName{Platform: text("platform"), Tenant: text("tenant"), Type: text("event_type")}
	if lane.NameInRow(name) != name {
		return errors.New("has a tenant and an event type")
	}
	switch t.Name {
	case "lane": // it is named, see below
	case "webhook":
		state := number("state")
		switch {
		case knownState(state) == "" || !flag("snapshot") || number("rank") < number("seq") || number("size") > 1<<40:
			return errors.New("has a webhook without a valid state or size")
		case len(row["digest"].([]byte)) == 0:
			return errors.New("has a webhook without its digest")
		case text("source") != "" && text("source") != FromReconcile:
			return errors.New("has a webhook of a source that is not known")
		case name == webhookgate.LaneName{} && (knownState(state) == lane.Invalid || knownState(state) == lane.Discarded):
			return checkRecord(text("record"))
		case unnamed(name):
			return errNoLane
		}
		return checkRecord(text("record"))
	case "missed":
		if name.Tenant == "" || len(row["digest"].([]byte)) == 0 || !flag("snapshot") {
			return errors.New("has a missed webhook without its tenant or digest")
		}
		return nil
	case "snapshot", "finding":
		if name.Tenant == "" {
			return errNoLane
		}
		if t.Name == "finding" {
			return checkFinding(text("result"), text("changes"))
		}
		return nil
	case "seen_id":
		if len(row["id"].([]byte)) == 0 || len(row["digest"].([]byte)) == 0 {
			return errors.New("has an id without its hash, or without its webhook's")
		}
	case "reconcile":
		if s := text("summary"); !flag("complete") || s != "" && json.Unmarshal([]byte(s), new(lane.Summary)) != nil {
			return errors.New("has a summary that can't be read")
		}
		return nil
	default:
		return nil
	}
	if unnamed(name) {
		return errNoLane
	}
	return nil
}

// checkRecord checks the column record of a webhook.
func checkRecord(text string) error {
	var record lane.Record
	switch err := json.Unmarshal([]byte(text), &record); {
	case err != nil && text != "":
		return errors.New("has a record that can't be read")
	// One fault more, which says how many more there are.
	case len(record.Tried) > lane.KeptTries || len(record.Faults) > content.MaxFaults+1:
		return errors.New("has more tries or faults than usher keeps")
	}
	return nil
}

// checkFinding checks what a reconcile has found.
func checkFinding(result, changes string) error {
	known := []lane.Result{"", lane.Differs, lane.NewTenant, lane.Twin, lane.Unlisted}
	unreadable := changes != "" && json.Unmarshal([]byte(changes), new([]string)) != nil
	if unreadable || !slices.Contains(known, lane.Result(result)) {
		return errors.New("has a finding that can't be read")
	}
	return nil
}

// compareKeys compares two keys of a table, as both engines sort them: text by its bytes.
func compareKeys(a, b []any) (order int) {
	for k := 0; k < len(a) && order == 0; k++ {
		switch x := a[k].(type) {
		case int64:
			order = int(min(1, max(-1, x-b[k].(int64)))) // neither is negative
		case string:
			order = strings.Compare(x, b[k].(string))
		case []byte:
			order = bytes.Compare(x, b[k].([]byte))
		}
	}
	return order
}

// flush writes the chunk.
func (i *importJob) flush(tx engine.Tx) error {
	rows, lines := i.chunk, i.lines
	i.chunk, i.lines, i.bytes = nil, nil, 0
	if len(rows) == 0 || i.faulty > 0 {
		return nil
	}
	t := engine.Exported[i.table]
	queueRows(tx, "import_"+t.Name, rows, func(row []any) []any { return row })
	if t.Name != "content" {
		return tx.Send()
	}
	seqs := make(engine.Among, len(rows))
	line := make(map[int64]int)
	for n, row := range rows { // its columns are seq, header and body
		seqs[n] = row[0].(int64)
		line[seqs[n]] = n
	}
	known := make([]bool, len(rows))
	tx.Queue("import_digests", func(r engine.Row) error {
		var seq, size, number int64
		var digest []byte
		if err := r.Scan(&seq, &digest, &size, &number); err != nil {
			return err
		}
		n := line[seq]
		known[n] = true
		header, body := rows[n][1].([]byte), rows[n][2].([]byte)
		sum := sha256.Sum256(body)
		whole := bytes.Equal(sum[:], digest) && size == int64(len(header)+len(body))+overhead
		if !whole && !knownState(number).Is(state.Suspect) {
			i.fault(fmt.Sprintf("line %d: has a webhook whose body does not fit its digest and size", lines[n]))
		}
		return nil
	}, seqs)
	err := tx.Send()
	for n := range known {
		if err == nil && !known[n] {
			i.fault(fmt.Sprintf("line %d: has the content of a webhook that is missing", lines[n]))
		}
	}
	return err
}

// finish writes the last chunk, and counts anew what is counted.
func (i *importJob) finish(tx engine.Tx) error {
	if err := i.flush(tx); err != nil {
		return err
	}
	if !i.ended {
		i.fault("the last line is missing: the file is not complete")
	}
	if i.faulty == 0 {
		tx.Queue("import_strays", func(r engine.Row) error {
			var seq int64
			err := r.Scan(&seq)
			if seq == 0 {
				i.fault("a webhook that was missed: its tenant's row does not say so")
			} else {
				i.fault(fmt.Sprintf("webhook %d: its content or its tenant's row is missing, or is older", seq))
			}
			return err
		}, int64(maxNamed))
		if err := tx.Send(); err != nil {
			return err
		}
	}
	if i.faulty > 0 {
		return &FaultyError{i.faults, i.faulty}
	}
	tx.Queue("number_raise", nil, i.highest)
	tx.Queue("runs_drop", nil)
	tx.Queue("tellings_forget", nil, rand.Int64()) // all who keep a copy begin again
	began := i.at
	if i.missed > 0 {
		began = min(began, i.missed) // the file's take their place
	}
	if began < i.now {
		tx.Queue("outage_add", nil, began, i.now, int64(0))
	}
	i.noted = i.by.queue(tx, i.now, i.result.Webhooks)
	var due int64
	tx.Now(&due)
	if err := tx.Send(); err != nil {
		return err
	}
	due = i.s.applyOffset(due)
	if i.s.engine.Shared() { // counting and committing take no longer than reading did
		due += max(0, due-i.now) + clock.Micros(importDelay)
	}
	tx.Queue("import_pauses", nil)
	tx.Queue("import_recount", nil, due)
	return tx.Send()
}

// importDelay is how long imported webhooks wait if replicas share the database: each replica must have read the
// pauses that came with them.
const importDelay = 3 * time.Second
