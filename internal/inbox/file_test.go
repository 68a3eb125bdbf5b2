//go:build unix

package inbox

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/inbox/sqlite"
	"usher/internal/lane"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

func TestFileIsOneUshers(t *testing.T) {
	path := newFile(t)
	d := newDesk(t, inFile(t, path))
	if _, err := sqlite.Open(path, quiet); !errors.Is(err, ErrInUse) {
		t.Errorf("a second usher: %v", err)
	}
	if err := Check(&Address{path: path}, nil, false); !errors.Is(err, ErrInUse) {
		t.Errorf("usher check: %v", err)
	}
	d.take("t", "A")
	d.idle("")
	d.shut()
	check(t, Check(&Address{path: path}, nil, false))
	sqlOn(t, path, "UPDATE schema_version SET version = 1000, compatible = 1000")
	wantError(t, "tables of a newer usher", second(openFile(path, quiet)), "newer usher")
	for name, content := range map[string]string{
		"text":   "this is not an inbox\n",
		"sqlite": "SQLite format 3\x00" + strings.Repeat("x", 5000),
	} {
		other := filepath.Join(t.TempDir(), name)
		check(t, os.WriteFile(other, []byte(content), 0o600))
		wantError(t, name, second(openFile(other, quiet)), "damaged, or is not an inbox")
	}
	if info := must(os.Stat(path))(t); info.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %v", info.Mode())
	}
}

// A link is another name for the same inbox, and for the files beside it, also if it was there before the file.
func TestFileBehindALinkIsOneUshers(t *testing.T) {
	for _, first := range []string{"the file", "the link"} {
		path, link := newFile(t), filepath.Join(t.TempDir(), "link.db")
		if first == "the link" {
			check(t, os.Remove(path))
		}
		if err := os.Symlink(path, link); err != nil {
			t.Skip(err)
		}
		d := newDesk(t, inFile(t, link))
		d.take("t", "A")
		for _, name := range []string{link, path} {
			if e, err := sqlite.Open(name, quiet); !errors.Is(err, ErrInUse) {
				t.Errorf("%s first: a second usher at %s: %v", first, name, err)
				e.Close()
			}
			if err := Check(&Address{path: name}, nil, false); !errors.Is(err, ErrInUse) {
				t.Errorf("%s first: usher check at %s: %v", first, name, err)
			}
		}
		if beside := must(filepath.Glob(link + "*"))(t); len(beside) != 1 {
			t.Errorf("%s first: beside the link: %v", first, beside)
		}
	}
}

// A machine that starts without a clock gives leases by a time long ago. If usher is killed then, they end with the
// next start.
func TestKilledBeforeTheClockWasSet(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	d := newDesk(t, inFile(t, path), func(c *setup) { c.ahead.Store(int64(-50 * 365 * 24 * time.Hour)) })
	release := d.main.hang("t")
	d.take("t", "A")
	d.untilTried("t", 1)
	copied := killed(t, path)
	release()
	next := newDesk(t, inFile(t, copied))
	next.idle("t")
	next.want("accepted", fmt.Sprint(next.main.got("t")), "[A]")
}

// A file that somebody made beforehand, or a copy that was put back, may be readable for all: it holds payloads.
func TestFileIsForItsUserAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inbox.db")
	check(t, os.WriteFile(path, nil, 0o600))
	check(t, os.Chmod(path, 0o644)) // whatever the umask is
	d := newDesk(t, inFile(t, path))
	d.take("t", "A")
	d.idle("")
	for _, end := range []string{"", "-wal", "-shm", ".lock"} {
		if info := must(os.Stat(path + end))(t); info.Mode().Perm() != 0o600 {
			t.Errorf("inbox.db%s: %v", end, info.Mode())
		}
	}
}

