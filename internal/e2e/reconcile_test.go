//go:build unix

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"usher/internal/testkit"
)

// A reconciler is an usher with a file as its inbox, and the environment of the commands beside it.
type reconciler struct {
	*usher
	t       *testing.T
	world   *world
	environ []string
	dir     string

	mu  sync.Mutex
	got []http.Header // of what the receiver got
}

func (r *reconciler) headers() []http.Header {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func newReconciler(t *testing.T, more ...string) *reconciler {
	t.Helper()
	w, dir := newWorld(t), t.TempDir()
	r := &reconciler{t: t, world: w, dir: dir}
	w.receiver.OnDelivery = func(req *http.Request, _ []byte) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, req.Header)
	}
	r.usher = start(t, w.environ(append(more, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(dir, "inbox.db"), "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0")...)).ready(t)
	r.environ = append(w.environ(more...), "USHER_ADMIN_LISTEN="+r.admin)
	return r
}

// act makes one of the calls of a run.
func (r *reconciler) act(call, token string) reply {
	req, err := http.NewRequest("POST", "http://"+r.admin+"/api/reconcile/"+call, nil)
	if err == nil {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return do(req, err)
}

// payload is what the service says of a tenant, on the platform crm unless it names another.
func payload(tenant string, features ...string) string {
	if !strings.Contains(tenant, "/") {
		tenant = "crm/" + tenant
	}
	return testkit.Says(tenant, features...)
}

// hears sends a webhook.
func (r *reconciler) hears(tenant string, features ...string) {
	r.t.Helper()
	if got := r.send(`{"type":"TenantProvisioningChange","payload":` + payload(tenant, features...) + `}`); got.status != 200 {
		r.t.Fatalf("%s: %d %s", tenant, got.status, got.body)
	}
}

// run runs usher reconcile with flags, and a script that has the lines in $LINES.
func (r *reconciler) run(flags, script string, lines ...string) (out, stderr string, code int) {
	r.t.Helper()
	file := filepath.Join(r.dir, "lines")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		r.t.Fatal(err)
	}
	p := startProcess(r.t, append(r.environ, "LINES_FILE="+file), append(append([]string{"reconcile"}, strings.Fields(flags)...), "--", "sh", "-c", script)...)
	<-p.Ended
	return p.Stdout.String(), p.Stderr.String(), p.Code
}

// want runs it on lines, and wants an exit code, and words in what it prints.
func (r *reconciler) want(flags string, code int, words []string, lines ...string) string {
	r.t.Helper()
	out, stderr, got := r.run(flags, `cat "$LINES_FILE"`, lines...)
	for _, word := range words {
		if !strings.Contains(out+stderr, word) {
			r.t.Errorf("usher reconcile %s: %q is missing", flags, word)
			got = -1
		}
	}
	if got != code {
		r.t.Errorf("usher reconcile %s: exit code %d, want %d:\n%s%s", flags, got, code, out, stderr)
	}
	return out
}

