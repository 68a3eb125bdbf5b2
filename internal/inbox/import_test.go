package inbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
	"usher/webhookgate"
)

// Somebody who takes long to receive an export, or many of them, keep nobody else from reading.
func TestExportsLeaveRoomForOthers(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.take("t", strings.Repeat("x", 200_000)) // more than an export buffers
		d.idle("t")
		from, to := io.Pipe()
		defer from.Close()
		ctx, end := context.WithCancel(t.Context())
		var exports sync.WaitGroup
		defer exports.Wait()
		defer end()
		for range 10 {
			exports.Go(func() { d.Export(ctx, to) })
		}
		io.ReadFull(from, make([]byte, 100)) // one has begun
		for range 3 {
			d.want("read by others", d.states("t"), "delivered")
		}
		from.Close()
	})
}

// After an export and an import another inbox has the same: states, order, numbers, and what is a duplicate.
func TestExportImport(t *testing.T) {
	t.Parallel()
	for name, another := range map[string]func(t *testing.T) func() engine.Engine{
		"file":     func(t *testing.T) func() engine.Engine { return inFile(t, newFile(t)) },
		"database": func(t *testing.T) func() engine.Engine { return inDatabase(t, pgtest.Schema(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			a := newDesk(t, another(t))
			sends := func(tenant, feature string) {
				w := a.hook(tenant, snapshotOf(tenant, feature))
				w.Header.Set("X-Odd", "\xff")
				a.want(tenant, a.sendHook(w), "+")
			}
			sends("crm/acme", "users=5")
			a.idle("")
			a.main.set("bad", status(422))
			sends("crm/bad", "sso")
			a.becomes("bad", "parked")
			check(t, a.Pause(Pause{Platform: "crm", Tenant: "held"}))
			sends("crm/held", "a")
			sends("crm/held", "b")
			reject := a.invalid("crm/odd", snapshotOf("crm/odd", "x"))
			reject.Header.Set("X-Odd", "\xff")
			a.RecordInvalid(reject)
			a.RecordInvalid(reject)

			file := exported(t, a.Inbox)
			b := newDesk(t, another(t))
			b.main.set("bad", status(422))
			imported(t, b.Inbox, file)
			if again := exported(t, b.Inbox); withoutFirst(file) != withoutFirst(again) {
				t.Error(difference(file, again))
			}
			// The receiver may have got another one since.
			again := b.send("crm/acme", snapshotOf("crm/acme", "users=5"))
			b.want("a copy of what was delivered before the move", again, "+")
			b.want("A in A, B, A across a move", b.send("crm/held", snapshotOf("crm/held", "a")), "+")
			if _, err := b.Import(t.Context(), strings.NewReader(file), nil); err == nil {
				t.Error("an export went into an inbox that is not empty")
			}
			list := must(b.List(t.Context(), Filter{State: state.Invalid}))(t)
			if len(list) != 1 || list[0].Times != 2 {
				t.Fatalf("invalid: %+v", list)
			}
			id := must(b.Accept(list[0].ID, false))(t)
			b.until("accepted and delivered", func() bool {
				w, err := b.Show(t.Context(), id)
				return err == nil && w.State == state.Delivered
			})
			if w := must(b.Show(t.Context(), list[0].ID))(t); w.State != state.Replaced {
				t.Errorf("the invalid one is %s", w.State)
			}
			c := newDesk(t, another(t))
			if _, err := c.Import(t.Context(), strings.NewReader(file[:len(file)/2]), nil); err == nil {
				t.Error("a file that was cut off is imported")
			}
			c.want("after an import that failed", c.states(""), "")
		})
	}
}

// What was invalid, and superseded because the billing service says the same as usher, is newer than all that was taken
// in. An export with it can be imported.
func TestImportOfWhatWasInvalid(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, inFile(t, newFile(t)))
		d.hears("acme", "a")
		d.idle("acme")
		d.recordInvalid("acme", snapshotOf("acme", "x"))
		d.want("compared", d.decide(d.begin(), lane.ToCompare, says("acme", "a")), "equal")
		d.want("states", d.states("acme"), "delivered superseded")
		file := exported(t, d.Inbox)
		to := newDesk(t, open)
		imported(t, to.Inbox, file)
		to.want("imported", to.states("acme"), "delivered superseded")
	})
}

