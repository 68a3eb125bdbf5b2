package e2e

import (
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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
	"usher/internal/testkit/pgtest"
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

// usher is killed, and comes back an hour later: that is an outage, until somebody says that it is dealt
// with, on the page, by the API or by the command. Nobody dismisses what they have not seen.
func TestOutageAfterAKillIsDismissed(t *testing.T) {
	t.Parallel()
	for _, engine := range pick([]string{"file"}, []string{"file", "database"}) {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			inbox := "file:" + filepath.Join(t.TempDir(), "inbox.db")
			if engine == "database" {
				inbox = pgtest.Schema(t)
			}
			w := newWorld(t)
			environ := w.environ("USHER_WEBHOOK_INBOX=" + inbox)
			u := startBuilt(t, environ).ready(t)
			gate := gateUpOf(t, inbox)
			run := func(args ...string) (out string, code int) {
				code, stdout, stderr := ended(t, append(environ[:len(environ):len(environ)], "USHER_ADMIN_LISTEN="+u.admin), args...)
				return stdout + stderr, code
			}
			const words = " UTC no gate was ready to take webhooks"
			kill := func() {
				t.Helper()
				testkit.Eventually(t, "it says that it is up", func() bool { return gate.at() > 0 })
				u.Kill()
				<-u.Ended
				gate.back(time.Hour)
				u = startBuilt(t, environ).ready(t)
				testkit.Eventually(t, "it says that there was an outage", func() bool {
					page := asked(t, "GET", "http://"+u.admin+"/", "", "Accept", "text/html").body
					out, code := run("status")
					if strings.Contains(out+page, "All is well") || code == 0 {
						t.Errorf("it says that all is well before it has asked:\n%s", out)
					}
					return strings.Contains(out, words)
				})
			}
			gone := func(how string) {
				t.Helper()
				if out, _ := run("status"); strings.Contains(out, words) {
					t.Errorf("%s: the outage is still there:\n%s", how, out)
				}
			}
			if out, code := run("inbox", "dismiss"); code != 0 || out != "nothing to dismiss\n" {
				t.Errorf("without an outage: %d %s", code, out)
			}
			kill()
			if out, code := run("inbox", "dismiss"); code != 0 || !regexp.MustCompile(`^From .* UTC no gate was ready to take webhooks, .*\ndismissed: 1 outage, and 0 webhooks without a tenant`).MatchString(out) {
				t.Errorf("the command: %d %s", code, out)
			}
			gone("the command")

			kill()
			if got := post(u.admin, "/api/dismiss", fmt.Sprintf(`{"until":%q}`, time.Now().Add(-time.Minute).Format(time.RFC3339Nano))); got.status != 200 || strings.TrimSpace(got.body) != `{"outages":0,"webhooks":0,"findings":0}` {
				t.Errorf("it came later: %d %s", got.status, got.body)
			}
			for body, want := range map[string]string{`{"tenants":"acme"}`: "tenants", `{"until":"yesterday"}`: "until is"} {
				if got := post(u.admin, "/api/dismiss", body); got.status != 400 || !strings.Contains(got.body, want) {
					t.Errorf("%s: %d %s", body, got.status, got.body)
				}
			}
			if got := post(u.admin, "/api/dismiss", ""); got.status != 200 || strings.TrimSpace(got.body) != `{"outages":1,"webhooks":0,"findings":0}` {
				t.Errorf("the API: %d %s", got.status, got.body)
			}
			gone("the API")

			kill()
			page := get(t, u.admin, "/dismiss")
			until := regexp.MustCompile(`name="until" value="([^"]+)"`).FindStringSubmatch(page.body)
			if until == nil || !strings.Contains(page.body, " no gate was ready ") {
				t.Fatalf("the page:\n%s", page.body)
			}
			submit := func(until string) int {
				req, err := http.NewRequest("POST", "http://"+u.admin+"/dismiss", strings.NewReader(url.Values{"until": {until}}.Encode()))
				if err == nil {
					req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				}
				return do(req, err).status
			}
			if status := submit("x"); status != 400 {
				t.Errorf("a time that is none: %d", status)
			}
			submit(strings.ReplaceAll(until[1], "&#43;", "+"))
			gone("the page")
			if body := get(t, u.admin, "/dismiss").body; !strings.Contains(body, "There is nothing to dismiss.") {
				t.Errorf("the page afterwards:\n%s", body)
			}
			if out, _ := run("inbox", "actions"); strings.Count(out, "dismiss") < 3 {
				t.Errorf("actions:\n%s", out)
			}
		})
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

// On a terminal dismiss asks first, and what comes while it waits for the answer is not dismissed.
func TestDismissAsks(t *testing.T) {
	t.Parallel()
	for answer, sent := range map[string]bool{"n\r": false, "y\r": true} {
		var got []string
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/api/dismiss" {
				body, _ := io.ReadAll(r.Body)
				got = append(got, string(body))
				io.WriteString(w, `{"outages":1,"webhooks":0}`)
				return
			}
			io.WriteString(w, `{"missed":{"outages":[{"from":"2026-01-01T10:00:00Z","to":"2026-01-01T11:00:00.5Z"}],"unnamed":{"webhooks":2,"since":"2026-01-01T09:00:00Z","last":"2026-01-01T09:30:00Z"}}}`)
		}))
		t.Cleanup(srv.Close)
		shown, keyboard, wait := onATerminal(t, []string{"USHER_ADMIN_LISTEN=" + srv.Listener.Addr().String()}, "inbox", "dismiss")
		testkit.Eventually(t, "the question", func() bool {
			return strings.Contains(shown.String(), "Dismiss this? usher then stops reporting it. [y/N] ")
		})
		if _, err := keyboard.WriteString(answer); err != nil {
			t.Fatal(err)
		}
		code := wait()
		for _, word := range []string{"From 2026-01-01 10:00:00 to 11:00:00 UTC no gate was ready", "2 webhooks with a 5xx before it knew the tenant from 2026-01-01 09:00:00 to 09:30:00 UTC"} {
			if !strings.Contains(shown.String(), word) {
				t.Errorf("%q is missing:\n%s", word, shown.String())
			}
		}
		if all := strings.Join(got, ""); sent != (code == 0) || sent != (strings.TrimSpace(all) == `{"until":"2026-01-01T11:00:00.5Z"}`) || !sent && all != "" {
			t.Errorf("%q: exit code %d, it sent %q\n%s", answer, code, got, shown.String())
		}
		got = nil
		shown, _, wait = onATerminal(t, []string{"USHER_ADMIN_LISTEN=" + srv.Listener.Addr().String()}, "inbox", "dismiss", "--yes")
		if code := wait(); code != 0 || len(got) != 1 {
			t.Errorf("--yes: exit code %d, it sent %q\n%s", code, got, shown.String())
		}
	}
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
	shown, _, wait := onATerminal(t, append(r.environ, "LINES_FILE="+filepath.Join(r.dir, "lines")), "reconcile", "--settle", "600ms", "--as-of", "now", "--", "sh", "-c", `cat "$LINES_FILE"`)
	if code := wait(); code != 0 {
		t.Errorf("on a terminal: %d\n%s", code, shown.String())
	}
	testkit.Eventually(t, "its end is shown", func() bool { return strings.Contains(shown.String(), "Nothing differs. Compared: 14 equal.") })
	if !strings.Contains(shown.String(), "waiting 600ms (--settle), then running the command") {
		t.Errorf("it does not say what it waits for:\n%q", shown.String())
	}
	if !regexp.MustCompile(`\r\d+ tenants? compared`).MatchString(shown.String()) || !regexp.MustCompile(`compared\r?\n`).MatchString(shown.String()) {
		t.Errorf("it does not say how far it is:\n%q", shown.String())
	}
}