// A change whose webhook was lost: the first run says it, --apply delivers it, and after that nothing differs.
func TestReconcile(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	entitlements := r.URL(t, "entitlements")
	check := func(feature string) int {
		status, _ := testkit.Get(t, entitlements+"/v1/check?tenant=acme&feature="+feature)
		return status
	}
	r.hears("acme", "users=25", "sso")
	r.hears("globex", "users=1")
	r.hears("gone", "users=1")
	r.hears("crm2/initech", "users=1")
	lines := []string{payload("acme", "users=30", "api"), payload("globex", "users=1"), payload("new", "sso"), payload("initech", "users=1")}
	out := r.want("", 3, []string{
		"differs  crm/acme                  users 25 → 30, + api, - sso\n", "missing  crm/new ", "+ sso\n", "twin     crm/initech               usher knows crm2/initech, which the command did not print",
		"absent   crm/gone ", "absent   crm2/initech ", "4 tenants compared: 1 is equal, 1 differs, 1 is missing, 1 is a twin. 2 tenants that usher knows were not printed.\n",
		"To take in what differs or is missing:\n  usher reconcile --apply -- sh '-c' 'cat \"$LINES_FILE\"'\n", "If it is a new tenant, add --apply --twins.\n",
	}, lines...)
	if strings.Contains(out, "globex") {
		t.Errorf("what is equal is printed:\n%s", out)
	}
	if check("sso") != 204 || check("api") != 403 {
		t.Error("without --apply something has changed")
	}
	testkit.Eventually(t, "delivered", func() bool { return len(r.headers()) == 4 })
	const got = 4
	r.want("--apply --yes", 3, []string{"2 tenants taken in", "A twin is usually a wrong platform in your list: correct it. If it is a new tenant, add --twins.\n"}, lines...)
	if check("sso") != 403 || check("api") != 204 {
		t.Error("usher does not answer by what was taken in")
	}
	testkit.Eventually(t, "delivered", func() bool { return len(r.headers()) == got+2 })
	for _, h := range r.headers()[got:] {
		if h.Get("usher-source") != "reconcile" || h.Get("webhook-id") == "" {
			t.Errorf("the receiver got %v", h)
		}
	}
	r.want("--apply --yes --twins", 0, []string{"1 tenant taken in"}, lines...)
	r.want("", 0, []string{"Nothing differs: usher knows all 4 tenants as the billing service does. 2 tenants that usher knows were not printed.\n"}, lines...)
	p := startProcess(t, r.environ, "inbox", "actions")
	if <-p.Ended; strings.Count(p.Stdout.String(), "  reconcile  ") != 4 || !regexp.MustCompile(`reconcile +2 .* --apply\n`).MatchString(p.Stdout.String()) {
		t.Errorf("actions:\n%s", p.Stdout.String())
	}
	p = startProcess(t, r.environ, "inbox", "ls", "--json")
	if <-p.Ended; strings.Count(p.Stdout.String(), `"source":"reconcile"`) != 3 {
		t.Errorf("ls:\n%s", p.Stdout.String())
	}
}

// A list of few tenants clears nothing that a larger one has found.
func TestReconcileOfFewTenants(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	lines := []string{payload("acme", "users=30")}
	r.hears("acme", "users=25")
	for _, tenant := range []string{"globex", "initech", "hooli"} {
		r.hears(tenant, "users=1")
		lines = append(lines, payload(tenant, "users=1"))
	}
	const trouble, partial = "1 tenant is not what the billing service says", "This run compared too few tenants to clear what an earlier one has found"
	status := func() string {
		p := startProcess(t, r.environ, "status")
		<-p.Ended
		return p.Stdout.String()
	}
	if out := r.want("", 3, []string{"4 tenants compared"}, lines...); strings.Contains(out, partial) {
		t.Error(out)
	}
	r.want("", 0, []string{"Nothing differs: usher knows all 2 tenants", partial}, lines[1:3]...)
	if s := status(); !strings.Contains(s, trouble) {
		t.Errorf("the trouble is gone:\n%s", s)
	}
	r.want("--apply --yes", 0, nil, lines...)
	if s := status(); strings.Contains(s, trouble) {
		t.Errorf("the trouble is still there:\n%s", s)
	}
	if out := r.want("", 0, []string{"Nothing differs: usher knows all 2 tenants"}, lines[1:3]...); strings.Contains(out, "too few") {
		t.Errorf("there is nothing to clear:\n%s", out)
	}
}

// A run of too few tenants says that it ends no outage only where there is one.
func TestReconcileOfFewTenantsEndsNoOutage(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]bool{
		`{"missed":{"outages":[{"from":"2026-01-01T10:00:00Z","to":"2026-01-01T11:00:00Z"}]}}`: true,
		`{"missed":{"outages":[]}}`: false,
		``:                          false,
	} {
		s := newScripted(t, func(_ string, _ int, line string) string {
			return fmt.Sprintf(`{"platform":"crm","tenant":%q,"state":"s","result":"equal"}`, line)
		})
		s.ended, s.status = `{"partial":true}`, status
		p := s.run(t, "", "echo a")
		if out := p.Stdout.String(); p.Code != 0 || strings.Contains(out, "This run compared too few tenants to end the times without a gate. If its list is complete, run 'usher inbox dismiss'.") != want || strings.Contains(out, "too few") != want {
			t.Errorf("%s: %d\n%s", status, p.Code, out)
		}
	}
}