// withoutFirst is an export without its first line, which says when it was made, and without outages: an import adds
// one. So it has no count.
func withoutFirst(s string) string {
	_, rest, _ := strings.Cut(s, "\n")
	return regexp.MustCompile(`(?m)^\{"(outage|end)":.*\n`).ReplaceAllString(rest, "")
}

// The waiting webhooks are counted once at the end of an import, and not once for each tenant. The server has no
// statistics about tables that were filled in the same transaction.
func TestImportCountsOnce(t *testing.T) {
	costly(t)
	t.Parallel()
	const tenants, each = 40, 25
	dsn := pgtest.Schema(t)
	a, b := newDesk(t, inFile(t, newFile(t))), newDesk(t, inDatabase(t, dsn))
	check(t, a.Pause(Pause{}))
	var senders sync.WaitGroup
	for n := range tenants {
		senders.Go(func() {
			for k := range each {
				a.take(fmt.Sprint("t", n), fmt.Sprint(k))
			}
		})
	}
	senders.Wait()
	file := exported(t, a.Inbox)
	imported(t, b.Inbox, file)
	if st := b.Stats(); st.Pending != tenants*each {
		t.Errorf("%d wait, want %d", st.Pending, tenants*each)
	}
	read := 0
	b.until("the server has said what was read", func() bool {
		read, _ = strconv.Atoi(inSchema(t, dsn, `SELECT (idx_tup_read + idx_tup_fetch)::text
			FROM pg_stat_user_indexes WHERE schemaname = '{schema}' AND indexrelname = 'webhook_lane'`))
		return read > 0
	})
	if read > 10*tenants*each {
		t.Errorf("%d rows were read to count %d", read, tenants*each)
	}
}

// An import waits until transactions of other replicas have ended, and theirs wait for it before they have locked
// anything. So they do not deadlock.
func TestImportAmongReplicas(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	d := newDesk(t, inDatabase(t, dsn))
	check(t, d.Pause(Pause{Platform: "crm", Tenant: "t"})) // the lane is there
	tx := another(t, dsn, "SELECT 1 FROM lane FOR UPDATE") // of another replica: it locks a lane, and then writes it
	ended := make(chan error, 1)
	go func() {
		file := testkit.Export(testkit.ExportedWebhook{Tenant: "t"})
		ended <- second(d.Import(t.Context(), strings.NewReader(file), nil))
	}()
	d.until("the import waits", tx.hinders)
	must(tx.Exec(t.Context(), "UPDATE lane SET tail = tail"))(t)
	check(t, tx.Commit(t.Context()))
	check(t, <-ended)
}

// An import does not become slower as the tables grow, although the server makes its plans while they are small.
func TestImportReadsOnlyItsOwnLanes(t *testing.T) {
	costly(t)
	t.Parallel()
	const tenants = 3000
	dsn := pgtest.Schema(t)
	d := newDesk(t, inDatabase(t, dsn))
	inSchema(t, dsn, "VACUUM ANALYZE {schema}.lane")
	var all []testkit.ExportedWebhook
	for n := range tenants {
		all = append(all, testkit.ExportedWebhook{Tenant: fmt.Sprint("t", n), State: 3, Features: "[]"})
	}
	imported(t, d.Inbox, testkit.Export(all...))
	if rows := d.indexReads(dsn, "lane_pkey", tenants); rows > 5*tenants {
		t.Errorf("%d rows were read to import %d tenants", rows, tenants)
	}
}

// An import holds some megabytes of a file at a time, however large its webhooks are.
func TestImportsLargeWebhooks(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		most := 0 // bytes of bodies that are written at once
		d := newDesk(t, open, little, between(intercepted{asks: func(s *statement) error {
			if s.name == "import_content" {
				most = max(most, len(bytes.Join(s.args[2].([][]byte), nil)))
			}
			return nil
		}}))
		var all []testkit.ExportedWebhook
		for n := range 17 {
			all = append(all, testkit.ExportedWebhook{Tenant: fmt.Sprint("t", n), Body: strings.Repeat("x", 1<<16)})
		}
		done, err := d.Import(t.Context(), strings.NewReader(testkit.Export(all...)), nil)
		check(t, err)
		if done.Webhooks != 17 || most > 16<<16 {
			t.Errorf("%d webhooks, and %d bytes at once", done.Webhooks, most)
		}
	})
}

