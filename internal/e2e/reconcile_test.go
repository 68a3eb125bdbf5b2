//go:build unix

package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// payload is what the service says of a tenant, on the platform crm unless it names another.
func payload(tenant string, features ...string) string {
	if !strings.Contains(tenant, "/") {
		tenant = "crm/" + tenant
	}
	return testkit.Says(tenant, features...)
}

// hears has usher take in a webhook, which is delivered.
func (o *office) hears(tenant string, features ...string) {
	o.t.Helper()
	if r := o.send(`{"type":"TenantProvisioningChange","payload":`+payload(tenant, features...)+`}`, webhookToken); r.status != 200 {
		o.t.Fatalf("%s: %d %s", tenant, r.status, r.body)
	}
	o.delivered()
}

// reconcile is usher reconcile with flags, and a script that finds the lines in the file $LINES.
func (o *office) reconcile(flags, script string, lines ...string) string {
	o.t.Helper()
	file := filepath.Join(o.t.TempDir(), "lines")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		o.t.Fatal(err)
	}
	args := append(append([]string{"reconcile"}, strings.Fields(flags)...), "--", "sh", "-c", script)
	code, stdout, stderr := ended(o.t, append(o.environ(), "LINES="+file), args...)
	return fmt.Sprintf("%d %s%s", code, stdout, stderr)
}

const printLines = `cat "$LINES"`

// A change whose webhook was lost: the first run says it, --apply delivers it, and after that nothing differs.
func TestReconcile(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, 200)
	o := openOffice(t, rc, fileInbox(t.TempDir()))
	o.hears("acme", "users=25", "sso")
	o.hears("globex", "users=1")
	o.hears("gone", "users=1")
	o.hears("crm2/initech", "users=1")
	lines := []string{payload("acme", "users=30", "api"), payload("globex", "users=1"), payload("new", "sso")}
	o.want("the first run", o.reconcile("", printLines+"; env >&2", lines...),
		"3 ", "differs  crm/acme                  users 25 → 30, + api, - sso\n", "new      crm/new ", "+ sso\n", "unlisted crm/gone ", "unlisted crm2/initech ",
		"\nCompared: 1 equal, 1 differs, 1 new, 2 unlisted.\n", "To take in what differs or is new:\n  usher reconcile --apply -- sh '-c' ", "!globex", "!"+anasToken)
	o.want("nothing has changed", o.asks("entitlements", "acme"), "sso", "!api")
	o.want("--apply", o.reconcile("--apply --yes", printLines, lines...), "3 ", "2 tenants taken in")
	o.want("usher answers by what was taken in", o.asks("entitlements", "acme"), "api", "!sso")
	o.delivered()
	if r, _ := rc.last(t); rc.count() != 6 || r.Header.Get("usher-source") != "reconcile" || r.Header.Get("webhook-id") == "" {
		t.Errorf("the receiver got %d, the last one %v", rc.count(), r.Header)
	}
	alike := payload("initech", "users=2")
	o.want("a code on another platform", o.reconcile("--apply --yes", printLines, append(lines, alike)...),
		"1 ", "crm/initech is new, and usher knows crm2/initech, which the command did not print", "Nothing was taken in")
	o.want("--json", o.reconcile("--json --apply --no-deliver --yes", printLines, append(lines, payload("third", "a"), payload("crm2/initech", "users=2"))...),
		`3 {"result":"unlisted","platform":"crm","tenant":"gone","changes":[],"applied":false}`,
		`{"result":"differs","platform":"crm2","tenant":"initech","changes":["users 1 → 2"],"applied":true}`,
		`{"result":"new","platform":"crm","tenant":"third","changes":["+ a"],"applied":true}`,
		`{"summary":{"applied":2,"differs":1,"equal":3,"left":0,"new":1,"passed_over":0,"unlisted":1}}`)
	if rc.count() != 6 {
		t.Errorf("--no-deliver delivered %d", rc.count()-6)
	}
	if actions := o.does("actions"); strings.Count(actions, "  reconcile  ") != 4 || !regexp.MustCompile(`reconcile +2 .* --apply\n`).MatchString(actions) {
		t.Errorf("actions:\n%s", actions)
	}
	o.want("where it came from", o.does("ls", "--json"), `"source":"reconcile"`)
}