// A name that has a special meaning for SQLite or in a URL is the name of a file here.
func TestFileOfAnyName(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{":memory:", "a b?mode=memory#c%41.db", "./x.db", "-wal"} {
		d := newDesk(t, inFile(t, name))
		d.take("t", "A")
		d.idle("t")
		d.restart()
		d.want(name+" is delivered", d.states("t"), "delivered")
		d.shut()
		check(t, Check(&Address{path: name}, nil, false))
	}
}

// People may look with sqlite3 -readonly while usher runs.
func TestFileCanBeReadMeanwhile(t *testing.T) {
	if _, err := exec.LookPath("sqlite3"); err != nil {
		testkit.Missing(t, "sqlite3 is not installed")
	}
	path := newFile(t)
	d := newDesk(t, inFile(t, path))
	for n := range 5 {
		d.take("t", fmt.Sprint(n))
		d.idle("")
		out, err := exec.Command("sqlite3", "-readonly", path, "SELECT count(*) FROM webhook").CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != fmt.Sprint(n+1) {
			t.Errorf("%s %v", out, err)
		}
	}
}

// A file that is moved, removed or replaced is noticed within two seconds, even if no webhook comes and none is
// delivered: the first sender that gets 503 should not be the one who finds out.
func TestFileIsGone(t *testing.T) {
	for name, change := range map[string]func(string) error{
		"moved":   func(path string) error { return os.Rename(path, path+".old") },
		"removed": os.Remove,
		"replaced": func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600))
		},
		"its log removed":   func(path string) error { return os.Remove(path + "-wal") },
		"its log moved":     func(path string) error { return os.Rename(path+"-wal", path+".old") },
		"its index removed": func(path string) error { return os.Remove(path + "-shm") },
		"its lock removed":  func(path string) error { return os.Remove(path + ".lock") },
		"its lock replaced": func(path string) error {
			return errors.Join(os.Remove(path+".lock"), os.WriteFile(path+".lock", nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			synctest.Test(t, func(t *testing.T) {
				d := newDesk(t, inFile(t, path))
				d.take("t", "A")
				check(t, d.Pause(Pause{}))
				time.Sleep(10 * time.Second) // what came at the start is done
				check(t, change(path))
				time.Sleep(2 * time.Second)
				if d.Err() == nil {
					t.Error("not noticed")
				}
				if got := d.send("t", "B"); !strings.Contains(got, "inbox's file") {
					t.Errorf("a webhook: %q", got)
				}
				if n := strings.Count(d.log.String(), "the inbox is broken"); n != 1 {
					t.Errorf("said %d times", n)
				}
			})
		})
	}
}

// Somebody moves the file away, and back. The newest webhooks are in the log beside it: whoever reads meanwhile must
// not make a new file, because SQLite empties the log of one.
func TestFileThatCameBackIsWhole(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	e := inFile(t, path)()
	check(t, os.Rename(path, path+".old"))
	// The file that is still open can be read, so that it can be saved.
	check(t, e.Read(t.Context(), func(engine.Tx) error {
		return e.Read(t.Context(), func(tx engine.Tx) error {
			tx.Queue("pauses", nil)
			return tx.Send()
		})
	}))
	check(t, os.Rename(path+".old", path))
	check(t, e.Close())
	d := newDesk(t, inFile(t, path))
	d.take("t", "A")
	d.until("the log is emptied, as once after each start", func() bool {
		log, err := os.Stat(path + "-wal")
		return err == nil && log.Size() == 0
	})
	d.take("t", "B")
	check(t, os.Rename(path, path+".old"))
	d.until("noticed", func() bool { return d.Err() != nil })
	for range 10 {
		_, _ = d.List(context.Background(), Filter{})
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("there is a new file")
	}
	d.shut()
	for _, empty := range []bool{false, true} { // a start meanwhile would do the same
		if empty {
			check(t, os.WriteFile(path, nil, 0o600))
		}
		wantError(t, "usher starts on a log without its file", second(openFile(path, quiet)), "inbox.db-wal")
		says := Check(&Address{path: path}, nil, false)
		for errors.Is(says, ErrInUse) { // as for openFile: by a process that another test is starting
			says = Check(&Address{path: path}, nil, false)
		}
		wantError(t, "usher check", says, "inbox.db-wal")
	}
	check(t, os.Rename(path+".old", path))
	next := newDesk(t, inFile(t, path))
	next.idle("t")
	next.want("after it came back", next.states("t"), "delivered delivered")
}

