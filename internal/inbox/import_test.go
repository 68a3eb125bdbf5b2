package inbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/receiver"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
	"usher/webhookgate"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// openAt opens an inbox whose receiver answers with status, and runs it until the test ends.
func openAt(t *testing.T, address string, status *atomic.Int32, more ...func(*Config)) *Inbox {
	t.Helper()
	rc := &receiver.Receiver{Name: "main", Timeout: time.Second, Concurrency: 4, URL: mustURL("http://receiver.invalid/"), Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: int(status.Load()), Header: http.Header{}, Body: http.NoBody}, nil
	})}
	at, err := ParseAddress(address)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Address: at, Receivers: receiver.NewSet(rc), MaxTries: 3, MaxAge: time.Hour, DedupWindow: time.Minute, MaxBytes: 1 << 30, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range more {
		f(&cfg)
	}
	i, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); i.Run(ctx, context.Background()) }()
	t.Cleanup(func() { cancel(); <-ended; i.Close() })
	return i
}

func snapshotOf(rc *receiver.Set, tenant, features string) *webhookgate.Webhook {
	body := []byte(`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"` + tenant + `","platform":{"code":"crm"}},"change":{"features":[` + features + `]}}}`)
	return &webhookgate.Webhook{
		ID: webhookgate.NewID(), Type: content.TenantProvisioningChange, Lane: webhookgate.Lane{Platform: "crm", Tenant: tenant}, Snapshot: true,
		Digest: sha256.Sum256(body), Body: body, Header: http.Header{"Content-Type": {"application/json"}, "X-Odd": {"\xff\x00"[:1]}}, Receiver: rc.For("crm"),
	}
}

func engines(t *testing.T, f func(t *testing.T, address func() string)) {
	t.Run("file", func(t *testing.T) {
		n := 0
		f(t, func() string { n++; return fmt.Sprintf("file:%s", filepath.Join(t.TempDir(), fmt.Sprint(n, ".db"))) })
	})
	t.Run("postgres", func(t *testing.T) { f(t, func() string { return pgtest.Schema(t) }) })
}

// After an export and an import another inbox has the same: states, order, numbers, and what is a duplicate.
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