// Whatever is doubtful: what could be compared is printed, nothing is applied, and nobody is unlisted.
func TestReconcileFails(t *testing.T) {
	t.Parallel()
	differs := payload("acme", "users=30")
	for name, tc := range map[string]struct {
		flags, script, want string
		lines               []string
	}{
		"the command fails":             {"", printLines + `; exit 7`, "the command failed: its exit code is 7", []string{differs}},
		"it is killed":                  {"", printLines + `; kill -9 $$`, "its exit code is 137", []string{differs}},
		"it prints nothing":             {"", `true`, "the command printed nothing", nil},
		"a faulty line":                 {"", printLines, "line 2: /payload/tenant/code is missing", []string{differs, `{"tenant":{},"change":{}}`}},
		"half a line":                   {"", printLines, "line 2: the body is not JSON", []string{differs, payload("new")[:20]}},
		"features that cannot be read":  {"", printLines, "line 1: /payload/change/features cannot be read", []string{`{"tenant":{"code":"acme"},"change":{"features":null}}`, differs}},
		"a tenant twice, not the same":  {"", printLines, "line 3: the tenant crm/acme was printed before, with other features", []string{differs, differs, payload("acme", "users=31")}},
		"more than --max":               {"--max 1", printLines, "2 tenants would be taken in, but --max allows only 1", []string{differs, payload("new")}},
		"more than --max is by default": {"", printLines, "6 tenants would be taken in, but --max allows only 5", []string{differs, payload("a"), payload("b"), payload("c"), payload("d"), payload("e")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits five seconds
			o := openOffice(t, newReceiver(t, 200), fileInbox(t.TempDir()))
			o.hears("acme", "users=25")
			o.hears("gone", "users=25")
			out := o.reconcile("--apply --yes "+tc.flags, tc.script, tc.lines...)
			o.want("it", out, "1 ", tc.want)
			if strings.Contains(tc.want, "--max") != strings.Contains(out, "unlisted crm/gone") || len(tc.lines) > 0 && !strings.Contains(out, "crm/acme") {
				t.Errorf("what could be compared:\n%s", out)
			}
			o.want("what acme may use", o.asks("entitlements", "acme", "users"), "limit 25")
		})
	}
}

