//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// act makes a call of a run.
func (r *reconciler) act(body, token string) reply {
	req, err := http.NewRequest("POST", "http://"+r.admin+"/api/reconcile", strings.NewReader(body))
	if err == nil {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return do(req, err)
}

// command runs another command, and returns what it prints.
func (r *reconciler) command(args ...string) string {
	r.t.Helper()
	p := startProcess(r.t, r.environ, args...)
	<-p.Ended
	return p.Stdout.String() + p.Stderr.String()
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
	lines := []string{payload("acme", "users=30", "api"), payload("globex", "users=1"), payload("new", "sso")}
	out := r.want("", 3, []string{
		"differs  crm/acme                  users 25 → 30, + api, - sso\n", "new      crm/new ", "+ sso\n",
		"unlisted crm/gone ", "unlisted crm2/initech ", "\nCompared: 1 equal, 1 differs, 1 new, 2 unlisted.\n",
		"To take in what differs or is new:\n  usher reconcile --apply -- sh '-c' 'cat \"$LINES_FILE\"'\n",
	}, lines...)
	if strings.Contains(out, "globex") {
		t.Errorf("what is equal is printed:\n%s", out)
	}
	if check("sso") != 204 || check("api") != 403 {
		t.Error("without --apply something has changed")
	}
	testkit.Eventually(t, "delivered", func() bool { return len(r.headers()) == 4 })
	const got = 4
	r.want("--apply --yes", 3, []string{"2 tenants taken in"}, lines...)
	if check("sso") != 403 || check("api") != 204 {
		t.Error("usher does not answer by what was taken in")
	}
	testkit.Eventually(t, "delivered", func() bool { return len(r.headers()) == got+2 })
	for _, h := range r.headers()[got:] {
		if h.Get("usher-source") != "reconcile" || h.Get("webhook-id") == "" {
			t.Errorf("the receiver got %v", h)
		}
	}
	alike := payload("initech", "users=2")
	r.want("--apply --yes", 1, []string{"crm/initech is new, and usher knows crm2/initech, which the command did not print", "Nothing was taken in"}, append(lines, alike)...)
	r.want("", 3, []string{"\nCompared: 3 equal, 2 unlisted.\n"}, lines...)
	p := startProcess(t, r.environ, "inbox", "actions")
	if <-p.Ended; strings.Count(p.Stdout.String(), "  reconcile  ") != 4 || !regexp.MustCompile(`reconcile +2 .* --apply\n`).MatchString(p.Stdout.String()) {
		t.Errorf("actions:\n%s", p.Stdout.String())
	}
	p = startProcess(t, r.environ, "inbox", "ls", "--json")
	if <-p.Ended; strings.Count(p.Stdout.String(), `"source":"reconcile"`) != 2 {
		t.Errorf("ls:\n%s", p.Stdout.String())
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
{"summary":{"applied":0,"differs":1,"equal":0,"left":0,"new":2,"passed_over":0,"unlisted":1}}
`},
		{"--json --apply --no-deliver --yes", 3, `{"result":"unlisted","platform":"crm","tenant":"gone","changes":[],"applied":false}
{"result":"differs","platform":"crm","tenant":"acme","changes":["users 25 → 30"],"applied":true}
{"result":"new","platform":"crm","tenant":"new","changes":[],"applied":true}
{"result":"new","platform":"crm","tenant":"globex","changes":["+ a"],"applied":true}
{"summary":{"applied":3,"differs":1,"equal":0,"left":0,"new":2,"passed_over":0,"unlisted":1}}
`},
		{"--json", 3, `{"result":"unlisted","platform":"crm","tenant":"gone","changes":[],"applied":false}
{"summary":{"applied":0,"differs":0,"equal":3,"left":0,"new":0,"passed_over":0,"unlisted":1}}
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

// Whatever is doubtful: what could be compared is printed, nothing is applied, and nobody is unlisted.
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
		{"half a line", "", `cat "$LINES_FILE"`, "line 2: the body is not JSON", []string{differs, payload("new")[:20]}},
		{"features that cannot be read", "", `cat "$LINES_FILE"`, "line 1: /payload/change/features cannot be read", []string{`{"tenant":{"code":"acme"},"change":{"features":null}}`, differs}},
		{"twice", "", `cat "$LINES_FILE"`, "line 3: the tenant crm/acme was printed before, with other features", []string{differs, payload("acme", "users=30"), payload("acme", "users=31")}},
		{"too many", "--max 1", `cat "$LINES_FILE"`, "2 tenants would be taken in, but --max allows only 1", []string{differs, payload("new")}},
		{"more than usual", "", `cat "$LINES_FILE"`, "6 tenants would be taken in, but --max allows only 5", []string{differs, payload("a"), payload("b"), payload("c"), payload("d"), payload("e")}},
	} {
		for _, flags := range []string{"--apply --yes --json " + c.flags} {
			out, stderr, code := r.run(flags, c.script, c.lines...)
			if code != 1 || !strings.Contains(out+stderr, c.want) || len(c.lines) > 0 && !strings.Contains(out, "acme") {
				t.Errorf("%s, %s: exit code %d\n%s%s", c.name, flags, code, out, stderr)
			}
			if strings.Contains(out, `"result":"unlisted"`) && !strings.Contains(c.want, "--max") || strings.Contains(out, "unlisted crm") && !strings.Contains(c.want, "--max") {
				t.Errorf("%s: somebody is unlisted\n%s", c.name, out)
			}
		}
	}
	r.want("", 3, []string{"differs  crm/acme"}, differs)
	r.want("--apply --max 0 --yes", 3, []string{"7 tenants taken in", "unlisted crm/gone"}, differs, payload("a"), payload("b"), payload("c"), payload("d"), payload("e"), payload("f"))
}

func TestReconcileUsage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	environ := append(w.environ(), "USHER_ADMIN_LISTEN=127.0.0.1:1")
	ran := filepath.Join(t.TempDir(), "ran")
	for args, want := range map[string]string{
		"":                               "needs a command",
		"--apply --yes":                  "needs a command",
		"touch " + ran:                   "write -- before the command",
		"--no-deliver -- touch " + ran:   "--no-deliver is only for --apply",
		"--yes -- touch " + ran:          "--yes is only for --apply",
		"--apply -- touch " + ran:        "there is no terminal: use --yes",
		"--apply --yes --max -3 -- true": "write a whole number",
		"--frobnicate -- touch " + ran:   "it has --apply",
		"--apply --yes -- touch " + ran:  "1", // nobody answers
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
	if _, err := os.Stat(ran); err == nil {
		t.Error("the command ran")
	}
}

// A child that the command leaves behind has its output open: that does not delay the end. What was printed
// until the command's end counts.
func TestReconcileDoesNotWaitForChildren(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	var lines []string
	for n := range 1500 {
		lines = append(lines, payload(fmt.Sprint("tenant-", n), "a"))
	}
	lines = append(lines, "") // an end for the last line
	pid := filepath.Join(r.dir, "pid")
	out, stderr, code := r.run("--json --apply --max 0 --yes", `cat "$LINES_FILE"; (sleep 3000; echo x) 2>/dev/null & echo $! > '`+pid+`'`, lines...)
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	var child int
	fmt.Sscan(string(text), &child)
	_ = syscall.Kill(child, syscall.SIGKILL)
	if code != 0 || !strings.Contains(out, `"new":1500`) || !strings.Contains(out, `"applied":1500`) {
		t.Errorf("%d %s %s", code, out[max(0, len(out)-200):], stderr)
	}
}

// A signal goes to the command; then the run has failed, and the inbox knows that.
func TestReconcileIsInterrupted(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	r.hears("acme", "users=25")
	started := filepath.Join(r.dir, "started")
	p := startProcess(t, r.environ, "reconcile", "--", "sh", "-c", "echo '"+payload("acme", "users=30")+"'; touch "+started+"; exec sleep 3000 2>/dev/null")
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
		dir := t.TempDir()
		exists := func(name string) func() bool {
			return func() bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil }
		}
		script := fmt.Sprintf("cd '%s'; trap 'touch got' %d; echo '%s'; touch started; n=0; until test -e got || test $n = 4000; do sleep 0.01; n=$((n+1)); done", dir, sig, payload("acme", "users=30"))
		p := startProcess(t, r.environ, "reconcile", "--apply", "--yes", "--", "sh", "-c", script)
		testkit.Eventually(t, "started", exists("started"))
		p.Signal(t, sig)
		if <-p.Ended; p.Code != 1 || !strings.Contains(p.Stderr.String(), "reconcile failed: interrupted") || !strings.Contains(p.Stdout.String(), "differs  crm/acme") {
			t.Errorf("%v: %d %s %s", sig, p.Code, p.Stdout.String(), p.Stderr.String())
		}
	}
	r.want("", 3, []string{"differs  crm/acme"}, payload("acme", "users=30"))
}