func TestExportImport(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, address func() string) {
		var status atomic.Int32
		status.Store(200)
		a := openAt(t, address(), &status)
		set := a.courier.receivers
		keep := func(i *Inbox, tenant, features string) string {
			t.Helper()
			dup, err := i.Store(snapshotOf(set, tenant, features))
			if err != nil {
				t.Fatal(err)
			}
			return dup
		}
		keep(a, "acme", `{"code":"users","quantity":5}`)
		testkit.Eventually(t, "delivered", func() bool { l, _ := a.List(context.Background(), Filter{State: Delivered}); return len(l) == 1 })
		status.Store(422)
		keep(a, "bad", `{"code":"sso"}`)
		testkit.Eventually(t, "parked", func() bool { l, _ := a.List(context.Background(), Filter{State: Parked}); return len(l) == 1 })
		if err := func() error { _, err := a.Pause(Pause{Platform: "crm", Tenant: "held"}, 0, nil); return err }(); err != nil {
			t.Fatal(err)
		}
		keep(a, "held", `{"code":"a"}`)
		keep(a, "held", `{"code":"b"}`)
		reject := &webhookgate.Invalid{Webhook: *snapshotOf(set, "odd", `{"code":"x","quantity":"5"}`), Status: 422, Faults: []content.Fault{{Path: "/payload", Message: "is odd"}}}
		a.RecordInvalid(reject)
		a.RecordInvalid(reject)

		var file bytes.Buffer
		if _, err := a.Export(t.Context(), &file); err != nil {
			t.Fatal(err)
		}
		b := openAt(t, address(), &status)
		if _, err := b.Import(t.Context(), bytes.NewReader(file.Bytes()), ImportOptions{}); err != nil {
			t.Fatal(err)
		}
		var again bytes.Buffer
		if _, err := b.Export(t.Context(), &again); err != nil {
			t.Fatal(err)
		}
		if x, y := withoutFirst(file.String()), withoutFirst(again.String()); x != y {
			t.Errorf("before:\n%s\nafter:\n%s", x, y)
		}
		if dup := keep(b, "acme", `{"code":"users","quantity":5}`); dup != "" {
			t.Error("a copy of what was delivered before the move was dropped: the receiver may have got another one since")
		}
		if dup := keep(b, "held", `{"code":"a"}`); dup != "" {
			t.Error("A in A, B, A across a move was dropped")
		}
		if _, err := b.Import(t.Context(), bytes.NewReader(file.Bytes()), ImportOptions{}); err == nil {
			t.Error("an export went into an inbox that is not empty")
		}
		list, err := b.List(context.Background(), Filter{State: Invalid})
		if err != nil || len(list) != 1 || list[0].Times != 2 {
			t.Fatalf("invalid: %+v, %v", list, err)
		}
		status.Store(200)
		id, err := b.Accept(list[0].ID, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "accepted and delivered", func() bool { w, err := b.Show(context.Background(), id); return err == nil && w.State == Delivered })
		if w, _ := b.Show(context.Background(), list[0].ID); w.State != Replaced {
			t.Errorf("the invalid one is %s", w.State)
		}
		cut := file.String()[:file.Len()/2]
		c := openAt(t, address(), &status)
		if _, err := c.Import(t.Context(), strings.NewReader(cut), ImportOptions{}); err == nil {
			t.Error("a file that was cut off is imported")
		}
		if l, err := c.List(context.Background(), Filter{}); err != nil || len(l) != 0 {
			t.Errorf("after an import that failed: %v, %v", l, err)
		}
		bare := string(snapshotOf(set, "day-one", `{"code":"one"}`).Body) + "\n" + string(snapshotOf(set, "day-one", `{"code":"two"}`).Body) + "\n"
		if n, err := c.Import(t.Context(), strings.NewReader(bare), ImportOptions{}); err != nil || n.Webhooks != 2 {
			t.Errorf("bare: %+v, %v", n, err)
		}
		if s, err := c.Snapshots(t.Context(), []string{"day-one"}); err != nil || len(s) != 1 || !strings.Contains(string(s[0].Features), "two") {
			t.Errorf("bare: %+v, %v", s, err)
		}
		if n, err := c.Import(t.Context(), strings.NewReader(bare), ImportOptions{}); err != nil || n.Known != 2 {
			t.Errorf("bare, again: %+v, %v", n, err)
		}
		twice := `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"a","code":"b"}}}`
		if _, err := c.Import(t.Context(), strings.NewReader(twice), ImportOptions{}); err == nil || err.Error() != "1 faulty line, and nothing was imported: line 1: /payload/tenant/code is in the object twice" {
			t.Errorf("bare, with a name twice: %v", err)
		}
	})
}

func withoutFirst(s string) string { _, rest, _ := strings.Cut(s, "\n"); return rest }

func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}

// An import leaves out a webhook whose line is faulty. When its sender sends it again it is no duplicate.
func TestSkippedIsNoCopy(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		paused := Pause{}
		a := newDesk(t, inFile(t, newFile(t)))
		check(t, a.Pause(paused))
		signed := func(d *desk) *webhookgate.Webhook {
			w := d.hook("signed", "faulty")
			w.SignedID = "#1"
			return w
		}
		a.take("acme", "A", "faulty")
		a.want("signed", a.sendHook(signed(a)), "+")
		var file bytes.Buffer
		must2(a.Export(t.Context(), &file))(t)
		b := newDesk(t, open)
		check(t, b.Pause(paused))
		done, err := b.Import(t.Context(), strings.NewReader(strings.ReplaceAll(file.String(), `"body":"faulty"`, `"body":"faulti"`)), ImportOptions{SkipFaulty: true})
		if err != nil || done.Webhooks != 1 || len(done.Faulty) != 2 {
			t.Fatalf("%+v, %v", done, err)
		}
		b.take("acme", "faulty")
		b.want("signed", b.sendHook(signed(b)), "+")
		must2(b.Resume(paused))(t)
		b.idle("")
		b.want("accepted", strings.Join(b.main.got("acme"), " "), "A faulty")
		b.want("signed", strings.Join(b.main.got("signed"), " "), "faulty")
	})
}