func TestReconcileUsage(t *testing.T) {
	t.Parallel()
	ran := filepath.Join(t.TempDir(), "ran")
	for args, want := range map[string]string{
		"--apply --yes --":               "2 usher reconcile needs a command",
		"--partial":                      "--partial needs a command",
		"--apply":                        "there is no terminal: use --yes",
		"--since soon":                   "write a time",
		"--since 3d -- touch " + ran:     "--since is for the webhook log",
		"touch " + ran:                   "2 usher reconcile: write -- before the command",
		"--no-deliver -- touch " + ran:   "--no-deliver is only for --apply",
		"--yes -- touch " + ran:          "--yes is only for --apply",
		"--apply -- touch " + ran:        "there is no terminal: use --yes",
		"--apply --yes --max -3 -- true": "write a whole number",
		"--frobnicate -- touch " + ran:   "it has --apply",
		"--apply --yes -- touch " + ran:  "cannot reach usher at 127.0.0.1:1", // nobody answers
	} {
		code, out, problem := ended(t, []string{"USHER_ADMIN_LISTEN=127.0.0.1:1"}, append([]string{"reconcile"}, strings.Fields(args)...)...)
		wanted := 2
		if strings.HasPrefix(want, "cannot reach") {
			wanted = 1
		}
		want = strings.TrimPrefix(want, "2 usher reconcile")
		if code != wanted || !strings.Contains(out+problem, strings.TrimLeft(want, ": ")) {
			t.Errorf("usher reconcile %s: %d\n%s%s", args, code, out, problem)
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the command ran")
	}
}

// What was lost is in the service's log: the first run says it, --apply delivers it, and after that nothing differs.
func TestReconcileWithTheLog(t *testing.T) {
	t.Parallel()
	gate := testkit.FreeAddress(t)
	address := "http://" + gate + "/webhooks"
	s := startSandbox(t, "--webhooks-to", address, "--token", webhookToken)
	// What is younger than 30 seconds may still come by itself. So this service's clock is a minute ahead of its log's.
	service, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	var read atomic.Int32
	ahead := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(service) },
		ModifyResponse: func(r *http.Response) error {
			r.Header.Set("Date", time.Now().Add(time.Minute).UTC().Format(http.TimeFormat))
			if r.Request.URL.Path == "/graphql" {
				read.Add(1)
			}
			return nil
		},
	})
	defer ahead.Close()
	environ := append(s.environ, "USHER_BASE_URL="+ahead.URL, "USHER_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_LISTEN="+gate,
		"USHER_LOG_FORMAT=json", "USHER_WEBHOOK_ANSWER_WITHIN=10s", fileInbox(t.TempDir()))
	reconcile := func(u *usher, args string) string {
		code, stdout, stderr := ended(t, []string{"USHER_ADMIN_LISTEN=" + u.admin}, append([]string{"reconcile"}, strings.Fields(args)...)...)
		return fmt.Sprintf("%d %s%s", code, stdout, stderr)
	}
	want := func(what, got string, all ...string) {
		t.Helper()
		for _, w := range all {
			if !strings.Contains(got, w) {
				t.Errorf("%s: no %q in:\n%s", what, w, got)
			}
		}
	}
	u := startBuilt(t, environ).ready(t)
	want("without the setting", reconcile(u, ""), "2 ", "set USHER_WEBHOOK_CATCH_UP_URL for it, or reconcile with a command")
	u.Stop()
	<-u.Ended

	u = startBuilt(t, append(environ, "USHER_WEBHOOK_CATCH_UP_URL="+address)).ready(t)
	testkit.Eventually(t, "usher's own first run", func() bool { return read.Load() > 0 })
	s.want(t, 0, "nothing was sent\n", "send", "acme", "users=30", "--lost")
	want("the first run", reconcile(u, ""), "3 new      crm/acme                  + users (30)\n", "Compared: 1 new.\n",
		"Nothing was changed. To take in what differs or is new:\n  usher reconcile --apply\n")
	want("--json", reconcile(u, "--json --since 1h"), `3 {"result":"new","platform":"crm","tenant":"acme","changes":["+ users (30)"],"applied":false}`, `{"summary":{"applied":0,`)
	if strings.Contains(s.Stderr.String(), "receiver: acme") {
		t.Error("it was delivered, and nobody asked for that")
	}
	want("--apply", reconcile(u, "--apply --yes"), "0 new      crm/acme", "1 tenant taken in.")
	testkit.Eventually(t, "delivered", func() bool {
		return strings.Contains(s.Stderr.String(), "receiver: acme (crm/acme): users ≤ 30: 200\n")
	})
	want("again", reconcile(u, ""), "0 Nothing differs. Compared: 1 equal.\n")
	code, actions, _ := ended(t, []string{"USHER_ADMIN_LISTEN=" + u.admin}, "inbox", "actions")
	if code != 0 || strings.Count(actions, "  reconcile  ") != 4 || !regexp.MustCompile(`reconcile +1 .* --apply\n`).MatchString(actions) {
		t.Errorf("%d %s", code, actions)
	}

	u.Stop()
	<-u.Ended
	s.want(t, 0, "nothing was sent\n", "send", "globex", "users=5", "--lost")
	u = startBuilt(t, append(environ, "USHER_WEBHOOK_CATCH_UP_URL="+address)).ready(t)
	const caughtUp = "usher caught up 1 webhook of 1 tenant, sent while usher was down ("
	testkit.Eventually(t, "the overview says what was caught up", func() bool {
		return strings.Contains(asked(t, "GET", "http://"+u.admin+"/", "", "Accept", "text/html").body, caughtUp)
	})
	_, status, _ := ended(t, []string{"USHER_ADMIN_LISTEN=" + u.admin}, "status")
	want("usher status", status, "\n"+caughtUp)
}

// A child that the command leaves behind has its output open: that does not delay the end.
func TestReconcileDoesNotWaitForChildren(t *testing.T) {
	t.Parallel()
	o := openOffice(t, newReceiver(t, 200), fileInbox(t.TempDir()))
	pid := filepath.Join(t.TempDir(), "pid")
	out := o.reconcile("--json --apply --yes", printLines+`; (sleep 3000; echo x) 2>/dev/null & echo $! > '`+pid+`'`, payload("acme", "a"), "")
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	var child int
	fmt.Sscan(string(text), &child)
	_ = syscall.Kill(child, syscall.SIGKILL)
	o.want("it", out, "0 ", `"new":1`, `"applied":1`)
}

// A signal means usher, too, though the command may survive it and end well: nothing is taken in.
func TestReconcileIsInterrupted(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel() // it waits five seconds
			o := openOffice(t, newReceiver(t, 200), fileInbox(t.TempDir()))
			o.hears("acme", "users=25")
			dir := t.TempDir()
			script := fmt.Sprintf("cd '%s'; trap 'touch got' %d; echo '%s'; touch started; n=0; until test -e got || test $n = 4000; do sleep 0.01; n=$((n+1)); done", dir, sig, payload("acme", "users=30"))
			p := startProcess(t, o.environ(), "reconcile", "--apply", "--yes", "--", "sh", "-c", script)
			testkit.Eventually(t, "started", func() bool { _, err := os.Stat(filepath.Join(dir, "started")); return err == nil })
			p.Signal(t, sig)
			if <-p.Ended; p.Code != 1 || !strings.Contains(p.Stderr.String(), "reconcile failed: interrupted") || !strings.Contains(p.Stdout.String(), "differs  crm/acme") {
				t.Errorf("%d %s %s", p.Code, p.Stdout.String(), p.Stderr.String())
			}
			o.want("what acme may use", o.asks("entitlements", "acme", "users"), "limit 25")
		})
	}
}