// The fault of a line is said in words that a user understands.
func TestFaultsOfLines(t *testing.T) {
	t.Parallel()
	d := newDesk(t, inFile(t, newFile(t)))
	for _, end := range some(1, "\n", "") {
		_, err := d.Import(t.Context(), strings.NewReader(strings.Repeat("x", 65<<20)+end), nil)
		wantError(t, fmt.Sprintf("a long line that ends with %q", end), err, "line 1: is too long")
	}
	large := newDesk(t, inFile(t, newFile(t)), func(c *setup) { c.MaxBody = 50 << 20 })
	_, err := large.Import(t.Context(), strings.NewReader(strings.Repeat("x", 65<<20)), nil)
	wantError(t, "as long, where webhooks are", err, "line 1: is not a whole JSON object")
	const first = `{"inbox":{"program":"usher","version":1,"at":"2026-01-01T12:00:00Z"}}` + "\n"
	for line, want := range map[string]string{
		"[]":                    "line 1: is not a whole JSON object",
		"{}":                    "line 1: is no part of an export",
		`{"lane":`:              "line 1: is not a whole JSON object",
		`{"lane":{}}`:           "line 1: is a line of an export, but the export's first line is missing",
		snapshotOf("acme", "a"): "line 1: is no part of an export", // a bare webhook

		first + `{"webhook":{"seq":"7"}}`:  `line 2: has something in "seq" that is not of its type (int)`,
		first + `{"webhook":{"seq":7.5}}`:  `line 2: has something in "seq" that is not of its type (int)`,
		first + `{"webhook":{"seq":null}}`: `line 2: has something in "seq" that is not of its type (int)`,
		first + `{"webhook":{"seq":7}}`:    `line 2: has no "uuid"`,
		first + `{"webhook":7}`:            `line 2: has no object`,
		first + `{"seen_id":{"tenant":7}}`: `line 2: has something in "tenant" that is not of its type (text)`,
		first + `{"content":{"seq":7}}`:    `line 2: has no "header"`,
		first + `{"pause":{"receiver":"","platform":"","tenant":"","since":1,"until":1,"x":1}}`: `line 2: has a column "x"`,
		first + `{"told":{}}`:           "line 2: is no part of an export",
		first + "\n" + `{}`:             "line 3: is no part of an export",
		first + snapshotOf("acme", "a"): "line 2: is no part of an export",
		first + first:                   "line 2: is no part of an export",

		testkit.Seal(first) + `{"lane":{}}`:      "line 3: comes after the end",
		first + `{"end":{"sha256":""}}`:          "line 2: the checksum does not fit",
		first + `{"end":{}}`:                     "line 2: the checksum does not fit",
		first + `{"end":7}`:                      "line 2: the checksum does not fit",
		first + `{"end":{"sha256":""},"lane":1}`: "line 2: is no part of an export",
		first:                                    "the last line is missing",

		`{"inbox":{"program":"other","version":1}}`: "line 1: is no part of an export",
		`{"inbox":{"program":"usher","version":2}}`: "use a newer usher",
	} {
		_, err := d.Import(t.Context(), strings.NewReader(line), nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "inbox.") {
			t.Errorf("%.30q: %v, want %s", line, err, want)
		}
	}
}

// If no number is left after all, that is visible: nothing can be taken in, but what waits is delivered.
func TestNoNumberIsLeft(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		e := newTally()
		d := newDesk(t, open, between(e.counts()))
		check(t, second(do(t.Context(), d.Inbox, work{}, func(t *sqlTurn) nothing {
			t.tx.Queue("number_raise", nil, int64(maxNumber-3))
			return nothing{}
		})))
		d.main.set("", status(500))
		for n := range 3 {
			d.take("acme", snapshotOf("acme", fmt.Sprint(n)))
		}
		if err := d.Err(); err != nil {
			t.Errorf("while there is a number: %v", err)
		}
		if got := d.send("acme", snapshotOf("acme", "last")); !strings.Contains(got, "no number is left") {
			t.Errorf("without a number: %s", got)
		}
		if err := d.Err(); !errors.Is(err, errNoNumber) {
			t.Errorf("usher says: %v", err)
		}
		d.main.set("", nil)
		d.idle("")
		d.want("what waited", d.states(""), "delivered delivered delivered")
		e.reset()
		d.shut() // what was missed cannot be stored
		if n, _ := e.sum(); n > 50 {
			t.Errorf("%d statements at the end", n)
		}
	})
}

