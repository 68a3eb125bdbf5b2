package inbox

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/snapshot"
)

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
const ErrNotEmpty lane.Denied = "the inbox is not empty: an export can only be imported into an empty one, " +
	"such as a new file or a new schema"

// Imported says what an import did.
type Imported struct {
	Webhooks  int `json:"webhooks"`
	Snapshots int `json:"snapshots"`
}

// An importJob imports a file: in one transaction, however large the file is.
type importJob struct {
	s      *Inbox
	from   io.Reader
	by     *Action
	result Imported
	noted  *Action // by, once it is committed
	reply  chan error

	now    int64 // the database's time
	filled bool  // the inbox has webhooks or snapshots
	missed int64 // since when it has missed some; 0: it has not

	// The file, as far as it was read.
	sum     hash.Hash // of its rows
	at      int64     // when it was exported; 0: its first line was not read
	ended   bool      // its last line was read
	highest int64     // the highest number of a webhook, of the inbox and of the file
	faults  []string  // the first maxNamed
	faulty  int

	// The rows that go to the database together. All are of one table.
	table  *engine.Layout
	chunk  [][]any
	bytes  int
	failed error // why they could not be written
}

// Import reads an export into an empty inbox. If it fails, nothing is imported.
func (s *Inbox) Import(ctx context.Context, from io.Reader, by *Action) (Imported, error) {
	i := &importJob{s: s, from: from, by: by, reply: make(chan error, 1), sum: sha256.New()}
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
	for err == nil && s.readPauses(s.run) != nil && s.run.Err() == nil {
		time.Sleep(100 * time.Millisecond)
	}
	s.cfg.Changed("")
	s.wakeCourier()
	return err
}