// Without its lock file usher can't tell whether another usher has the file. SQLite can.
func TestRemovedLockFileLetsNobodyIn(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	d := newDesk(t, inFile(t, path))
	d.take("t", "A")
	for range 2 { // the first one leaves a new lock file
		check(t, os.Remove(path+".lock"))
		for range 2 {
			if e, err := sqlite.Open(path, quiet); !errors.Is(err, ErrInUse) {
				t.Errorf("a second usher: %v", err)
				e.Close()
			}
		}
	}
	d.shut()
	newDesk(t, inFile(t, path)).take("t", "B")
}

// After an erasure nothing of the content is left in the file, nor in its write-ahead log.
func TestErasedIsGone(t *testing.T) {
	path := newFile(t)
	d := newDesk(t, inFile(t, path))
	const secret = "a-very-secret-contact"
	d.main.set("waits", status(500))
	d.main.set("parked", status(400))
	for _, tenant := range []string{"waits", "parked", "delivered", "large"} {
		size := 10
		if tenant == "large" {
			size = 100_000
		}
		d.take(tenant, secret+tenant+strings.Repeat("x", size))
		d.take("other-"+tenant, "A")
	}
	d.untilTried("", 8)
	d.becomes("parked", "parked")
	for _, tenant := range []string{"waits", "parked", "delivered", "large"} {
		if n, err := d.Erase("", tenant); n != 1 || err != nil {
			t.Errorf("%s: %d erased, %v", tenant, n, err)
		}
		if s, err := d.Snapshots(t.Context(), tenant); err != nil || len(s) != 0 {
			t.Errorf("%s: %v %v", tenant, s, err)
		}
	}
	if n, err := d.Erase("", "nobody"); n != 0 || err != nil {
		t.Errorf("of nobody: %d erased, %v", n, err)
	}
	d.until("the others delivered", func() bool {
		return len(d.list("")) == 4 && !strings.Contains(d.states(""), "waiting")
	})
	d.shut()
	files := must(filepath.Glob(path + "*"))(t)
	for _, f := range files {
		if bytes.Contains(must(os.ReadFile(f))(t), []byte(secret)) {
			t.Errorf("it is still in %s", filepath.Base(f))
		}
	}
}

// The same holds if usher was killed before it could empty the log because somebody was reading.
func TestErasedIsGoneAfterAKill(t *testing.T) {
	t.Parallel() // the erasure waits for the reader, for two seconds
	path := newFile(t)
	d := newDesk(t, inFile(t, path))
	const secret = "a-very-secret-contact"
	d.take("t", secret)
	d.idle("")
	end := d.reads()
	must(d.Erase("", "t"))(t)
	left := killed(t, path)
	end()
	d = newDesk(t, inFile(t, left))
	d.take("other", "A")
	d.until("gone", func() bool { return !bytes.Contains(must(os.ReadFile(left+"-wal"))(t), []byte(secret)) })
}

// reads has somebody read for as long as the test says.
func (d *desk) reads() (end func()) {
	begun, ends, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		check(d.t, d.engine.Read(context.Background(), func(tx engine.Tx) error {
			tx.Queue("pauses", nil)
			err := tx.Send()
			close(begun)
			<-ends
			return err
		}))
	}()
	<-begun
	return func() { close(ends); <-ended }
}