// A file that is not as usher exported it is not imported, be it one character: else a tenant might get what it never
// had.
func TestChangedFile(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		a := newDesk(t, inFile(t, newFile(t)))
		a.take("acme", snapshotOf("acme", "a"))
		a.take("zoo", snapshotOf("zoo", "a"))
		a.idle("")
		file := exported(t, a.Inbox)
		d := newDesk(t, open)
		set := func(table, column, value string) string { // the first row of the table has this value
			const former = `("(?:[^"\\]|\\.)*"|[^,}]*)`
			row := regexp.MustCompile(`(?m)^(\{"` + table + `":.*?"` + column + `":)` + former)
			return row.ReplaceAllString(file, "${1}"+strings.ReplaceAll(value, "$", "$$$$"))
		}
		lines := strings.SplitAfter(file, "\n")
		for name, changed := range map[string]string{
			"another feature":        strings.Replace(file, `{"code":"a"`, `{"code":"b"`, 1),
			"another body":           set("content", "body", `"AAAA"`),
			"another state":          set("webhook", "state", "0"),
			"another tenant":         set("lane", "tenant", `"other"`),
			"no base64":              set("content", "body", `"-"`),
			"a text with a zero":     set("snapshot", "name", `"\u0000"`),
			"features that are none": set("snapshot", "features", `7`),
			"null":                   set("webhook", "why", "null"),
			"a line less":            strings.Join(slices.Delete(slices.Clone(lines), 1, 2), ""),
			"a line twice":           strings.Join(slices.Insert(slices.Clone(lines), 1, lines[1]), ""),
			"lines in another order": strings.Join(slices.Concat(lines[:1], lines[2:3], lines[1:2], lines[3:]), ""),
			"another checksum":       set("end", "sha256", `"AAAA"`),
		} {
			if changed == file {
				t.Fatalf("%s: the export has no such row", name)
			}
			_, err := d.Import(t.Context(), strings.NewReader(changed), nil)
			var faulty *FaultyError
			if !errors.As(err, &faulty) || faulty.Count > 3 ||
				!strings.Contains(faulty.Lines[faulty.Count-1], "the checksum does not fit") {
				t.Errorf("%s: %.300v", name, err)
			}
		}
		windows := strings.ReplaceAll(file, "\n", "\r\n")
		imported(t, d.Inbox, windows)
	})
}

// Since a backup was made the receiver may have got other webhooks. After a restore of the backup the next webhook of
// each tenant is delivered, even if it is a copy of the last one in the backup. Only a signed id that was seen is
// still a duplicate.
func TestRestoreDropsNoChange(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		a := newDesk(t, inFile(t, newFile(t)))
		signed := func(d *desk) *webhookgate.Webhook {
			w := d.hook("signed", "A")
			w.SignedID = "#1"
			return w
		}
		a.take("acme", "A")
		a.want("signed", a.sendHook(signed(a)), "+")
		a.idle("")
		a.want("a copy before", a.send("acme", "A"), "=")
		backup := exported(t, a.Inbox)
		b := newDesk(t, open)
		imported(t, b.Inbox, backup)
		b.take("acme", "A") // the receiver had got B meanwhile
		b.want("a signed id", b.sendHook(signed(b)), "=")
		b.idle("")
		b.want("a copy then", b.send("acme", "A"), "=")
		b.want("accepted", strings.Join(b.main.got("acme"), " "), "A")
	})
}