func TestReconcileJSON(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	r.hears("acme", "users=25")
	r.hears("gone", "users=1")
	lines := []string{payload("acme", "users=30"), payload("new"), payload("globex", "a")}
	for _, c := range []struct {
		flags string
		code  int
		want  string
	}{
		{"--json", 3, `{"result":"differs","platform":"crm","tenant":"acme","changes":["users 25 → 30"],"applied":false}
{"result":"new","platform":"crm","tenant":"new","changes":[],"applied":false}
{"result":"new","platform":"crm","tenant":"globex","changes":["+ a"],"applied":false}
{"result":"unlisted","platform":"crm","tenant":"gone","changes":[],"applied":false}
{"summary":{"equal":0,"differs":1,"new":2,"twin":0,"changed":0,"unlisted":1,"applied":0,"passed_over":0}}
`},
		{"--json --apply --no-deliver --yes", 0, `{"result":"unlisted","platform":"crm","tenant":"gone","changes":[],"applied":false}
{"result":"differs","platform":"crm","tenant":"acme","changes":["users 25 → 30"],"applied":true}
{"result":"new","platform":"crm","tenant":"new","changes":[],"applied":true}
{"result":"new","platform":"crm","tenant":"globex","changes":["+ a"],"applied":true}
{"summary":{"equal":0,"differs":1,"new":2,"twin":0,"changed":0,"unlisted":1,"applied":3,"passed_over":0}}
`},
		{"--json", 0, `{"result":"unlisted","platform":"crm","tenant":"gone","changes":[],"applied":false}
{"summary":{"equal":3,"differs":0,"new":0,"twin":0,"changed":0,"unlisted":1,"applied":0,"passed_over":0}}
`},
	} {
		if c.flags != "--json" { // --no-deliver leaves out what waits
			testkit.Eventually(t, "delivered", func() bool { return len(r.headers()) == 2 })
			testkit.Eventually(t, "nothing waits", func() bool {
				_, body := testkit.Get(t, "http://"+r.admin+"/api/status")
				return strings.Contains(body, `"waiting":0`)
			})
		}
		if got := r.want(c.flags, c.code, nil, lines...); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.flags, got, c.want)
		}
	}
	if n := len(r.headers()); n != 2 {
		t.Errorf("%d were delivered", n)
	}
}

// Whatever is doubtful: what could be compared is printed, nothing is applied, and nobody is absent.
func TestReconcileFails(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	r.hears("acme", "users=25")
	r.hears("gone", "users=25")
	differs := payload("acme", "users=30")
	for _, c := range []struct {
		name, flags, script, want string
		lines                     []string
	}{
		{"the command fails", "", `cat "$LINES_FILE"; exit 7`, "the command failed: its exit code is 7", []string{differs}},
		{"it is killed", "", `cat "$LINES_FILE"; kill -9 $$`, "its exit code is 137", []string{differs}},
		{"it prints nothing", "", `true`, "the command printed nothing", nil},
		{"there is no such command", "", `exec /nowhere/at-all`, "the command failed: its exit code is 127", nil},
		{"a faulty line", "", `cat "$LINES_FILE"`, "line 2: /payload/tenant/code is missing", []string{differs, `{"tenant":{},"change":{}}`}},
		{"half a line", "", `cat "$LINES_FILE"`, "line 2: it is not JSON", []string{differs, payload("new")[:20]}},
		{"features that cannot be read", "", `cat "$LINES_FILE"`, "line 1: /payload/change/features cannot be read", []string{`{"tenant":{"code":"acme"},"change":{"features":null}}`, differs}},
		{"twice", "", `cat "$LINES_FILE"`, "line 3: the tenant crm/acme was printed before, with other features", []string{differs, payload("acme", "users=30"), payload("acme", "users=31")}},
		{"too many", "--max 1", `cat "$LINES_FILE"`, "2 tenants would be taken in, and --max allows 1", []string{differs, payload("new")}},
		{"more than usual", "", `cat "$LINES_FILE"`, "6 tenants would be taken in, and --max allows 5", []string{differs, payload("a"), payload("b"), payload("c"), payload("d"), payload("e")}},
	} {
		for _, flags := range []string{"--apply --yes " + c.flags, "--apply --yes --json " + c.flags} {
			out, stderr, code := r.run(flags, c.script, c.lines...)
			if code != 1 || !strings.Contains(out+stderr, c.want) || len(c.lines) > 0 && !strings.Contains(out, "acme") {
				t.Errorf("%s, %s: exit code %d\n%s%s", c.name, flags, code, out, stderr)
			}
			if strings.Contains(out, `"result":"unlisted"`) && !strings.Contains(c.want, "--max") || strings.Contains(out, "absent  ") && !strings.Contains(c.want, "--max") {
				t.Errorf("%s: somebody is absent\n%s", c.name, out)
			}
		}
	}
	r.want("", 3, []string{"differs  crm/acme"}, differs)
	r.want("--apply --max 0 --yes", 0, []string{"7 tenants taken in"}, differs, payload("a"), payload("b"), payload("c"), payload("d"), payload("e"), payload("f"))
}