// If a lane's own line is faulty, its tail comes from its webhooks and its snapshot: no older webhook can take their place.
func TestSkippedLaneIsKnown(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		a, b := newDesk(t, inFile(t, newFile(t))), newDesk(t, open)
		a.take("acme", odd("acme", "old"), odd("acme", "new"))
		a.idle("acme")
		var file bytes.Buffer
		must2(a.Export(t.Context(), &file))(t)
		done, err := b.Import(t.Context(), strings.NewReader(strings.ReplaceAll(file.String(), `{"lane":{`, `{"lane":{{`)), ImportOptions{SkipFaulty: true})
		if err != nil || done.Webhooks != 2 || len(done.Faulty) != 1 {
			t.Fatalf("%+v, %v", done, err)
		}
		b.want("an older one sent again", errorWord(b.Redeliver(b.nth("acme", 1), false)), "overwrite")
		done, err = b.Import(t.Context(), strings.NewReader(odd("acme", "older")), ImportOptions{})
		if err != nil || done.Known != 1 {
			t.Errorf("%+v, %v", done, err)
		}
		all := must2(b.Snapshots(t.Context(), []string{"acme"}))(t)
		if len(all) != 1 || !strings.Contains(string(all[0].Features), `"new"`) {
			t.Errorf("entitlements: %+v", all)
		}
	})
}

// The waiting webhooks are counted once at the end of an import, and not once for each tenant. The server has no statistics
// about tables that were filled in the same transaction.
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
	var file bytes.Buffer
	must2(a.Export(t.Context(), &file))(t)
	must2(b.Import(t.Context(), &file, ImportOptions{}))(t)
	if st := b.Stats(); st.Pending != tenants*each {
		t.Errorf("%d wait, want %d", st.Pending, tenants*each)
	}
	read := 0
	b.until("the server has said what was read", func() bool {
		read, _ = strconv.Atoi(inSchema(t, dsn, "SELECT (idx_tup_read + idx_tup_fetch)::text FROM pg_stat_user_indexes WHERE schemaname = '{schema}' AND indexrelname = 'webhook_lane'"))
		return read > 0
	})
	if read > 10*tenants*each {
		t.Errorf("%d rows were read to count %d", read, tenants*each)
	}
}

// What is being delivered may be superseded, and nothing else wait: the receiver may still get it after the import.
func TestImportLeavesWhatIsBeingDelivered(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open, func(c *Config) { c.Latest = true })
		release := d.main.hang("t")
		defer release()
		d.take("t", odd("t", "A"))
		d.until("under way", func() bool { return len(d.main.tried("t")) == 1 })
		d.take("t", odd("t", "B"))
		check(t, d.Discard(d.nth("t", 2)))
		got := must2(d.Import(t.Context(), strings.NewReader(odd("t", "C")), ImportOptions{Replace: true}))(t)
		if got.Webhooks != 0 || got.Busy != 1 {
			t.Errorf("imported %+v", got)
		}
	})
}

// With LATEST an import also reads what waits in its lanes. It does not count that as imported.
func TestImportCountsWhatItBrings(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open, func(c *Config) { c.Latest = true })
		check(t, d.Pause(Pause{}))
		d.take("t", odd("t", "A"))
		got := must2(d.Import(t.Context(), strings.NewReader(odd("t", "B")+"\n"+odd("new", "B")), ImportOptions{}))(t)
		if got.Webhooks != 1 || got.Snapshots != 1 || got.Known != 1 {
			t.Errorf("imported %+v", got)
		}
	})
}

