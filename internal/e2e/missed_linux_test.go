package e2e

import (
	"database/sql"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"usher/internal/testkit"
)

// gateUp is when a gate last said that it is up, in an inbox that is asked beside usher; and it may move that back.
type gateUp struct {
	at   func() int64
	back func(time.Duration)
}

func gateUpOf(t *testing.T, inbox string) gateUp {
	t.Helper()
	if path, isFile := strings.CutPrefix(inbox, "file:"); isFile {
		ask := func(mode, statement string, args ...any) (at int64) {
			t.Helper()
			db, err := sql.Open("sqlite", "file:"+path+"?mode="+mode)
			if err == nil {
				defer db.Close()
				err = db.QueryRow(statement, args...).Scan(&at)
			}
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		return gateUp{
			func() int64 { return ask("ro", "SELECT at FROM gate_up") },
			func(by time.Duration) { ask("rw", "UPDATE gate_up SET at = at - ? RETURNING at", by.Microseconds()) },
		}
	}
	address, err := url.Parse(inbox)
	if err != nil {
		t.Fatal(err)
	}
	query := address.Query()
	schema := pgx.Identifier{query.Get("schema"), "gate_up"}.Sanitize()
	query.Del("schema")
	address.RawQuery = query.Encode()
	ask := func(statement string, args ...any) (at int64) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), address.String())
		if err == nil {
			defer conn.Close(t.Context())
			err = conn.QueryRow(t.Context(), statement, args...).Scan(&at)
		}
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	return gateUp{
		func() int64 { return ask("SELECT at FROM " + schema) },
		func(by time.Duration) { ask("UPDATE "+schema+" SET at = at - $1 RETURNING at", by.Microseconds()) },
	}
}

// onATerminal runs usher on one, and returns what it shows, the keyboard, and how to wait for its end.
func onATerminal(t *testing.T, environ []string, args ...string) (shown *testkit.Output, keyboard *os.File, wait func() int) {
	t.Helper()
	keyboard, screen := newTerminal(t)
	shown = new(testkit.Output)
	go io.Copy(shown, keyboard)
	cmd := exec.Command(testkit.Binary(t), args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(environ[:len(environ):len(environ)], "PATH="+os.Getenv("PATH")), screen, screen, screen
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return shown, keyboard, func() int { _ = cmd.Wait(); return cmd.ProcessState.ExitCode() }
}

// What the command prints is in a file that only its owner can read, and that has no name. On a terminal it
// says how far it is.
func TestReconcileSpools(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	r.environ = append(r.environ, "TMPDIR="+t.TempDir())
	var lines []string
	for n := range 14 {
		line := payload(fmt.Sprint("tenant-", n), fmt.Sprint("users=", n))
		lines = append(lines, strings.TrimSuffix(line, "}")+`,"note":"`+strings.Repeat(fmt.Sprint(n%10), 900_000)+`"}`)
	}
	const script = `cat "$LINES_FILE"; for f in /proc/$PPID/fd/*; do case "$(readlink $f)" in *usher-reconcile-*deleted*) stat -L -c 'mode %a' $f >>"$LINES_FILE.fds";; esac; done`
	out, stderr, code := r.run("--apply --yes --max 0", script, lines...)
	if code != 0 || !strings.Contains(out, "14 tenants taken in") || strings.Contains(stderr, "compared") {
		t.Errorf("%d\n%s%s", code, out, stderr)
	}
	if modes, err := os.ReadFile(filepath.Join(r.dir, "lines.fds")); err != nil || !strings.HasPrefix(string(modes), "mode 600\n") {
		t.Errorf("its files: %q, %v", modes, err)
	}
	testkit.Eventually(t, "delivered", func() bool { return len(r.headers()) == len(lines) })
	if left, _ := filepath.Glob(strings.TrimPrefix(r.environ[len(r.environ)-1], "TMPDIR=") + "/*"); len(left) > 0 {
		t.Errorf("files are left: %q", left)
	}
	for n, line := range lines {
		lines[n], _, _ = strings.Cut(line, `,"note"`)
		lines[n] += "}"
	}
	if err := os.WriteFile(filepath.Join(r.dir, "lines"), []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	shown, _, wait := onATerminal(t, append(r.environ, "LINES_FILE="+filepath.Join(r.dir, "lines")), "reconcile", "--", "sh", "-c", `cat "$LINES_FILE"`)
	if code := wait(); code != 0 {
		t.Errorf("on a terminal: %d\n%s", code, shown.String())
	}
	testkit.Eventually(t, "its end is shown", func() bool { return strings.Contains(shown.String(), "Nothing differs. Compared: 14 equal.") })
	if !strings.Contains(shown.String(), "waiting 5s, because the service's lists may lag, then running the command") {
		t.Errorf("it does not say what it waits for:\n%q", shown.String())
	}
	if !regexp.MustCompile(`\r\d+ tenants? compared`).MatchString(shown.String()) || !regexp.MustCompile(`compared\r?\n`).MatchString(shown.String()) {
		t.Errorf("it does not say how far it is:\n%q", shown.String())
	}
}