// A body that does not fit its digest is reported and parked, and the rest goes on. The same holds for a body that is
// missing.
func TestDamagedContent(t *testing.T) {
	t.Parallel()
	damage := []struct{ statement, want string }{
		{"UPDATE content SET body = x'58' WHERE seq = %d", "superseded delivered"},
		{"DELETE FROM content WHERE seq = %d", "superseded delivered"},
	}
	test := func(t *testing.T, d *desk, hurt func(string)) {
		check(t, d.Pause(Pause{}))
		for n := range 4 {
			d.take(fmt.Sprint("t", n), "A", "B")
		}
		var statements []string
		for n, one := range damage {
			statements = append(statements, fmt.Sprintf(one.statement, d.nth(fmt.Sprint("t", n), 1)))
		}
		d.shut()
		for _, s := range statements {
			hurt(s)
		}
		d.start()
		must(d.Resume(Pause{}))(t)
		d.idle("")
		for n, one := range damage {
			d.want(fmt.Sprint("t", n), d.states(fmt.Sprint("t", n)), one.want)
		}
		d.want("t3", d.states("t3"), "delivered delivered")
		if n := strings.Count(d.log.String(), `level=ERROR msg="webhook damaged, parked"`); n != 2 {
			t.Errorf("reported %d times", n)
		}
		d.want("accepted", fmt.Sprint(d.main.got("t0"), d.main.got("t1"), d.main.got("t3")), "[B] [B] [A B]")
		must(d.Show(context.Background(), d.nth("t0", 1)))(t)
		must(d.Show(context.Background(), d.nth("t1", 1)))(t)
	}
	t.Run("file", func(t *testing.T) {
		path := newFile(t)
		test(t, newDesk(t, inFile(t, path)), func(s string) { sqlOn(t, path, s) })
	})
	t.Run("database", func(t *testing.T) {
		dsn := pgtest.Schema(t)
		conn, _ := connectTo(t, dsn)
		test(t, newDesk(t, inDatabase(t, dsn)), func(s string) {
			must(conn.Exec(t.Context(), strings.ReplaceAll(s, "x'58'", `'\x58'`)))(t)
		})
	})
}

// An invalid webhook whose stored body has changed can't be accepted: the receiver and entitlements would go by it.
func TestDamagedInvalid(t *testing.T) {
	path := newFile(t)
	d := newDesk(t, inFile(t, path))
	d.recordInvalid("acme", snapshotOf("acme", "a"))
	d.shut()
	sqlOn(t, path, fmt.Sprintf("UPDATE content SET body = x'%x'", snapshotOf("acme", "b")))
	d.start()
	if _, err := d.Accept(d.nth("acme", 1), true); !errors.Is(err, lane.ErrDamaged) {
		t.Errorf("accepted: %v", err)
	}
	d.want("states", d.states("acme"), "invalid")
}

// However a file is damaged while usher is off, usher does not crash, and no receiver gets an old snapshot after a
// newer one.
func TestDamagedFile(t *testing.T) {
	t.Parallel()
	worlds := 10
	switch {
	case *long:
		worlds = 500
	case thorough(): // the same ones, and more
		worlds = 25
	}
	whole := newFile(t)
	d := newDesk(t, inFile(t, whole))
	d.main.set("", status(500))
	for n := range 30 {
		tenant := fmt.Sprintf("t%02d", n)
		if n%2 == 0 {
			d.main.set(tenant, status(200))
		}
		d.take(tenant, "1", "2"+strings.Repeat("x", n*300), "3")
	}
	d.until("half of it delivered", func() bool { return len(d.main.got("")) == 45 })
	d.shut()
	content := must(os.ReadFile(whole))(t)
	outcomes := make(map[string]int)
	for n := range worlds {
		random := rand.New(rand.NewPCG(7, uint64(n)))
		path := filepath.Join(t.TempDir(), "inbox.db")
		hurt := slices.Clone(content)
		for range 1 + random.IntN(4) {
			at := random.IntN(len(hurt))
			for i := range 1 << random.IntN(9) {
				if at+i < len(hurt) {
					hurt[at+i] ^= byte(1 + random.IntN(255))
				}
			}
		}
		check(t, os.WriteFile(path, hurt, 0o600))
		outcomes[runDamaged(t, n, path)]++
	}
	t.Log(outcomes)
}