// An import waits until transactions of other replicas have ended, and theirs wait for it before they have locked anything.
// So they do not deadlock.
func TestImportAmongReplicas(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	d := newDesk(t, inDatabase(t, dsn))
	check(t, d.Pause(Pause{Platform: "crm", Tenant: "t"})) // the lane is there
	conn, schema := connectTo(t, dsn)
	defer conn.Close(context.Background())
	tx := must2(conn.Begin(t.Context()))(t) // of another replica: it locks a lane, and then writes it
	must2(tx.Exec(t.Context(), "SELECT 1 FROM "+schema+".lane FOR UPDATE"))(t)
	imported := make(chan error, 1)
	go func() {
		_, err := d.Import(t.Context(), bytes.NewReader(snapshotOf(d.cfg.Receivers, "t", "").Body), ImportOptions{})
		imported <- err
	}()
	d.until("the import waits", func() bool {
		return inSchema(t, dsn, fmt.Sprintf("SELECT count(*)::text FROM pg_stat_activity WHERE %d = ANY (pg_blocking_pids(pid))", conn.PgConn().PID())) != "0"
	})
	must2(tx.Exec(t.Context(), "UPDATE "+schema+".lane SET tail = tail"))(t)
	check(t, tx.Commit(t.Context()))
	check(t, <-imported)
}

// An import does not become slower as the tables grow, although the server makes its plans while they are small.
func TestImportReadsOnlyItsOwnLanes(t *testing.T) {
	costly(t)
	t.Parallel()
	const tenants = 3000
	dsn := pgtest.Schema(t)
	d := newDesk(t, inDatabase(t, dsn))
	d.take("crm/known", "one")
	d.idle("")
	inSchema(t, dsn, "VACUUM ANALYZE {schema}.lane")
	var file bytes.Buffer
	for n := range tenants {
		file.Write(append(snapshotOf(d.cfg.Receivers, fmt.Sprint("t", n), "").Body, '\n'))
	}
	must2(d.Import(t.Context(), &file, ImportOptions{}))(t)
	d.shut() // the server counts what a connection has read at its end
	rows := -1
	d.until("counted", func() bool {
		rows = must2(strconv.Atoi(inSchema(t, dsn, fmt.Sprintf("SELECT (CASE WHEN n_tup_ins >= %d THEN idx_tup_read ELSE -1 END)::text FROM pg_stat_user_tables t JOIN pg_stat_user_indexes USING (relid) WHERE t.schemaname = '{schema}' AND indexrelname = 'lane_pkey'", tenants))))(t)
		return rows >= 0
	})
	if rows > 5*tenants {
		t.Errorf("%d rows were read to import %d tenants", rows, tenants)
	}
}

// An import holds some megabytes of a file at a time, however large its webhooks are.
func TestImportsLargeWebhooks(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		e := &chunks{Engine: open()}
		d := newDesk(t, func() engine.Engine { return e }, little)
		var file strings.Builder
		for n := range 17 {
			fmt.Fprintf(&file, `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"t%d","name":%q},"change":{}}}`+"\n", n, strings.Repeat("x", 1<<16))
		}
		done, err := d.Import(t.Context(), strings.NewReader(file.String()), ImportOptions{})
		check(t, err)
		if done.Webhooks != 17 || e.most > 16<<16 {
			t.Errorf("%d webhooks, and %d bytes at once", done.Webhooks, e.most)
		}
	})
}

// chunks is an engine that notes how many bytes of bodies an import writes at once.
type chunks struct {
	engine.Engine
	most int
}

func (e *chunks) Import(fn func(engine.Tx) error) error {
	return e.Engine.Import(func(tx engine.Tx) error { return fn(chunksTx{tx, e}) })
}

type chunksTx struct {
	engine.Tx
	*chunks
}

func (t chunksTx) Queue(name string, each func(engine.Row) error, args ...any) {
	if name == "content_add" {
		t.most = max(t.most, len(bytes.Join(args[2].([][]byte), nil)))
	}
	t.Tx.Queue(name, each, args...)
}