// A list that lags behind the service's webhooks is asked for later: nobody is put back to an older state.
func TestReconcileBringsBackNothing(t *testing.T) {
	t.Parallel()
	r := newReconciler(t)
	r.hears("acme", "users=1")
	heard := time.Now().Unix()
	r.hears("acme", "users=60")
	old := payload("acme", "users=1")
	lags := fmt.Sprintf(`if [ $(($(date +%%s) - %d)) -lt 4 ]; then echo '%s'; else echo '%s'; fi`, heard, old, payload("acme", "users=60"))
	p := startProcess(t, r.environ, "reconcile", "--apply", "--yes", "--", "sh", "-c", lags)
	if <-p.Ended; p.Code != 0 || !strings.Contains(p.Stdout.String(), "Nothing differs") {
		t.Errorf("a list that lags: %d %s%s", p.Code, p.Stdout.String(), p.Stderr.String())
	}
	if got := r.command("entitlements", "acme", "users"); !strings.Contains(got, "60") {
		t.Errorf("it was put back: %s", got)
	}
	const call = `curl -s -o /dev/null -H 'Content-Type: application/json' -d '{"query":"{__typename}"}' "$USHER_URL"; cat "$LINES_FILE"`
	if out, stderr, code := r.run("--apply --yes", call, payload("acme", "users=61")); code != 0 || !strings.Contains(out, "1 tenant taken in") {
		t.Errorf("with a call: %d %s%s", code, out, stderr)
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
	for _, body := range []string{"", `{"run":"x","mode":"compare"}`, `{"run":"a\u0000","mode":"deliver"}` + "\n" + payload("new")} {
		if got := r.act(body, "r3ad-only"); got.status != 403 {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
		got := r.act(body, adminToken)
		if nobody := strings.Contains(got.body, "does not know this reconcile any more"); (got.status == 400) != (body == "") || nobody != (body != "") {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
	out, stderr, code := r.run("--json", `cat "$LINES_FILE"; env >&2`, payload("new"))
	var summary struct{ Summary struct{ New int } }
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &summary); err != nil || summary.Summary.New != 1 || code != 3 {
		t.Errorf("%d %s %s", code, out, stderr)
	}
	for _, secret := range []string{adminToken, clientSecret, "r3ad-only"} {
		if strings.Contains(stderr, secret) {
			t.Errorf("%s reaches the command", secret)
		}
	}
}