func TestReconcileUsage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	environ := append(w.environ(), "USHER_ADMIN_LISTEN=127.0.0.1:1")
	ran := filepath.Join(t.TempDir(), "ran")
	for args, want := range map[string]string{
		"":                                      "needs a command",
		"--apply --yes":                         "needs a command",
		"touch " + ran:                          "write -- before the command",
		"--no-deliver -- touch " + ran:          "--no-deliver is only for --apply",
		"--yes -- touch " + ran:                 "--yes is only for --apply",
		"--apply -- touch " + ran:               "there is no terminal: use --yes",
		"--apply --yes --max -3 -- true":        "write a whole number",
		"--as-of never -- touch " + ran:         "write a time",
		"--frobnicate -- touch " + ran:          "it has --apply",
		"--as-of=2026-01-31 -- touch " + ran:    "1", // nobody answers
		"--apply --yes --twins -- touch " + ran: "1",
	} {
		p := startProcess(t, environ, append([]string{"reconcile"}, strings.Fields(args)...)...)
		<-p.Ended
		code, words := 2, want
		if want == "1" {
			code, words = 1, "cannot reach usher at 127.0.0.1:1"
		}
		if out := p.Stdout.String() + p.Stderr.String(); p.Code != code || !strings.Contains(out, words) {
			t.Errorf("usher reconcile %s: %d\n%s", args, p.Code, out)
		}
	}
	alone := startProcess(t, []string{"USHER_ADMIN_LISTEN=127.0.0.1:1"}, "reconcile", "--", "touch", ran)
	if <-alone.Ended; alone.Code != 2 || !strings.Contains(alone.Stderr.String(), "needs --as-of") {
		t.Errorf("without USHER_BASE_URL: %d %s", alone.Code, alone.Stderr.String())
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the command ran")
	}
}

// A list from elsewhere: what came later than it is left alone.
func TestReconcileAsOf(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	r.hears("old", "a")
	time.Sleep(10 * time.Millisecond)
	at := time.Now().UTC()
	time.Sleep(10 * time.Millisecond)
	r.hears("new", "a")
	r.environ = []string{"USHER_ADMIN_LISTEN=" + r.admin}
	r.want("--as-of "+at.Format(time.RFC3339Nano), 3, []string{"differs  crm/old ", "changed  crm/new "}, payload("old", "b"), payload("new", "b"))
}

// A child that the command leaves behind has its output open: that does not delay the end. But nobody can say whether that was all, so
// nothing is taken in. What the command itself has printed is compared.
func TestReconcileDoesNotWaitForChildren(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	var lines []string
	for n := range 1500 {
		lines = append(lines, payload(fmt.Sprint("tenant-", n), "a"))
	}
	lines = append(lines, "") // an end for the last line
	for name, child := range map[string]string{
		"it is quiet": `sleep 3000 2>/dev/null`,
		"it prints":   `yes '' 2>/dev/null`, // more than a pipe holds
	} {
		pid := filepath.Join(r.dir, "pid")
		began := time.Now()
		out, stderr, code := r.run("--json --apply --max 0 --yes", `cat "$LINES_FILE"; `+child+` & echo $! > '`+pid+`'`, lines...)
		text, err := os.ReadFile(pid)
		if err != nil {
			t.Fatal(err)
		}
		var child int
		fmt.Sscan(string(text), &child)
		_ = syscall.Kill(child, syscall.SIGKILL) // yes ends with its pipe
		if code != 1 || !strings.Contains(out, `"new":1500`) || !strings.Contains(out, `"applied":0`) || !strings.Contains(stderr, "still has its output open") {
			t.Errorf("%s, after %v: %d %s", name, time.Since(began), code, stderr)
		}
	}
}