// runDamaged runs an inbox on a damaged file, and returns a summary.
func runDamaged(t *testing.T, world int, path string) string {
	d := openDamaged(t, world, path)
	if d == nil {
		return "does not start"
	}
	defer d.shut()
	for range 200 {
		if s := d.Stats(); d.Err() != nil || s.Old || s.Pending == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	last := make(map[string]string)
	for _, one := range d.main.got("") {
		tenant, body, _ := strings.Cut(one, ":")
		if body[:1] < last[tenant] {
			t.Errorf("world %d: %s got %.5s after %s", world, tenant, body, last[tenant])
		}
		last[tenant] = body[:1]
	}
	if d.Err() != nil {
		return "broken while it runs"
	}
	return "goes on"
}

// TestChild is what the tests below run in a process of their own: it takes webhooks in and delivers them, and prints
// each.
func TestChild(t *testing.T) {
	path := os.Getenv("USHER_INBOX_CHILD")
	if path == "" {
		t.Skip("for other tests")
	}
	signal.Ignore(syscall.SIGXFSZ)
	var mu sync.Mutex
	say := func(words ...any) { mu.Lock(); defer mu.Unlock(); fmt.Println(words...) }
	d := newDesk(t, inFile(t, path))
	d.cfg.Delivered = nil
	first, _ := strconv.Atoi(os.Getenv("USHER_INBOX_FIRST"))
	if limit, err := strconv.Atoi(os.Getenv("USHER_INBOX_LIMIT")); err == nil {
		check(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: uint64(limit), Max: 1 << 40}))
	}
	var wg sync.WaitGroup
	for sender := range 8 {
		wg.Go(func() {
			for n := first; n < first+2000; n++ {
				body := fmt.Sprintf("%06d%s", n, strings.Repeat("x", 3000))
				if got := d.send(fmt.Sprint("t", sender), body); got == "+" {
					say("ok", fmt.Sprint("t", sender), n)
				} else {
					say("no", d.Err() != nil, strings.ReplaceAll(got, "\n", " "))
					return
				}
			}
		})
	}
	wg.Wait()
	check(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 40, Max: 1 << 40}))
	for range 3 {
		say("then", d.send("after", time.Now().String()) == "+")
	}
	say("end")
	<-time.After(time.Minute)
}

// child runs TestChild until it has printed so many lines, or the last one, and kills it.
func child(t *testing.T, path string, lines int, env ...string) (out []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(append(os.Environ(), "USHER_INBOX_CHILD="+path), env...)
	stdout := must(cmd.StdoutPipe())(t)
	check(t, cmd.Start())
	scan := bufio.NewScanner(stdout)
	for scan.Scan() && scan.Text() != "end" {
		if out = append(out, scan.Text()); len(out) == lines {
			break
		}
	}
	_ = cmd.Process.Kill()
	for scan.Scan() { // what it had printed by then
		out = append(out, scan.Text())
	}
	_ = cmd.Wait()
	return out
}

// wantAll reports acknowledged webhooks that are missing in a file that a process has left.
func wantAll(t *testing.T, path string, lines []string) {
	t.Helper()
	d := newDesk(t, inFile(t, path))
	d.idle("")
	have := make(map[string]bool)
	check(t, d.Each(context.Background(), Filter{}, true, func(w *lane.Webhook) bool {
		have[w.Tenant+" "+string(w.Body[:min(6, len(w.Body))])] = true
		return true
	}))
	acknowledged := 0
	for _, line := range lines {
		var tenant string
		var n int
		if _, err := fmt.Sscanf(line, "ok %s %d", &tenant, &n); err == nil {
			acknowledged++
			if !have[fmt.Sprintf("%s %06d", tenant, n)] {
				t.Errorf("%s was lost", line)
			}
		}
	}
	for n := range 8 {
		if got := d.main.got(fmt.Sprint("t", n)); !slices.IsSorted(got) {
			t.Errorf("t%d is out of order", n)
		}
	}
	if acknowledged == 0 {
		t.Errorf("nothing was acknowledged: %v", lines)
	}
	d.shut()
}

