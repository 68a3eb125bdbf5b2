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
	"strings"
	"time"
	"unicode/utf8"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// Export and import: the whole inbox as lines of JSON. The first line has the version, the last one the number of lines before
// it, so that a truncated file is noticed. The format is documented in docs/operations.md, and a golden file guards it.

// exportVersion is the version of the format.
const exportVersion = 1

// An exportLine is one line. Exactly one member is set.
type exportLine struct {
	Inbox    *inboxLine    `json:"inbox,omitempty"`
	Pause    *Pause        `json:"pause,omitempty"`
	Lane     *laneLine     `json:"lane,omitempty"`
	Webhook  *webhookLine  `json:"webhook,omitempty"`
	Snapshot *snapshotLine `json:"snapshot,omitempty"`
	Seen     *seenLine     `json:"seen,omitempty"`
	Outage   *outageLine   `json:"outage,omitempty"`
	End      *endLine      `json:"end,omitempty"`
}

// numbers are those of the webhooks that the line names. Even if such a webhook is not in the export, no other may get its number.
func (l *exportLine) numbers() []int64 {
	switch {
	case l.Webhook != nil:
		return []int64{l.Webhook.ID, l.Webhook.LastID}
	case l.Lane != nil:
		return []int64{l.Lane.Tail, l.Lane.Last}
	case l.Snapshot != nil:
		return []int64{l.Snapshot.ID}
	case l.Seen != nil:
		return []int64{l.Seen.ID}
	}
	return nil
}

// validID says whether the webhook-id in the line can stand in a header, and in a database.
func (l *exportLine) validID() bool {
	id := ""
	switch {
	case l.Webhook != nil:
		id = l.Webhook.UUID
	case l.Lane != nil:
		id = l.Lane.TailID
	case l.Snapshot != nil:
		id = l.Snapshot.Webhook
	case l.Seen != nil:
		id = l.Seen.Webhook
	}
	return len(id) <= 255 && !strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c > '~' })
}

const (
	// maxNumber is the largest number that a webhook can have. Many readers of JSON know no larger integers.
	maxNumber = 1<<53 - 1
	// maxImported is the largest number that an import accepts. More than anybody will ever need are left for new webhooks.
	maxImported = maxNumber / 2
)

var errNoNumber = errors.New("no number is left for a new webhook: export the inbox, and import it into a new one")

type inboxLine struct {
	Version int       `json:"version"`
	At      time.Time `json:"at"`
}

type endLine struct {
	Lines int `json:"lines"`
}

// A laneName says which lane a line is about.
type laneName struct {
	Platform string `json:"platform,omitempty"`
	Tenant   string `json:"tenant,omitempty"`
	Type     string `json:"type,omitempty"` // only without a tenant
}

// A laneLine is what dedup remembers about a lane, and when anything came for it last, but for what the receiver holds: when the export is imported, the receiver may have
// got other webhooks.
type laneLine struct {
	laneName
	Tail       int64       `json:"tail"`
	TailID     string      `json:"tail_id,omitempty"`
	TailDigest octets      `json:"tail_digest,omitempty"`
	Last       int64       `json:"last"`
	LastAt     time.Time   `json:"last_at"`
	Missed     *missedLine `json:"missed,omitempty"`
}

// A missedLine is what usher missed the lane's tenant.
type missedLine struct {
	Since   time.Time `json:"since"`
	Last    time.Time `json:"last"`
	Digests []octets  `json:"digests"`
}

func newMissedLine(d webhookgate.MissedSet) *missedLine {
	if len(d.Webhooks) == 0 {
		return nil
	}
	l := &missedLine{Since: d.Since, Last: d.Last()}
	for _, m := range d.Webhooks {
		l.Digests = append(l.Digests, m.Digest[:])
	}
	return l
}