// The fault of a line is said in words that a user understands.
func TestFaultsOfLines(t *testing.T) {
	t.Parallel()
	d := newDesk(t, inFile(t, newFile(t)))
	for _, end := range some(1, "\n", "") {
		if _, err := d.Import(t.Context(), strings.NewReader(strings.Repeat("x", 65<<20)+end), ImportOptions{}); err == nil || !strings.Contains(err.Error(), "line 1: is too long") {
			t.Errorf("a long line that ends with %q: %v", end, err)
		}
	}
	for line, want := range map[string]string{
		"[]":                                 "line 1: is a JSON array, not an object",
		`{"webhook":{"id":"7"}}`:             `line 1: has a JSON string in "id"`,
		`{"type":"TenantProvisioningChange"`: "line 1: unexpected end of JSON input",
		`{"inbox":{"version":1}}` + "\n\n" + `{}`:           "line 3: ",
		`{"inbox":{"version":1}}` + "\n" + odd("acme", "a"): "line 2: is of a second kind",
		odd("acme", "a") + "\n" + `{"inbox":{"version":1}}`: "line 2: is of a second kind",
	} {
		_, err := d.Import(t.Context(), strings.NewReader(line), ImportOptions{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "inbox.") {
			t.Errorf("%.30q: %v, want %s", line, err, want)
		}
	}
}

// An import never brings a number so high that new webhooks could not get one.
func TestNumbersAfterAnImport(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		a := newDesk(t, inFile(t, newFile(t)))
		a.take("acme", odd("acme", "a"))
		a.idle("")
		file := exported(t, a.Inbox)
		b := newDesk(t, open)
		for _, member := range []string{"id", "tail", "last"} {
			for _, n := range []int64{maxImported + 1, maxNumber, maxNumber + 1, 2305843009213693952, -1} {
				changed := regexp.MustCompile(`"`+member+`":1,`).ReplaceAllString(file, fmt.Sprintf(`"%s":%d,`, member, n))
				_, err := b.Import(t.Context(), strings.NewReader(changed), ImportOptions{})
				if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("has the number %d, and not one from 0 to %d", n, int64(maxImported))) {
					t.Errorf("%s %d: %v", member, n, err)
				}
			}
		}
		highest := regexp.MustCompile(`"(id|tail|last)":1,`).ReplaceAllString(file, fmt.Sprintf(`"$1":%d,`, int64(maxImported)))
		must2(b.Import(t.Context(), strings.NewReader(highest), ImportOptions{}))(t)
		b.take("acme", odd("acme", "b"))
		b.idle("")
		b.want("after the highest number", b.states(""), "delivered delivered")
	})
}

// If no number is left after all, that is visible: nothing can be taken in, but what waits is delivered.
func TestNoNumberIsLeft(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		var e *tally
		d := newDesk(t, func() engine.Engine { e = newTally(open()); return e })
		set := make(chan error, 1)
		d.submit(&work{failed: func(err error) { set <- err }, decide: func(t *sqlTurn) func() {
			t.statements = append(t.statements, func(tx engine.Tx) { tx.Queue("number_raise", nil, int64(maxNumber-3)) })
			return func() { set <- nil }
		}})
		if err := <-set; err != nil {
			t.Fatal(err)
		}
		d.main.set("", status(500))
		for n := range 3 {
			d.take("acme", odd("acme", fmt.Sprint(n)))
		}
		if err := d.Err(); err != nil {
			t.Errorf("while there is a number: %v", err)
		}
		if got := d.send("acme", odd("acme", "last")); !strings.Contains(got, "no number is left") {
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

// A line that no export has, and that would harm the database or those who look at the inbox, is a fault.
func TestHostileLines(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		a := newDesk(t, inFile(t, newFile(t)))
		a.take("acme", odd("acme", "a"))
		a.idle("")
		file := exported(t, a.Inbox)
		d := newDesk(t, open)
		for name, change := range map[string][2]string{
			"an id with a line end":  {`"webhook":{"id":1,"webhook":"`, `"webhook":{"id":1,"webhook":"\r\nX: y`},
			"an id with a zero":      {`"webhook":{"id":1,"webhook":"`, `"webhook":{"id":1,"webhook":"\u0000`},
			"a tail's id":            {`"tail_id":"`, `"tail_id":"\u0000`},
			"a snapshot's id":        {`"snapshot":{`, `"snapshot":{"Webhook":"\u0000",`},
			"a pause of a receiver":  {"\n", "\n" + `{"pause":{"receiver":"a\u0000"}}` + "\n"},
			"a pause of a platform":  {"\n", "\n" + `{"pause":{"platform":"a\u0000"}}` + "\n"},
			"many tries":             {`"tried":[`, `"tried":[` + strings.Repeat(`{},`, 20)},
			"many faults":            {`"webhook":{`, `"webhook":{"faults":[` + strings.Repeat(`{},`, 100) + `{}],`},
			"a long line":            {`"webhook":{`, `"webhook":{"tried":[` + strings.Repeat(`{},`, 1<<19) + `{}],`},
			"a long line of another": {`"webhook":{`, `"webhook":{"odd":"` + strings.Repeat(`x`, 3<<19) + `",`},
		} {
			line := strings.Replace(file, change[0], change[1], 1)
			if name == "a snapshot's id" { // the later of two members counts
				line = regexp.MustCompile(`("snapshot":\{.*)"webhook":"`).ReplaceAllString(file, `$1"webhook":"\u0000`)
			}
			if line == file {
				t.Fatalf("%s: the export has no %s", name, change[0])
			}
			var faulty *FaultyError
			if _, err := d.Import(t.Context(), strings.NewReader(line), ImportOptions{}); !errors.As(err, &faulty) || faulty.Count > 2 {
				t.Errorf("%s: %.200v", name, err)
			}
		}
		must2(d.Import(t.Context(), strings.NewReader(file), ImportOptions{}))(t)
	})
}