// A list that lags behind the service's webhooks is asked for later: nobody is put back to an older state.
func TestReconcileBringsBackNothing(t *testing.T) {
	t.Parallel()
	o := openOffice(t, newReceiver(t, 200), fileInbox(t.TempDir()))
	o.hears("acme", "users=1")
	heard := time.Now().Unix()
	o.hears("acme", "users=60")
	lags := fmt.Sprintf(`if [ $(($(date +%%s) - %d)) -lt 4 ]; then echo '%s'; else echo '%s'; fi`, heard, payload("acme", "users=1"), payload("acme", "users=60"))
	o.want("a list that lags", o.reconcile("--apply --yes", lags), "0 ", "Nothing differs")
	o.want("what acme may use", o.asks("entitlements", "acme", "users"), "limit 60")
}

// TestReconcileMany compares 100,000 tenants of which 50 differ, while webhooks come, with the long form; else 250, of
// which 10 do. What is judged is memory: less than 100 MB more in usher, and less than 100 MB in the command.
func TestReconcileMany(t *testing.T) {
	t.Parallel()
	tenants, differ := pick(250, 100_000), pick(10, 50)
	for _, engine := range []string{"file", "database"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			w, dir := newWorld(t), t.TempDir()
			inbox := fileInbox(dir)
			if engine == "database" {
				inbox = "USHER_WEBHOOK_INBOX=" + pgtest.Schema(t)
			}
			u := startBuilt(t, w.environ(inbox)).ready(t)
			environ := []string{"USHER_ADMIN_LISTEN=" + u.admin}
			known, lines := filepath.Join(dir, "known"), filepath.Join(dir, "lines")
			writeTenants(t, known, tenants, func(int) bool { return false })
			writeTenants(t, lines, tenants, func(n int) bool { return n%(tenants/differ) == 0 })
			p := startProcess(t, environ, "reconcile", "--apply", "--no-deliver", "--max", "0", "--yes", "--", "cat", known)
			if <-p.Ended; p.Code != 0 {
				t.Fatal(p.Stderr.String())
			}
			if *long { // what was stored is finished, and more than is kept: usher deletes it in steps
				time.Sleep(40 * time.Second)
			}
			before, began, peak, command := statusMB(u.Process.Pid, "VmRSS:"), time.Now(), 0, 0
			p = startProcess(t, environ, "reconcile", "--partial", "--apply", "--yes", "--", "cat", lines)
			var watch sync.WaitGroup
			watch.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-p.Ended:
						return
					default:
					}
					peak, command = max(peak, statusMB(u.Process.Pid, "VmRSS:")), max(command, statusMB(p.Process.Pid, "VmHWM:"))
					// They come while it runs, and are changed or unknown to the list.
					if got := u.send(`{"type":"TenantProvisioningChange","payload":` + payload(fmt.Sprint("other-", n%50), fmt.Sprint("n=", n)) + `}`); got.status != 200 {
						t.Errorf("%d %s", got.status, got.body)
					}
					time.Sleep(10 * time.Millisecond) // a sender's own pace
				}
			})
			<-p.Ended
			took := time.Since(began)
			watch.Wait()
			if want := fmt.Sprintf("%d tenants taken in", differ); p.Code != 0 || !strings.Contains(p.Stdout.String(), want) {
				t.Errorf("%d\n%s%s", p.Code, p.Stdout.String(), p.Stderr.String())
			}
			if more := peak - before; more > 100 || command > 100 {
				t.Errorf("usher has %d MB more, the command %d MB", more, command)
			}
			t.Logf("%d tenants in %.1f s; usher %d MB, %d before; the command %d MB", tenants, took.Seconds(), peak, before, command)
		})
	}
}

// writeTenants writes what the service says of so many.
func writeTenants(t *testing.T, path string, n int, differs func(int) bool) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := bufio.NewWriter(f)
	for i := range n {
		features := []string{fmt.Sprint("users=", i), "sso", "api=5"}
		if differs(i) {
			features = []string{"users=7", "sso"}
		}
		fmt.Fprintln(out, payload(fmt.Sprint("tenant-", i), features...))
	}
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
}