// addTo adds it to what was missed already: the inbox may miss the tenant something since it was opened.
func (l *missedLine) addTo(d webhookgate.MissedSet) webhookgate.MissedSet {
	if l == nil {
		return d
	}
	for _, digest := range l.Digests {
		d = d.Add(readMissedWebhook(digest, l.Last.UnixMicro()))
	}
	if l.Since.Before(d.Since) {
		d.Since = l.Since
	}
	return d
}

// An outageLine is a time in which usher may have missed webhooks.
type outageLine struct {
	Outage
	Webhooks int64 `json:"webhooks,omitempty"` // how many got a 5xx before their tenant was known; zero: no gate was up
}

type webhookLine struct {
	Webhook
	LastID   int64     `json:"last_id,omitempty"` // of an invalid one that came again: the number that its last copy took
	Certain  bool      `json:"certain"`           // the tenant is certain; false only for a webhook that is invalid
	Snapshot bool      `json:"snapshot"`
	Digest   octets    `json:"digest"`
	Header   bytesText `json:"header"`
	Body     bytesText `json:"body"`
}

type snapshotLine struct {
	laneName
	ID       int64           `json:"id"`
	Webhook  string          `json:"webhook"`
	Received time.Time       `json:"received"`
	Name     string          `json:"name,omitempty"`
	Features json.RawMessage `json:"features,omitempty"`
}

type seenLine struct {
	laneName
	Hash    octets    `json:"hash"`
	Digest  octets    `json:"digest"`
	ID      int64     `json:"id"`
	Webhook string    `json:"webhook"`
	At      time.Time `json:"at"`
}

// octets is a []byte, which encoding/json writes in base64.
type octets = []byte

// bytesText is a []byte that is written as text, or as {"base64":…} if it is not valid UTF-8.
type bytesText []byte

// MarshalJSON implements json.Marshaler.
func (b bytesText) MarshalJSON() ([]byte, error) {
	if utf8.Valid(b) {
		var out bytes.Buffer
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		err := enc.Encode(string(b))
		return bytes.TrimSpace(out.Bytes()), err
	}
	return json.Marshal(map[string][]byte{"base64": b})
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *bytesText) UnmarshalJSON(in []byte) error {
	if len(in) > 0 && in[0] == '{' {
		var o struct {
			Base64 []byte `json:"base64"`
		}
		err := json.Unmarshal(in, &o)
		*b = o.Base64
		return err
	}
	var s string
	err := json.Unmarshal(in, &s)
	*b = bytesText(s)
	return err
}