// A signal goes to the command; then the run has failed, and the inbox knows that.
func TestReconcileIsInterrupted(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	r.hears("acme", "users=25")
	started := filepath.Join(r.dir, "started")
	p := startProcess(t, r.environ, "reconcile", "--", "sh", "-c", "echo '"+payload("acme", "users=30")+"'; touch "+started+"; exec sleep 3000")
	testkit.Eventually(t, "started", func() bool { _, err := os.Stat(started); return err == nil })
	p.Signal(t, syscall.SIGTERM)
	if <-p.Ended; p.Code != 1 || !strings.Contains(p.Stderr.String(), "the command failed") {
		t.Errorf("%d %s %s", p.Code, p.Stdout.String(), p.Stderr.String())
	}
	if !strings.Contains(p.Stdout.String(), "differs  crm/acme") {
		t.Errorf("what was compared is not printed: %s", p.Stdout.String())
	}
}

// A command may survive a signal and end well. The signal meant usher, too: nothing is taken in.
func TestReconcileIsInterruptedAndTheCommandIsNot(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	r.hears("acme", "users=25")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			continue // whoever started the tests ignores it, as nohup does, and so do all processes that they start
		}
		dir := t.TempDir()
		exists := func(name string) func() bool {
			return func() bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil }
		}
		script := fmt.Sprintf("cd '%s'; trap 'touch got' %d; echo '%s'; touch started; until test -e got; do sleep 0.01; done", dir, sig, payload("acme", "users=30"))
		p := startProcess(t, r.environ, "reconcile", "--apply", "--yes", "--", "sh", "-c", script)
		testkit.Eventually(t, "started", exists("started"))
		p.Signal(t, sig)
		if <-p.Ended; p.Code != 1 || !strings.Contains(p.Stderr.String(), "reconcile failed: interrupted") || !strings.Contains(p.Stdout.String(), "differs  crm/acme") {
			t.Errorf("%v: %d %s %s", sig, p.Code, p.Stdout.String(), p.Stderr.String())
		}
	}
	r.want("", 3, []string{"differs  crm/acme"}, payload("acme", "users=30"))
}

// scripted is what stands in for a running usher: it answers each line of a comparison, and of what is to be taken in, as the test says.
type scripted struct {
	environ []string
	mu      sync.Mutex
	calls   map[string]int // how often a call came in the last run
	end     string         // the body of the last one
	ended   string         // its answer; empty: {}
	status  string         // the answer of /api/status
}

func newScripted(t *testing.T, answer func(what string, call int, line string) string) *scripted {
	s := &scripted{calls: make(map[string]int)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		what := path.Base(req.URL.Path)
		s.calls[what]++
		body, _ := io.ReadAll(req.Body)
		switch what {
		case "begin":
			clear(s.calls)
			io.WriteString(w, `{"run":"r","began":"2026-01-31T08:00:00Z","known":7}`)
		case "known":
			io.WriteString(w, `{"tenants":[],"more":false}`)
		case "end":
			s.end = string(body)
			io.WriteString(w, cmp.Or(s.ended, `{}`))
		case "status":
			io.WriteString(w, s.status)
		default:
			var lines []string
			for line := range strings.Lines(string(body)) {
				lines = append(lines, answer(what, s.calls[what], strings.TrimSpace(line)))
			}
			fmt.Fprintf(w, `{"lines":[%s]}`, strings.Join(lines, ","))
		}
	}))
	t.Cleanup(srv.Close)
	s.environ = []string{"USHER_ADMIN_LISTEN=" + srv.Listener.Addr().String()}
	return s
}