const (
	// A chunk of this many rows, or Limits.ChunkBytes, goes to the database together.
	chunkRows = 200
	// maxLine is the length of the longest line, unless webhooks may be longer.
	maxLine = 64 << 20
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
	tx.Queue("missed_first", func(r engine.Row) error { return r.Scan(&i.missed) })
	tx.Queue("last_number", func(r engine.Row) error { return r.Scan(&i.highest) })
	tx.Queue("missed_clear", nil) // it was part of the outage until now, see finish
	if err := tx.Send(); err != nil {
		return err
	}
	i.now = i.s.applyOffset(i.now)
	lines := bufio.NewScanner(i.from)
	lines.Buffer(make([]byte, 256<<10), max(maxLine, int(2*i.s.cfg.MaxBody))) // base64 is longer by a third
	n := 1
	for ; lines.Scan(); n++ {
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		err := i.addLine(tx, text)
		if fault, ok := errors.AsType[faultyLine](err); ok {
			i.fault(fmt.Sprintf("line %d: %v", n, fault))
		} else if err != nil {
			return err
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		i.fault(fmt.Sprintf("line %d: is too long (USHER_WEBHOOK_MAX_BODY)", n))
	case err != nil:
		return fmt.Errorf("line %d can't be read: %w", n, err)
	case !i.ended:
		i.fault("the last line is missing: the file is not complete")
	}
	return i.finish(tx)
}

// A faultyLine says what is wrong with a line. The other lines are read nevertheless, so that all faults are said.
type faultyLine string

func (f faultyLine) Error() string { return string(f) }

func (i *importJob) fault(text string) {
	if i.faulty++; len(i.faults) < maxNamed {
		i.faults = append(i.faults, text)
	}
}

// addLine adds a line. It returns a faultyLine, or an error that ends the import.
func (i *importJob) addLine(tx engine.Tx, text []byte) error {
	var line map[string]json.RawMessage
	if json.Unmarshal(text, &line) != nil {
		return faultyLine("is not a whole JSON object")
	}
	for kind, value := range line {
		table := slices.IndexFunc(engine.Exported, func(t engine.Layout) bool { return t.Name == kind })
		switch {
		case len(line) > 1 || kind != "inbox" && kind != "end" && table < 0 || kind == "inbox" && i.at != 0:
			return faultyLine("is no part of an export")
		case kind != "inbox" && i.at == 0:
			return faultyLine("is a line of an export, but the export's first line is missing")
		case i.ended:
			return faultyLine("comes after the end")
		case kind == "inbox":
			return i.readFirst(value)
		case kind == "end":
			return i.readLast(value)
		}
		i.sum.Write(text)
		i.sum.Write([]byte{'\n'})
		return i.addRow(tx, &engine.Exported[table], value, len(text))
	}
	return faultyLine("is no part of an export")
}

func (i *importJob) readFirst(value []byte) error {
	var first firstLine
	switch err := json.Unmarshal(value, &first); {
	case err != nil || first.Program != "usher" || first.Version < 1:
		return faultyLine("is no part of an export")
	case first.Version > exportVersion:
		return fmt.Errorf("the export has version %d, and this usher knows version %d: use a newer usher",
			first.Version, exportVersion)
	case i.filled:
		return ErrNotEmpty
	}
	i.at = max(1, first.At.UnixMicro())
	return nil
}

func (i *importJob) readLast(value []byte) error {
	i.ended = true
	var last lastLine
	if json.Unmarshal(value, &last) != nil || !bytes.Equal(last.SHA256, i.sum.Sum(nil)) {
		return faultyLine("the checksum does not fit: the file is not complete, or was changed since the export")
	}
	return nil
}

// addRow adds a row of a table.
func (i *importJob) addRow(tx engine.Tx, t *engine.Layout, value []byte, size int) error {
	row, err := readRow(t, value)
	if err != nil {
		return err
	}
	if t != i.table {
		i.flush(tx)
		i.table = t
	}
	for k, c := range t.Columns {
		switch c.Name {
		case "seq", "rank", "tail", "last", "mark":
			i.highest = max(i.highest, row[k].(int64))
		}
	}
	switch t.Name {
	case "lane":
		platform := row[t.Index("platform")].(string)
		row[t.Index("receiver")] = lane.ReceiverName(i.s.cfg.Receivers.For(platform))
	case "webhook":
		i.result.Webhooks++
	case "snapshot":
		i.result.Snapshots++
	}
	i.chunk, i.bytes = append(i.chunk, row), i.bytes+size
	if len(i.chunk) >= chunkRows || i.bytes >= i.s.cfg.Limits.ChunkBytes {
		i.flush(tx)
	}
	return nil
}

// readRow reads the columns of a row. Those that are missing get their default.
func readRow(t *engine.Layout, text []byte) ([]any, error) {
	var values map[string]json.RawMessage
	if json.Unmarshal(text, &values) != nil {
		return nil, faultyLine("has no object")
	}
	row := make([]any, len(t.Columns))
	for k, c := range t.Columns {
		value, given := values[c.Name]
		switch {
		case !given && c.Default == nil:
			return nil, faultyLine(fmt.Sprintf("has no %q", c.Name))
		case !given || c.LeftOut:
			row[k] = c.Default
			continue
		}
		delete(values, c.Name)
		if row[k] = readValue(c, value); row[k] == nil {
			return nil, faultyLine(fmt.Sprintf("has something in %q that is not of its type (%s)", c.Name, c.Kind))
		}
	}
	for name := range values {
		return nil, faultyLine(fmt.Sprintf("has a column %.40q, which %s does not have", name, t.Name))
	}
	return row, nil
}

// readValue reads the value of a column: an int64, a string or a []byte. It returns nil if it is none of its type.
func readValue(c engine.Column, raw []byte) any {
	var number int64
	var text string
	var content []byte
	switch {
	case c.Kind == "json":
		known, err := snapshot.Decode(raw)
		if string(raw) == "null" || err == nil {
			return string(known.Encode())
		}
	case string(raw) == "null":
	case c.Kind == "int" && json.Unmarshal(raw, &number) == nil:
		return number
	case c.Kind == "bytes" && json.Unmarshal(raw, &content) == nil:
		return notNull(content)
	case c.Kind == "text" && json.Unmarshal(raw, &text) == nil:
		return text
	}
	return nil
}

// flush writes the chunk. After an error nothing more is written, but the file is read to its end: if it was changed,
// that is said instead.
func (i *importJob) flush(tx engine.Tx) {
	rows := i.chunk
	i.chunk, i.bytes = nil, 0
	if len(rows) == 0 || i.faulty > 0 || i.failed != nil {
		return
	}
	queueRows(tx, "import_"+i.table.Name, rows, func(row []any) []any { return row })
	i.failed = tx.Send()
}

// finish writes the last chunk, and counts anew what is counted.
func (i *importJob) finish(tx engine.Tx) error {
	i.flush(tx)
	switch {
	case i.faulty > 0:
		return &FaultyError{i.faults, i.faulty}
	case i.failed != nil:
		return i.failed
	}
	tx.Queue("number_raise", nil, i.highest)
	tx.Queue("runs_drop", nil)
	tx.Queue("tellings_forget", nil, rand.Int64()) // all who keep a copy begin again
	began := min(i.at, i.now)                      // the clock of the database that was exported may have been ahead
	if i.missed > 0 {
		began = min(began, i.missed) // the file's take their place
	}
	tx.Queue("outage_add", nil, began, i.now, int64(0))
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