// Export writes the whole inbox, as it is at one moment, and returns the number of webhooks. The inbox works on meanwhile.
func (s *Inbox) Export(ctx context.Context, to io.Writer) (webhooks int, err error) {
	<-s.opened
	if !s.Ready() {
		return 0, s.timeoutErr()
	}
	select { // one at a time: each keeps one of the few connections that read for as long as its caller takes to receive it
	case s.exporting <- struct{}{}:
		defer func() { <-s.exporting }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	leave, err := s.startBrowsing(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	out := bufio.NewWriterSize(to, 64<<10)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	count := 0
	write := func(l exportLine) error {
		count++
		return enc.Encode(l)
	}
	err = s.engine.Read(ctx, func(tx engine.Tx) error {
		if err := write(exportLine{Inbox: &inboxLine{exportVersion, s.Now()}}); err != nil {
			return err
		}
		tx.Queue("pauses", func(r engine.Row) error {
			p, err := scanPause(r)
			return errors.Join(err, write(exportLine{Pause: &p}))
		})
		tx.Queue("export_lanes", func(r engine.Row) error {
			l, err := scanLane(r)
			if err != nil {
				return err
			}
			return write(exportLine{Lane: &laneLine{laneName(l.Lane), l.tail, l.tailID, l.tailDigest, l.last, moment(l.lastAt), newMissedLine(l.missed)}})
		})
		tx.Queue("export_webhooks", func(r engine.Row) error {
			w, err := scanWebhook(r, true)
			if err != nil {
				return err
			}
			webhooks++
			l := &webhookLine{Webhook: *w, Certain: w.lane != webhookgate.Lane{}, Snapshot: w.snapshot, Digest: w.digest, Header: encodeHeader(w.Header), Body: w.Body}
			if w.State == Invalid && w.rank > w.ID {
				l.LastID = w.rank
			}
			return write(exportLine{Webhook: l})
		})
		tx.Queue("export_snapshots", func(r engine.Row) error {
			t, err := scanSnapshot(r)
			if err != nil {
				return err
			}
			return write(exportLine{Snapshot: &snapshotLine{laneName{t.Platform, t.Tenant, ""}, t.Seq, t.Webhook, t.Received, t.Name, json.RawMessage(t.Features)}})
		})
		tx.Queue("export_seen", func(r engine.Row) error {
			var at int64
			l := new(seenLine)
			err := r.Scan(&l.Platform, &l.Tenant, &l.Type, &l.Hash, &l.Digest, &l.ID, &at, &l.Webhook)
			l.At = moment(at)
			return errors.Join(err, write(exportLine{Seen: l}))
		})
		tx.Queue("outages", func(r engine.Row) error {
			var began, ended int64
			l := new(outageLine)
			err := r.Scan(&began, &ended, &l.Webhooks)
			l.From, l.To = moment(began), moment(ended)
			return errors.Join(err, write(exportLine{Outage: l}))
		}, never)
		return tx.Send()
	})
	if err == nil {
		err = enc.Encode(exportLine{End: &endLine{count}})
	}
	return webhooks, errors.Join(err, out.Flush())
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
const ErrNotEmpty Denied = "the inbox is not empty: an export can only be imported into an empty one"

// ImportOptions say what an import may do.
type ImportOptions struct {
	SkipFaulty bool // leave faulty lines out; false: if there are any, nothing is imported
	Replace    bool // a bare webhook of a known tenant replaces what usher knows
	By         *Action
}

// Imported says what an import did.
type Imported struct {
	Webhooks  int `json:"webhooks"`
	Snapshots int `json:"snapshots"`
	// Bare webhooks that were left out: Known, because their tenants were known before; Busy, because their tenants have webhooks
	// that wait or are parked, which the receiver may get later.
	Known       int      `json:"known"`
	Busy        int      `json:"busy,omitempty"`
	BusyTenants []string `json:"busy_tenants,omitempty"` // the first 20 of them
	Faulty      []string `json:"faulty,omitempty"`
}

// An importJob imports a file: in one transaction, however large the file is.
type importJob struct {
	s      *Inbox
	from   *bufio.Reader
	result Imported
	noted  func() // to be called when it is committed
	reply  chan error
	ImportOptions

	// The inbox at the begin of the import.
	now        int64 // the database's time
	filled     bool  // it has webhooks or snapshots
	lastBefore int64 // the last number that was in use

	// The file, as far as it was read.
	lines       int      // without empty ones
	isExport    bool     // its first line says that it is an export
	hasBare     bool     // it has bare webhooks
	ended       bool     // the last line of the export was read
	lastID      int64    // the number of the last webhook
	highest     int64    // the highest number, of the inbox and of the file
	faults      []string // the first 20
	faultyLines int
}

// Import reads the lines of an export into an empty inbox, or bare webhooks into any inbox. If it fails, nothing is imported.
func (s *Inbox) Import(ctx context.Context, from io.Reader, options ImportOptions) (Imported, error) {
	i := &importJob{s: s, from: bufio.NewReaderSize(from, 256<<10), ImportOptions: options, reply: make(chan error, 1)}
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
		i.noted()
	}
	s.checkDatabase()
	s.mu.Lock()
	s.figures.known = false
	s.mu.Unlock()
	// The pauses that came with the file must be known before anything of it can be delivered.
	for err == nil && s.ReadPauses(s.run) != nil && s.run.Err() == nil {
		time.Sleep(100 * time.Millisecond)
	}
	s.cfg.Changed("")
	if s.courier != nil {
		s.courier.Wake(nil)
	}
	return err
}

// A chunk of this many lines, or Limits.ChunkBytes, goes to the database together.
const chunkLines = 200

// maxLine is the length of the longest line. A body takes six times its size if every byte is escaped.
const maxLine = 64 << 20

// An importChunk has some lines that were read and checked: the lanes that they are about, and what they change when these lanes
// are locked.
type importChunk struct {
	lanes      map[webhookgate.Lane]bool
	changes    []func(*sqlTurn)
	newNumbers int64 // how many bare webhooks need a number
	bytes      int   // of its lines
}

func newImportChunk() *importChunk { return &importChunk{lanes: make(map[webhookgate.Lane]bool)} }

// add adds a change of a lane.
func (chunk *importChunk) add(name webhookgate.Lane, change func(*lane)) error {
	switch {
	case unnamed(name):
		return errNoLane
	case !storable(name.Platform) || !storable(name.Tenant) || !storable(name.Type):
		return errBadCode
	}
	key := LaneOf(name)
	chunk.lanes[key] = true
	chunk.changes = append(chunk.changes, func(t *sqlTurn) { change(t.lanes[key]) })
	return nil
}

// readFile reads the file, and writes it chunk by chunk.
func (i *importJob) readFile(tx engine.Tx) error {
	tx.Now(&i.now)
	tx.Queue("import_lock", nil)
	tx.Queue("inbox_filled", func(r engine.Row) error { var n int64; err := r.Scan(&n); i.filled = n > 0; return err })
	tx.Queue("last_number", func(r engine.Row) error { return r.Scan(&i.lastBefore) })
	if err := tx.Send(); err != nil {
		return err
	}
	i.now, i.highest = i.s.applyOffset(i.now), i.lastBefore
	chunk := newImportChunk()
	for n := 1; ; n++ {
		text, fault := readLine(i.from)
		switch {
		case fault == io.EOF:
			return i.finish(tx, chunk)
		case fault != nil && !errors.Is(fault, errLongLine):
			return fmt.Errorf("line %d can't be read: %w", n, fault)
		case fault == nil:
			if text = bytes.TrimSpace(text); len(text) == 0 {
				continue
			}
			var err error
			if fault, err = i.addLine(chunk, n, text); err != nil {
				return err
			}
		}
		i.lines++
		if fault != nil {
			i.faultyLines++
			if len(i.faults) < maxNamed {
				i.faults = append(i.faults, fmt.Sprintf("line %d: %v", n, fault))
			}
			continue
		}
		if chunk.bytes += len(text); len(chunk.changes) >= chunkLines || chunk.bytes >= i.s.cfg.Limits.ChunkBytes {
			if err := i.flush(tx, chunk); err != nil {
				return err
			}
			chunk = newImportChunk()
		}
	}
}

// addLine adds line n to the chunk. It returns a fault, with which the line may be left out, or an error, which ends the import.
func (i *importJob) addLine(chunk *importChunk, n int, text []byte) (fault, err error) {
	var bare struct { // a line that has a type is a webhook, whatever else it has
		Type json.RawMessage `json:"type"`
	}
	var l exportLine
	err = json.Unmarshal(text, &bare)
	if err == nil && bare.Type == nil {
		if longBeside(text) {
			return errLongLine, nil
		}
		err = json.Unmarshal(text, &l)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // its text names our Go types
		if wrong.Field == "" {
			return fmt.Errorf("is a JSON %s, not an object", wrong.Value), nil
		}
		return fmt.Errorf("has a JSON %s in %q", wrong.Value, wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:]), nil
	}
	switch {
	case err != nil:
		return err, nil
	case i.ended:
		return errors.New("comes after the end"), nil
	case bare.Type != nil && i.isExport, l.Inbox != nil && i.hasBare: // its tenant may have webhooks that wait
		return errors.New("is of a second kind: a file has either an export, or bare webhooks"), nil
	case bare.Type != nil || l == exportLine{}:
		i.hasBare = true
		return i.addBare(chunk, text), nil
	case l.Inbox != nil && l.Inbox.Version > exportVersion:
		return nil, fmt.Errorf("line %d: the export has version %d, and this usher knows version %d: use a newer usher", n, l.Inbox.Version, exportVersion)
	case l.Inbox != nil && i.filled:
		return nil, ErrNotEmpty
	case l.Inbox != nil:
		i.isExport = true
	case !i.isExport:
		return errors.New("is a line of an export, but the export's first line is missing"), nil
	case l.End != nil:
		i.ended = true
		if l.End.Lines != i.lines {
			return fmt.Errorf("says that %d lines come before it, but there are %d: the file is not complete", l.End.Lines, i.lines), nil
		}
	default:
		return i.checkLine(chunk, &l), nil
	}
	return nil, nil
}

// longBeside says whether a line of an export is long although the body and the header of its webhook, or the features of its snapshot, are
// not: decoded, a list of empty tries takes fifty times as much memory.
func longBeside(text []byte) bool {
	if len(text) <= maxBeside {
		return false
	}
	var large struct {
		Webhook  struct{ Header, Body json.RawMessage }
		Snapshot struct{ Features json.RawMessage }
	}
	err := json.Unmarshal(text, &large)
	return err != nil || len(text)-len(large.Webhook.Header)-len(large.Webhook.Body)-len(large.Snapshot.Features) > maxBeside
}

// maxBeside is more than everything else in a line takes.
const maxBeside = 1 << 20

// finish writes the last chunk, and, after an export, computes the lanes' counts from the webhooks.
func (i *importJob) finish(tx engine.Tx, chunk *importChunk) error {
	if i.isExport && !i.ended {
		i.faultyLines++
		i.faults = append(i.faults, "the last line is missing: the file is not complete")
	}
	if i.faultyLines > 0 && !i.SkipFaulty {
		return &FaultyError{i.faults, i.faultyLines}
	}
	i.result.Faulty = i.faults
	if err := i.flush(tx, chunk); err != nil {
		return err
	}
	tx.Queue("number_raise", nil, i.highest)
	tx.Queue("runs_drop", nil)
	tx.Queue("tellings_forget", nil, rand.Int64()) // all who keep a copy begin again
	i.noted = i.By.queue(tx, i.now, i.result.Webhooks)
	var due int64
	tx.Now(&due)
	if err := tx.Send(); err != nil || !i.isExport {
		return err
	}
	due = i.s.applyOffset(due)
	if i.s.engine.Shared() { // counting and committing take no longer than reading did
		due += max(0, due-i.now) + micros(importDelay)
	}
	tx.Queue("import_recount", nil, due)
	if i.faultyLines > 0 { // a webhook that was left out must not count as the original of a duplicate
		tx.Queue("import_forget_copies", nil)
		tx.Queue("seen_expire", nil, never)
	}
	return tx.Send()
}

// importDelay is how long imported webhooks wait if replicas share the database: each replica must have read the pauses that came
// with them.
const importDelay = 3 * time.Second

var (
	errLongLine = errors.New("is too long")
	errNoLane   = errors.New("does not name its tenant")
	errBadCode  = errors.New("has a code that is longer than 255 bytes, or has a zero character")
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

// checkLine checks a line of an export, and adds its changes to the chunk.
func (i *importJob) checkLine(chunk *importChunk, l *exportLine) error {
	for _, n := range l.numbers() {
		if n < 0 || n > maxImported {
			return fmt.Errorf("has the number %d, and not one from 0 to %d", n, int64(maxImported))
		}
	}
	if !l.validID() {
		return errors.New("has a webhook-id that no webhook has")
	}
	err := errNoLane
	switch {
	case l.Pause != nil:
		err = i.addPause(chunk, *l.Pause)
	case l.Lane != nil:
		err = chunk.add(webhookgate.Lane(l.Lane.laneName), l.Lane.restoreLane)
	case l.Outage != nil:
		err = nil
		g := l.Outage
		chunk.changes = append(chunk.changes, func(t *sqlTurn) {
			t.statements = append(t.statements, func(tx engine.Tx) {
				tx.Queue("outage_add", nil, g.From.UnixMicro(), g.To.UnixMicro(), max(0, g.Webhooks))
			})
		})
	case l.Webhook != nil:
		err = i.addWebhook(chunk, l.Webhook)
	case l.Snapshot != nil:
		t := l.Snapshot
		state, bad := snapshot.Decode(t.Features)
		if bad != nil || slices.ContainsFunc(state.Features, func(f snapshot.Feature) bool { return !storable(f.Code) }) {
			return errors.New("has a snapshot whose features can't be read")
		}
		err = chunk.add(webhookgate.Lane{Platform: t.Platform, Tenant: t.Tenant}, func(to *lane) {
			to.raiseTail(t.ID, t.Webhook)
			to.raiseLast(t.ID, t.Received)
			to.memory.snapshot = &snapshot.Stored{Platform: to.Platform, Tenant: to.Tenant, Seq: t.ID, Webhook: t.Webhook, Received: t.Received, Name: withoutZero(t.Name), Features: state.Encode()}
		})
	case l.Seen != nil:
		e := l.Seen
		if len(e.Hash) != 32 || len(e.Digest) != 32 {
			return errors.New("has an id without its hash, or without its webhook's")
		}
		err = chunk.add(webhookgate.Lane(e.laneName), func(to *lane) {
			to.newSeen = append(to.newSeen, &seenRow{seenID: seenID{to.Lane, [32]byte(e.Hash)}, digest: e.Digest, seq: e.ID, at: e.At.UnixMicro(), uuid: e.Webhook})
		})
	}
	if err == nil {
		i.highest = max(i.highest, slices.Max(append(l.numbers(), 0)))
	}
	return err
}

// addPause adds a pause, and pauses its tenant's lane.
func (i *importJob) addPause(chunk *importChunk, p Pause) error {
	if !storable(p.Receiver) || !storable(p.Platform) {
		return errBadCode
	}
	chunk.changes = append(chunk.changes, func(t *sqlTurn) {
		t.statements = append(t.statements, func(tx engine.Tx) {
			tx.Queue("pause_add", func(engine.Row) error { return nil }, p.row(p.Since.UnixMicro())...)
		})
	})
	if p.Tenant == "" {
		return nil
	}
	return chunk.add(webhookgate.Lane{Platform: p.Platform, Tenant: p.Tenant}, func(to *lane) { to.paused, to.dirty = true, true })
}

// restoreLane copies what dedup remembers into the lane's row.
func (l *laneLine) restoreLane(to *lane) {
	to.tail, to.tailID, to.tailDigest, to.dirty = l.Tail, l.TailID, l.TailDigest, true
	to.raiseLast(l.Last, l.LastAt)
	to.missed = l.Missed.addTo(to.missed)
}

// addWebhook checks a webhook of an export, and adds it in its state.
func (i *importJob) addWebhook(chunk *importChunk, w *webhookLine) error {
	switch {
	case w.State.number() < 0 || w.ID == 0:
		return errors.New("has a webhook without a valid id or state")
	case w.ID <= i.lastID: // so that no number occurs twice
		return errors.New("has a webhook after one with a higher id")
	case !w.Certain && w.State != Invalid && w.State != Discarded:
		return errNoLane
	case len(w.Tried) > keptTries || len(w.Faults) > content.MaxFaults+1: // the last fault may say how many more there are
		return errors.New("has more tries or faults than usher keeps")
	}
	mayBeDamaged := w.State == Parked || w.State == Superseded || w.State == Discarded // usher parks a webhook when it finds it damaged
	if sum := sha256.Sum256(w.Body); !bytes.Equal(sum[:], w.Digest) && !mayBeDamaged {
		return errors.New("has a webhook whose body does not fit its digest")
	}
	row := &w.Webhook
	row.snapshot, row.digest, row.Header, row.Body, row.hasContent, row.isNew = w.Snapshot, w.Digest, decodeHeader(w.Header), w.Body, true, true
	row.size = int64(len(w.Body)+len(w.Header)) + overhead
	row.Type, row.Why = withoutZero(row.Type), withoutZero(row.Why)
	if row.rank = row.ID; row.State == Invalid {
		row.rank = max(row.ID, w.LastID)
	}
	i.lastID = w.ID
	if !w.Certain {
		chunk.changes = append(chunk.changes, func(t *sqlTurn) { t.nowhere().hooks = append(t.nowhere().hooks, row) })
		return nil
	}
	name := webhookgate.Lane{Platform: w.Platform, Tenant: w.Tenant}
	if w.Tenant == "" {
		name.Type = w.Type
	}
	return chunk.add(name, func(to *lane) {
		if !row.Rejected() {
			to.raiseTail(row.ID, row.UUID)
		}
		to.raiseLast(row.lastCame())
		row.lane, to.hooks = to.Lane, append(to.hooks, row)
	})
}

// raiseTail makes a webhook the lane's tail, if it is newer. The lane's own line says it, too, but may be faulty and left out.
func (l *lane) raiseTail(id int64, uuid string) {
	if id > l.tail {
		l.tail, l.tailID, l.dirty = id, uuid, true
	}
}

// raiseLast does the same for what came last.
func (l *lane) raiseLast(id int64, at time.Time) {
	l.last, l.lastAt, l.noted = max(l.last, id), max(l.lastAt, at.UnixMicro()), true
}

// addBare checks a line that is a webhook itself, as the gate does, and adds it as kept, unless its tenant was known before the import.
func (i *importJob) addBare(chunk *importChunk, body []byte) error {
	w, faults := webhookgate.ReadSnapshot(i.s.cfg.Rules, nil, body, nil)
	if len(faults) > 0 {
		return errors.New(content.Summary(faults))
	}
	in := arriving(w)
	chunk.newNumbers++
	return chunk.add(w.Lane, func(to *lane) {
		switch known := to.tail > 0 && to.tail <= i.lastBefore; {
		case known && !i.Replace:
			i.result.Known++
			return
		case known && (to.parked > 0 || !to.idle()):
			i.leaveBusy(w.Lane)
			return
		}
		to.keep(in.Webhook, in.state)
		to.held = nil // nobody has got it: the same webhook from the sender is no duplicate
		for _, old := range to.invalidOnes() {
			old.setNewer(true)
		}
		i.highest = max(i.highest, to.tail)
	})
}

// leaveBusy leaves out a bare webhook of a tenant that has others waiting or parked: nothing older may be delivered after it.
func (i *importJob) leaveBusy(name webhookgate.Lane) {
	i.result.Busy++
	tenant := ShowTenant(name.Platform, name.Tenant)
	if busy := i.result.BusyTenants; len(busy) < maxNamed && !slices.Contains(busy, tenant) {
		i.result.BusyTenants = append(busy, tenant)
	}
}

// maxNamed is how many faulty lines, or tenants that were left out, an import names.
const maxNamed = 20

// flush writes a chunk.
func (i *importJob) flush(tx engine.Tx, chunk *importChunk) error {
	if len(chunk.changes) == 0 {
		return nil
	}
	t := i.s.newTurn(tx)
	names := &work{numbers: chunk.newNumbers}
	for name := range chunk.lanes {
		names.lanes = append(names.lanes, name)
	}
	if err := t.load([]*work{names}); err != nil {
		return err
	}
	t.now = i.now
	for _, l := range t.lanes {
		l.receiver = nameOf(i.s.cfg.Receivers.For(l.Platform))
	}
	for _, change := range chunk.changes {
		change(t)
	}
	if t.err != nil {
		return t.err
	}
	for _, l := range t.lanes {
		for _, h := range l.hooks { // some are in the inbox already
			i.result.Webhooks += int(boolNumber(h.isNew))
		}
		i.result.Snapshots += int(boolNumber(l.memory.snapshot != nil))
	}
	t.save()
	return tx.Send()
}