// run runs usher reconcile with a script.
func (s *scripted) run(t *testing.T, flags, script string) *testkit.Usher {
	t.Helper()
	p := startProcess(t, s.environ, append(append([]string{"reconcile", "--as-of", "1m"}, strings.Fields(flags)...), "--", "sh", "-c", script)...)
	<-p.Ended
	return p
}

// The settings of the server may change during a run: then it sees a line in another way at the second look.
func TestReconcileWhileTheServerChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, second, applied string
		code                  int
		want, end             string
	}{
		{"a fault", `"fault":"it is too large"`, "", 1, "line 2: it is too large", `"complete":false`},
		{"passed over", `"passed_over":true`, "", 0, "1 tenant passed over", `"complete":true`},
		{"no result", `"result":""`, "", 1, "is not usher, or another version of it", `"complete":false`},
		{"a result that nobody knows", `"result":"better"`, "", 1, `it says "better" of the tenant crm/b`, `"complete":false`},
		{"a fault when it is applied", `"result":"differs"`, `"fault":"it is too large"`, 1, "1 line cannot be taken in", `"differs":1`},
		{"passed over when it is applied", `"result":"differs"`, `"passed_over":true`, 0, "1 tenant passed over", `"differs":0`},
		{"no result when it is applied", `"result":"differs"`, `"result":""`, 1, "is not usher, or another version of it", `"differs":1`},
	} {
		s := newScripted(t, func(what string, call int, line string) string {
			says := `"result":"differs"`
			switch {
			case what == "apply":
				says = c.applied
			case line == "a":
				says = `"result":"equal"`
			case call == 2:
				says = c.second
			}
			return fmt.Sprintf(`{"platform":"crm","tenant":%q,"state":"s",%s}`, line, says)
		})
		p := s.run(t, "--apply --yes", "echo a; echo b")
		if out := p.Stdout.String() + p.Stderr.String(); p.Code != c.code || !strings.Contains(out, c.want) || !strings.Contains(s.end, c.end) {
			t.Errorf("%s: %d\n%s%s", c.name, p.Code, out, s.end)
		}
	}
	// A tenant that was printed twice.
	s := newScripted(t, func(what string, call int, line string) string {
		if line == "a2" && call == 2 {
			return `{"fault":"it is too large"}`
		}
		return fmt.Sprintf(`{"platform":"crm","tenant":"a","state":%q,"result":"equal"}`, line)
	})
	if p := s.run(t, "", "echo a; echo a2"); p.Code != 1 || !strings.Contains(p.Stderr.String(), "line 2: it is too large") {
		t.Errorf("printed twice: %d %s", p.Code, p.Stderr.String())
	}
}

// A run that compared nothing has most likely the list of another platform: it is not complete.
func TestReconcileComparesNothing(t *testing.T) {
	t.Parallel()
	s := newScripted(t, func(_ string, _ int, line string) string {
		return fmt.Sprintf(`{"platform":"cmr%s","tenant":%q,"state":"s","passed_over":true}`, line[:1], line)
	})
	p := s.run(t, "", "echo 1a; echo 1b; echo 2")
	if p.Code != 1 || !strings.Contains(p.Stderr.String(), "nothing was compared: no receiver takes these platforms: cmr1, cmr2. Are they right?") || !strings.Contains(s.end, `"complete":false`) {
		t.Errorf("%d %s%s%s", p.Code, p.Stdout.String(), p.Stderr.String(), s.end)
	}
}

// Two digests that begin in the same way are two.
func TestReconcileTellsStatesApart(t *testing.T) {
	t.Parallel()
	s := newScripted(t, func(_ string, _ int, line string) string {
		return fmt.Sprintf(`{"platform":"crm","tenant":"a","state":"0123456789abcdef%s","result":"equal"}`, line)
	})
	if p := s.run(t, "", "echo 1; echo 2"); p.Code != 1 || !strings.Contains(p.Stderr.String(), "line 2: the tenant crm/a was printed before") {
		t.Errorf("%d %s%s", p.Code, p.Stdout.String(), p.Stderr.String())
	}
}