func TestKilled(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	var lines []string
	for round := range 3 {
		lines = append(lines, child(t, path, 300, fmt.Sprint("USHER_INBOX_FIRST=", round*2000))...)
	}
	wantAll(t, path, lines)
}

// A write that fails is final: no more 200s until a restart, even if the cause is gone. What got 200 before is in the
// file.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	lines := child(t, path, -1, fmt.Sprint("USHER_INBOX_LIMIT=", 2<<20))
	text := strings.Join(lines, "\n")
	if strings.Count(text, "no true") != 8 || strings.Count(text, "then false") != 3 ||
		!strings.Contains(text, "could not be written") {
		t.Errorf("it went on:\n%.2000s", text[max(0, len(text)-2000):])
	}
	wantAll(t, path, lines)
}

// A full disk is not final: senders get 503, and everything goes on when there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "12m")
	path := filepath.Join(dir, "inbox.db")
	d := newDesk(t, inFile(t, path))
	d.main.set("", status(500))
	invalid := d.RecordInvalid(context.Background(), d.invalid("invalid", snapshotOf("invalid", "a")))
	run := d.begin()
	taken := 0
	var got string
	for n := 0; n < 1000; n++ {
		if got = d.send(fmt.Sprint("t", n), strings.Repeat(fmt.Sprint(n), 20_000)); got != "+" {
			break
		}
		taken++
	}
	tooFull := "the disk of " + path + " is too full: only "
	if !strings.Contains(got, tooFull) || !strings.Contains(got, " of 12 MiB are free") || taken == 0 {
		t.Fatalf("%d taken in, then %q", taken, got)
	}
	full := d.Health() // from the first one on that was not taken in
	if full.Err == nil || full.Since.IsZero() {
		t.Errorf("nothing is wrong: %+v", full)
	}
	odd := d.invalid("odd", snapshotOf("odd", "a"))
	if id := d.RecordInvalid(context.Background(), odd); id != 0 {
		t.Errorf("an invalid webhook took the room for outcomes, as %d", id)
	}
	if id, err := d.Accept(invalid, false); err == nil {
		t.Errorf("one that was accepted took it, as %d", id)
	}
	if got := d.decide(run, lane.ToApply, says("new", "a")); !strings.Contains(got, "too full") {
		t.Errorf("a reconcile took it: %s", got)
	}
	d.main.set("", nil)
	d.idle("") // what room is left is for outcomes
	// Others take what SQLite gives back, and leave room for outcomes only.
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 12<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	info, err := os.Stat(filler)
	check(t, err)
	check(t, os.Truncate(filler, max(0, info.Size()-3<<20)))
	d.until("unready, although outcomes can be written", func() bool {
		if d.send(fmt.Sprint("more", taken), strings.Repeat("m", 40_000)) == "+" { // usher was faster than the others
			taken++
		}
		return d.Err() != nil && d.health.lastErr() == nil
	})
	check(t, enlargeDisk(dir, "100m"))
	d.until("room again", func() bool { return d.send("after", "A") == "+" })
	if h := d.Health(); h.Err != nil {
		t.Errorf("with room again: %v", h.Err)
	}
	d.idle("")
	d.restart()
	if n := len(d.main.got("")); n < taken+1 || n > taken+33 { // what was under way may come again
		t.Errorf("%d of %d delivered", n, taken+1)
	}
	if len(d.list("")) != taken+2 { // one is invalid
		t.Errorf("%d there, %d taken in", len(d.list("")), taken+1)
	}
}