// A line that has a type is a webhook, whatever else it has: members of a webhook may have the names of an export's.
func TestBareWebhookWithOddMembers(t *testing.T) {
	d := newDesk(t, inFile(t, newFile(t)))
	var file strings.Builder
	odds := []string{
		`"webhook":"w-1"`, `"webhook":{"id":7,"state":"waiting"}`, `"end":{"lines":0}`, `"end":"2026-01-01"`, `"inbox":{"version":1}`, `"inbox":{"version":99}`,
		`"lane":3`, `"snapshot":true`, `"seen":null`, `"pause":{"tenant":"x"}`,
	}
	for n, member := range odds {
		bare := odd(fmt.Sprint("t", n), "a")
		if n%2 == 0 {
			fmt.Fprintf(&file, "{%s,%s\n", member, bare[1:])
		} else {
			fmt.Fprintf(&file, "%s,%s}\n", bare[:len(bare)-1], member)
		}
	}
	done, err := d.Import(t.Context(), strings.NewReader(file.String()), ImportOptions{})
	if err != nil || done.Webhooks != len(odds) || len(d.list("")) != len(odds) {
		t.Errorf("%+v, %v", done, err)
	}
	for _, line := range []string{`{"type":null,"end":{"lines":0}}`, `{"type":7,"pause":{}}`, `{"type":"","inbox":{"version":1}}`, `{"end":{"lines":0}}`} {
		if _, err := d.Import(t.Context(), strings.NewReader(line), ImportOptions{}); err == nil || !strings.Contains(err.Error(), "faulty line") {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// A bare webhook that the gate would reject is a faulty line: it would make its tenant unknown.
func TestBareWebhookIsValidated(t *testing.T) {
	t.Parallel()
	good := func(tenant string) string { return odd(tenant, "a") }
	for name, c := range map[string]struct{ schema, line, want string }{
		"quantity": {"", strings.Replace(good("acme"), `"code":"a"`, `"code":"a","quantity":"5"`, 1),
			"/payload/change/features/0/quantity must be an integer or null, not a string"},
		"no change":   {"", `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"}}}`, "/payload/change is missing"},
		"no type":     {"", `{"payload":{"tenant":{"code":"acme"},"change":{}}}`, "/type is missing"},
		"other type":  {"", strings.Replace(good("acme"), "TenantProvisioningChange", "TenantDeleted", 1), `/type is "TenantDeleted", and only TenantProvisioningChange says what a tenant may use`},
		"own schema":  {`{"required":["source"]}`, good("acme"), "/source is missing"},
		"many faults": {"", `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":""},"change":7}}`, ", and 1 more"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, inFile(t, newFile(t)), func(c2 *Config) {
				if c.schema != "" {
					c2.Rules = must2(content.NewRules([]string{content.TenantProvisioningChange}, []byte(c.schema)))(t)
				}
			})
			fine := strings.Replace(good("fine"), `{`, `{"source":"x",`, 1)
			file := fine + "\n" + c.line + "\n"
			_, err := d.Import(t.Context(), strings.NewReader(file), ImportOptions{})
			if err == nil || !strings.Contains(err.Error(), "line 2: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			done, err := d.Import(t.Context(), strings.NewReader(file), ImportOptions{SkipFaulty: true})
			if err != nil || done.Webhooks != 1 || len(done.Faulty) != 1 {
				t.Errorf("%+v, %v", done, err)
			}
			if all := must2(d.Snapshots(t.Context(), []string{"acme", "fine"}))(t); len(all) != 1 || all[0].Tenant != "fine" {
				t.Errorf("known: %+v", all)
			}
		})
	}
}

// Since a backup was made the receiver may have got other webhooks. After a restore of the backup the next webhook of each tenant
// is delivered, even if it is a copy of the last one in the backup. Only a signed id that was seen is still a duplicate.
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
		must2(b.Import(t.Context(), strings.NewReader(backup), ImportOptions{}))(t)
		b.take("acme", "A") // the receiver had got B meanwhile
		b.want("a signed id", b.sendHook(signed(b)), "=")
		b.idle("")
		b.want("a copy then", b.send("acme", "A"), "=")
		b.want("accepted", strings.Join(b.main.got("acme"), " "), "A")
	})
}