// A table of 001.sql is part of an export, with all of its columns, or is left out for a reason. What is left out can
// be given a default.
func TestEveryColumnIsExported(t *testing.T) {
	t.Parallel()
	leftOut := regexp.MustCompile(`(?m)^CREATE TABLE \{schema\}\.(schema_version|gate_up|change|told|replica|speaker) `)
	found, left := 0, len(leftOut.FindAllString(engine.Tables, -1))
	for _, l := range engine.Exported {
		found++
		script := regexp.MustCompile(`--.*`).ReplaceAllString(engine.Tables, "")
		_, script, _ = strings.Cut(script, "CREATE TABLE {schema}."+l.Name+" (")
		script, _, _ = strings.Cut(script, ";")
		n := len(regexp.MustCompile(` \{(int|text|bytes|json)\}`).FindAllString(script, -1))
		if n != len(l.Columns) || len(l.Key) == 0 {
			t.Errorf("%s has %d columns, and %d are known; its key is %q", l.Name, n, len(l.Columns), l.Key)
		}
		for _, c := range l.Columns {
			if c.LeftOut && c.Default == nil {
				t.Errorf("%s.%s is left out, and has no default", l.Name, c.Name)
			}
		}
	}
	if all := strings.Count(engine.Tables, "\nCREATE TABLE "); found+left != all || left != 6 {
		t.Errorf("there are %d tables, %d of them in an export, and %d left out", all, found, left)
	}
}

// What is left out of an export is a table or a column that there is.
func TestOnlyWhatThereIsIsLeftOut(t *testing.T) {
	t.Parallel()
	for name, reason := range engine.LeftOut {
		table, column, _ := strings.Cut(name, ".")
		_, script, ok := strings.Cut(engine.Tables, "CREATE TABLE {schema}."+table+" (")
		script, _, _ = strings.Cut(script, ";\n")
		if !ok || reason == "" || column != "" && !regexp.MustCompile(`\b`+column+` +\{`).MatchString(script) {
			t.Errorf("%s: %q", name, reason)
		}
	}
}

// The time since the export is an outage. If the clock was ahead there, nobody knows how long that was.
func TestImportIsAnOutage(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		ahead := newDesk(t, inFile(t, newFile(t)))
		ahead.ahead.Store(int64(time.Hour))
		ahead.restart()
		c := newDesk(t, inFile(t, newFile(t)))
		imported(t, c.Inbox, exported(t, ahead.Inbox))
		c.until("an outage without a length", func() bool { return len(c.Stats().Missed.Outages) == 1 })

		a := newDesk(t, inFile(t, newFile(t)))
		a.hears("acme", "a")
		a.idle("acme")
		before := a.Now()
		file := exported(t, a.Inbox)
		after := a.Now()
		time.Sleep(2 * time.Millisecond)
		b := newDesk(t, open)
		imported(t, b.Inbox, file)
		b.until("an outage", func() bool {
			all := b.Stats().Missed.Outages
			if len(all) != 1 {
				return false
			}
			from := all[0].From
			return from.After(before.Add(-time.Second)) && from.Before(after.Add(time.Second)) && all[0].To.After(from)
		})
	})
}

// While webhooks come and are delivered, an export has all tables as they were at one moment: no webhook without its
// content, and none that is newer than what its tenant's row says.
func TestExportIsOneMoment(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			var senders sync.WaitGroup
			for n := range 4 {
				senders.Go(func() {
					for k := range 30 {
						d.send(fmt.Sprint("t", n), snapshotOf(fmt.Sprint("t", n), fmt.Sprint(k)))
					}
				})
			}
			senders.Wait()
		}()
		for range 5 {
			file := exported(t, d.Inbox)
			last, newest := make(map[string]int64), make(map[string]int64)
			var webhooks, contents []int64
			for text := range strings.Lines(file) {
				var line map[string]struct {
					Seq, Last int64
					Tenant    string
				}
				check(t, json.Unmarshal([]byte(text), &line))
				for table, row := range line {
					switch table {
					case "lane":
						last[row.Tenant] = row.Last
					case "webhook":
						webhooks = append(webhooks, row.Seq)
						newest[row.Tenant] = max(newest[row.Tenant], row.Seq)
					case "content":
						contents = append(contents, row.Seq)
					}
				}
			}
			if !maps.Equal(last, newest) || !slices.Equal(webhooks, contents) {
				t.Errorf("tenants say %v, and have %v; webhooks %v, contents %v", last, newest, webhooks, contents)
			}
			to := opened(t, inFile(t, newFile(t))(), timeless)
			imported(t, to, file)
			if again := exported(t, to); withoutFirst(file) != withoutFirst(again) {
				t.Error(difference(file, again))
			}
		}
		<-ended
	})
}