// The next command is one that can be copied. A command that cannot be is not printed.
func TestReconcileSaysTheNextCommand(t *testing.T) {
	t.Parallel()
	s := newScripted(t, func(_ string, _ int, line string) string {
		return fmt.Sprintf(`{"platform":"crm","tenant":%q,"state":"s","result":"differs"}`, line)
	})
	for script, want := range map[string]string{
		"echo a":         " -- sh '-c' 'echo a'\n",
		"echo a\necho b": " -- CMD ARG...  (the same command)\n",
	} {
		if p := s.run(t, "", script); p.Code != 3 || !strings.Contains(p.Stdout.String(), want) {
			t.Errorf("%q: %d %s", script, p.Code, p.Stdout.String())
		}
	}
}

// After a tenant that cannot be taken in, nothing more is tried, and all that is not taken in is listed.
func TestReconcileStopsWhenTheInboxIsFull(t *testing.T) {
	t.Parallel()
	s := newScripted(t, func(what string, call int, line string) string {
		says := `"result":"differs","changes":["+ a"]`
		switch n, _ := strconv.Atoi(line); {
		case what == "apply" && (n < 10 || call > 1):
			says += `,"applied":true`
		case what == "apply" && n == 10:
			says += `,"error":"the inbox is full"`
		case what == "apply":
			says = `"tenant_was":"not tried"`
		}
		return fmt.Sprintf(`{"platform":"crm","tenant":%q,"state":"s",%s}`, line, says)
	})
	const script = `n=0; while test $n -lt 450; do echo $n; n=$((n+1)); done`
	p := s.run(t, "--apply --max 0 --yes --json", script)
	out := p.Stdout.String()
	if p.Code != 1 || s.calls["apply"] != 1 || !strings.Contains(p.Stderr.String(), "not all were taken in: the inbox is full") || !strings.Contains(out, `"differs":450`) || !strings.Contains(out, `"applied":10,`) {
		t.Errorf("%d, applied %d times: %s", p.Code, s.calls["apply"], p.Stderr.String())
	}
	if applied, left := strings.Count(out, `"changes":["+ a"],"applied":true`), strings.Count(out, `"changes":["+ a"],"applied":false`); applied != 10 || left != 440 {
		t.Errorf("%d applied, %d left", applied, left)
	}
	if p := s.run(t, "--apply --max 0 --yes", script); p.Code != 1 || !strings.Contains(s.end, `"applied":10,`) {
		t.Errorf("%d %s", p.Code, s.end)
	}
}

// It needs a gate and an inbox.
func TestReconcileNeedsAnInbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	u := start(t, w.environ()).ready(t)
	p := startProcess(t, append(w.environ(), "USHER_ADMIN_LISTEN="+u.admin), "reconcile", "--", "true")
	if <-p.Ended; p.Code != 1 || !strings.Contains(p.Stderr.String(), "no inbox") {
		t.Errorf("%d %s", p.Code, p.Stderr.String())
	}
}

// Comparing needs a token that may act.
func TestReconcileNeedsTheRightToAct(t *testing.T) {
	t.Parallel()
	r := newReconciler(t, "USHER_ADMIN_TOKEN="+adminToken, "USHER_ADMIN_READ_TOKEN=r3ad-only")
	req := func(token string) int {
		status := 0
		for _, call := range []string{"begin", "compare?run=x", "apply?run=x", "known?run=x", "end?run=x"} {
			got := r.act(call, token)
			if status = got.status; token == "r3ad-only" && status != 403 {
				t.Errorf("%s: %d %s", call, got.status, got.body)
			}
		}
		return status
	}
	req("r3ad-only")
	if got := req(adminToken); got != 400 && got != 409 {
		t.Errorf("a run that nobody began: %d", got)
	}
	out, stderr, code := r.run("--json", `cat "$LINES_FILE"; env >&2`, payload("new"))
	var summary struct{ Summary struct{ Missing int } }
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &summary); err != nil || summary.Summary.Missing != 1 || code != 3 {
		t.Errorf("%d %s %s", code, out, stderr)
	}
	for _, secret := range []string{adminToken, clientSecret, "r3ad-only"} {
		if strings.Contains(stderr, secret) {
			t.Errorf("%s reaches the command", secret)
		}
	}
}