// Bare webhooks change what usher knows, and no receiver gets them. The tenant's next webhook is no duplicate of them.
func TestBareWebhookHasNoCopies(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open, func(c *Config) { c.StoreUnclaimed, c.Receivers = true, receiver.NewSet() })
		bare := odd("acme", "a")
		must2(d.Import(t.Context(), strings.NewReader(bare), ImportOptions{}))(t)
		d.want("the same from the sender", d.send("acme", bare)+d.send("acme", bare), "+=")
	})
}

// With Replace a bare webhook of a known tenant replaces what usher knows, unless the tenant has something that waits or is parked:
// a receiver will get that one later.
func TestImportReplaces(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.main.set("parked", status(422))
		d.main.set("waits", status(500))
		tenants := []string{"delivered", "parked", "waits"}
		for _, tenant := range tenants {
			d.take(tenant, odd(tenant, "wrong"))
		}
		d.until("parked", func() bool { return d.states("parked") == "parked" })
		d.until("delivered", func() bool { return d.states("delivered") == "delivered" })
		var file strings.Builder
		for _, tenant := range append(tenants, "new") {
			file.WriteString(odd(tenant, "older") + "\n" + odd(tenant, "right") + "\n")
		}
		features := func() (all string) {
			for _, tenant := range append(tenants, "new") {
				s := must2(d.Snapshots(t.Context(), []string{tenant}))(t)[0]
				all += fmt.Sprintf("%s %s\n", tenant, regexp.MustCompile(`older|right|wrong`).FindString(string(s.Features)))
			}
			return all
		}
		done, err := d.Import(t.Context(), strings.NewReader(file.String()), ImportOptions{})
		if err != nil || done.Webhooks != 2 || done.Known != 6 {
			t.Errorf("%+v, %v", done, err)
		}
		d.want("without", features(), "delivered wrong\nparked wrong\nwaits wrong\nnew right\n")
		done, err = d.Import(t.Context(), strings.NewReader(file.String()), ImportOptions{Replace: true})
		if err != nil || done.Webhooks != 4 || done.Known != 0 || done.Busy != 4 || fmt.Sprint(done.BusyTenants) != "[/parked /waits]" {
			t.Errorf("%+v, %v", done, err)
		}
		d.want("with", features(), "delivered right\nparked wrong\nwaits wrong\nnew right\n")
		d.want("the receiver got", strings.Join(d.main.got("delivered"), " "), odd("delivered", "wrong"))
		d.take("delivered", odd("delivered", "right")) // which it has not got
		d.until("delivered", func() bool { return len(d.main.got("delivered")) == 2 })
	})
}
