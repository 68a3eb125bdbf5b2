package inbox

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/snapshot"
)

// An export is the whole inbox as lines of JSON. The first line says what the file is. Then each row of each table of
// engine.Exported is one line, {"TABLE":{"COLUMN":VALUE,…}}: integers are numbers, bytes are text in base64. The last
// line is the seal, a checksum of all rows: what an import reads is what usher wrote, so it need not ask of each value
// whether usher could have written it. Two exports with the same rows are the same but for their first lines, which
// have their times. A golden file guards the format.

// exportVersion is the version of the format.
const exportVersion = 1

// A firstLine says what the file is.
type firstLine struct {
	Program string    `json:"program"`
	Version int       `json:"version"`
	At      time.Time `json:"at"`
}

// A lastLine seals the file.
type lastLine struct {
	SHA256 []byte `json:"sha256"` // of the rows, each with "\n" at its end
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
	out, sum := bufio.NewWriterSize(to, 64<<10), sha256.New()
	rows, others := io.MultiWriter(out, sum), json.NewEncoder(out)
	err = s.engine.Read(ctx, func(tx engine.Tx) error {
		var now int64
		tx.Now(&now)
		if err := tx.Send(); err != nil {
			return err
		}
		first := firstLine{"usher", exportVersion, clock.Moment(s.applyOffset(now))}
		if err := others.Encode(map[string]firstLine{"inbox": first}); err != nil {
			return err
		}
		for _, table := range engine.Exported {
			tx.Queue("export_"+table.Name, func(r engine.Row) error {
				webhooks += int(boolNumber(table.Name == "webhook"))
				line, err := lineOf(table, r)
				if err == nil {
					_, err = rows.Write(line)
				}
				return err
			})
		}
		return tx.Send()
	})
	if err == nil {
		err = others.Encode(map[string]lastLine{"end": {sum.Sum(nil)}})
	}
	return webhooks, errors.Join(err, out.Flush())
}

// lineOf returns a row as a line. What cannot be read is null there: an import says that the line is faulty.
func lineOf(table engine.Layout, r engine.Row) ([]byte, error) {
	columns := slices.DeleteFunc(slices.Clone(table.Columns), func(c engine.Column) bool { return c.LeftOut })
	var into []any
	for _, c := range columns {
		switch c.Kind {
		case "int":
			into = append(into, new(int64))
		case "bytes":
			into = append(into, new([]byte))
		default:
			into = append(into, new(string))
		}
	}
	unreadable, err := engine.Unreadable(r.Scan(into...))
	if err != nil {
		return nil, fmt.Errorf("a row of %s can't be read: %w", table.Name, err)
	}
	for _, n := range unreadable {
		into[n] = nil
	}
	line := fmt.Appendf(nil, `{%q:`, table.Name)
	for n, c := range columns {
		if text, ok := into[n].(*string); ok && c.Kind == "json" {
			into[n] = features(*text)
		}
		value, err := json.Marshal(into[n])
		if err != nil {
			return nil, err
		}
		separator := ','
		if n == 0 {
			separator = '{'
		}
		line = fmt.Appendf(line, "%c%q:%s", separator, c.Name, value)
	}
	return append(line, "}}\n"...), nil
}

// features are the features of a snapshot as the database has them. PostgreSQL spells them in its own way.
type features string

// MarshalJSON spells them as SQLite has them. Null: they are unknown, or damaged, which is the same to all who ask.
func (f features) MarshalJSON() ([]byte, error) {
	known, err := snapshot.Decode([]byte(f))
	if err != nil || !known.Known {
		return []byte("null"), nil
	}
	return known.Encode(), nil
}
