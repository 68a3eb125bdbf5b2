//go:build unix

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/command"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// run runs usher in this process, with arguments, until the test ends.
func run(t *testing.T, environ []string, args ...string) *testkit.Usher {
	t.Helper()
	return testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int {
		return command.Main(ctx, command.Process{Args: args, Environ: environ, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr})
	})
}

// ended runs a command of usher's to its end.
func ended(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	u := run(t, environ, args...)
	<-u.Ended
	return u.Code, u.Stdout.String(), u.Stderr.String()
}

// gateAlone is an usher with a gate and an admin port, and nothing else.
func gateAlone(forward string, extra ...string) []string {
	return append([]string{
		"USHER_WEBHOOK_FORWARD_URL=" + forward, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
		"USHER_WEBHOOK_ANSWER_WITHIN=10s", // a busy machine is no fault
	}, extra...)
}

func hooks(t *testing.T, u *testkit.Usher) string {
	t.Helper()
	return u.URL(t, "webhooks") + "/webhooks"
}

// on is a snapshot of a tenant on a platform.
func on(platform, tenant string, users int) string {
	return strings.Replace(testkit.Snapshot(tenant, users), `"code":"crm"`, `"code":"`+platform+`"`, 1)
}

// asked sends a request with headers, as names and values; Host is one.
func asked(t *testing.T, method, url, body string, header ...string) reply {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	r := do(req, nil)
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r
}

// taken is an address that somebody listens on.
func taken(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// receiver is one that answers with a status, and notes what came.
type receiver struct {
	url     string
	arrived atomic.Int64 // also what is not answered yet
	mu      sync.Mutex   // guards what follows
	status  int
	words   string // the body of its answers
	got     []*http.Request
	bodies  []string
}

func newReceiver(t *testing.T, status int) *receiver {
	t.Helper()
	rc := &receiver{status: status}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		rc.arrived.Add(1)
		rc.mu.Lock()
		defer rc.mu.Unlock()
		rc.got, rc.bodies = append(rc.got, r), append(rc.bodies, string(body))
		w.WriteHeader(rc.status)
		_, _ = io.WriteString(w, rc.words)
	}))
	t.Cleanup(srv.Close)
	rc.url = srv.URL
	return rc
}

func (rc *receiver) set(status int) { rc.mu.Lock(); defer rc.mu.Unlock(); rc.status = status }

func (rc *receiver) say(words string) { rc.mu.Lock(); defer rc.mu.Unlock(); rc.words = words }

func (rc *receiver) count() int { rc.mu.Lock(); defer rc.mu.Unlock(); return len(rc.got) }

// last is what came last.
func (rc *receiver) last(t *testing.T) (*http.Request, string) {
	t.Helper()
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if len(rc.got) == 0 {
		t.Fatal("nothing came")
	}
	return rc.got[len(rc.got)-1], rc.bodies[len(rc.bodies)-1]
}

// states are those of an inbox's webhooks, by id: "1 waiting, 2 parked".
func states(t *testing.T, u *testkit.Usher) string {
	t.Helper()
	_, out, _ := ended(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(u.URL(t, "admin"), "http://")}, "inbox", "ls", "--limit", "0")
	var all []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line) // the newest first
		all = append([]string{fmt.Sprint(f[0], " ", f[1])}, all...)
	}
	return strings.Join(all, ", ")
}

// onInboxes runs a test on an inbox in a file, and thoroughly on one in a database: it takes three times as
// long there, and what is promised does not depend on it.
func onInboxes(t *testing.T, test func(t *testing.T, inbox string)) {
	if thorough() {
		onBothInboxes(t, test)
		return
	}
	t.Parallel()
	test(t, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"))
}

// onBothInboxes is for tests that run the built usher, which has no thorough run, and for what only SQL shows.
func onBothInboxes(t *testing.T, test func(t *testing.T, inbox string)) {
	t.Parallel()
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		test(t, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		test(t, "USHER_WEBHOOK_INBOX="+pgtest.Schema(t))
	})
}

// hostOf is where the server of an inbox listens.
func hostOf(t *testing.T, inbox string) string {
	t.Helper()
	address, err := url.Parse(inbox)
	if err != nil {
		t.Fatal(err)
	}
	return address.Host
}

// inboxIn runs usher inbox against a running usher, in this process.
func inboxIn(t *testing.T, u *testkit.Usher, args ...string) (code int, out string) {
	t.Helper()
	code, stdout, stderr := ended(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(u.URL(t, "admin"), "http://")}, append([]string{"inbox"}, args...)...)
	return code, stdout + stderr
}

func fileInbox(dir string) string {
	return "USHER_WEBHOOK_INBOX=file:" + filepath.Join(dir, "inbox.db")
}

// figures are those of /metrics, by name and labels as Prometheus writes them.
func figures(t *testing.T, u *testkit.Usher) map[string]string {
	t.Helper()
	_, metrics := testkit.Get(t, u.URL(t, "admin")+"/metrics")
	all := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^(usher_\S+) (\S+)$`).FindAllStringSubmatch(metrics, -1) {
		all[m[1]] = m[2]
	}
	return all
}

// wantFigures waits for figures: who counts may be a moment behind the answer. "positive" is any
// but zero.
func wantFigures(t *testing.T, u *testkit.Usher, want map[string]string) {
	t.Helper()
	for name, value := range want {
		var got string
		defer func() {
			if t.Failed() {
				t.Logf("%s is %q", name, got)
			}
		}()
		testkit.Eventually(t, name+" is "+value, func() bool {
			got = figures(t, u)[name]
			return got == value || value == "positive" && got != "" && got != "0"
		})
	}
}

// office is an usher with an inbox, and how people and senders meet it. Admins are ana and, at the terminal, too.
type office struct {
	*testkit.Usher
	t *testing.T
}

const anasToken = "an4s-t0ken"

func openOffice(t *testing.T, rc *receiver, inbox string, extra ...string) *office {
	o := &office{run(t, gateAlone(rc.url, append([]string{inbox, "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_TOKEN=" + webhookToken,
		"USHER_WEBHOOK_MAX_BODY=100KiB", "USHER_ADMIN_TOKEN=ana:" + anasToken}, extra...)...)), t}
	o.Ready(t)
	return o
}

func (o *office) send(body string, token string) reply {
	o.t.Helper()
	return asked(o.t, "POST", hooks(o.t, o.Usher), body, "Content-Type", "application/json", "X-Webhook-Token", token)
}

// environ is what a command of ana's needs.
func (o *office) environ() []string {
	o.t.Helper()
	return []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(o.URL(o.t, "admin"), "http://"), "USHER_ADMIN_TOKEN=" + anasToken, "PATH=" + os.Getenv("PATH")}
}

// asks is a command of usher's: its exit code before what it prints.
func (o *office) asks(args ...string) string {
	o.t.Helper()
	code, stdout, stderr := ended(o.t, o.environ(), args...)
	return fmt.Sprintf("%d %s%s", code, stdout, stderr)
}

// does is usher inbox.
func (o *office) does(args ...string) string {
	o.t.Helper()
	return o.asks(append([]string{"inbox"}, args...)...)
}

func (o *office) page(path string) string {
	o.t.Helper()
	return asked(o.t, "GET", o.URL(o.t, "admin")+path, "", "Authorization", "Bearer "+anasToken, "Accept", "text/html").body
}

// overview is what the page says of now.
func (o *office) overview() string { o.t.Helper(); return testkit.Wrong(o.page("/")) }

// figure waits until a figure is what it should be: it may be as old as counting takes.
func (o *office) figure(name, value string) {
	o.t.Helper()
	testkit.Eventually(o.t, name+" is "+value, func() bool { return strings.Contains(o.page("/metrics"), "\n"+name+" "+value+"\n") })
}

// may is what the tenant may use, as soon as the inbox can be read: a busy database may take longer than usher waits.
func (o *office) may(tenant string) (answer string) {
	o.t.Helper()
	testkit.Eventually(o.t, "the inbox can be read", func() bool {
		_, answer = testkit.Get(o.t, o.URL(o.t, "entitlements")+"/v1/entitlements/"+tenant+"/users")
		return !strings.Contains(answer, "NOT_READY")
	})
	return answer
}

// latest is the id of the newest webhook of a state.
func (o *office) latest(state string) string {
	o.t.Helper()
	_, list, _ := strings.Cut(o.does("ls", "--state", state), " ")
	id, _, _ := strings.Cut(list, " ")
	return id
}

func (o *office) want(what, got string, parts ...string) {
	o.t.Helper()
	for _, part := range parts {
		if not, is := strings.CutPrefix(part, "!"); is && strings.Contains(got, not) || !is && !strings.Contains(got, part) {
			o.t.Errorf("%s: %q in\n%.3000s", what, part, got)
		}
	}
}

// odd is a webhook of the right sender that usher rejects: its quantity is no number.
func odd(tenant string, users int) string {
	return strings.Replace(testkit.Snapshot(tenant, users), fmt.Sprintf(`"quantity":%d`, users), fmt.Sprintf(`"quantity":"%d"`, users), 1)
}

// invalidOf are the ids of a tenant's invalid webhooks.
func invalidOf(t *testing.T, u *testkit.Usher, tenant string) (ids []string) {
	t.Helper()
	_, list := testkit.Get(t, u.URL(t, "admin")+"/api/webhooks?state=invalid&tenant="+url.QueryEscape(tenant))
	for _, id := range regexp.MustCompile(`"id":"(\d+)"`).FindAllStringSubmatch(list, -1) {
		ids = append(ids, id[1])
	}
	return ids
}

// delivered waits until nothing waits any more.
func (o *office) delivered() {
	o.t.Helper()
	testkit.Eventually(o.t, "delivered", func() bool { return o.does("ls", "--state", "waiting") == "0 " })
}

// wellAgain waits until nothing is wrong any more.
func (o *office) wellAgain() {
	o.t.Helper()
	testkit.Eventually(o.t, "all is well", func() bool {
		return strings.HasPrefix(o.asks("status"), "0 ") && strings.Contains(o.asks("status"), "\nAll is well.\n") && strings.Contains(o.overview(), "All is well.")
	})
}

// troubled waits until the page and 'usher status' say the same words, with an exit code that is not 0. The
// page has a colour for critical and warning.
func (o *office) troubled(words ...string) {
	o.t.Helper()
	says := func(text string) bool {
		for _, w := range words {
			if (w == "critical" || w == "warning") && strings.HasPrefix(text, "1 ") {
				w += ": "
			}
			if !strings.Contains(text, w) {
				return false
			}
		}
		return true
	}
	var status, page string
	began := time.Now()
	testkit.Eventually(o.t, fmt.Sprintf("told %q", words), func() bool {
		status, page = o.asks("status"), o.overview()
		page = strings.NewReplacer(`<li class="bad">`, "critical", `<li class="warn">`, "warning", "&#39;", "'", "&#43;", "+", "&#34;", `"`, "\u00a0", " ", "\u202f", "").Replace(page)
		return strings.HasPrefix(status, "1 ") && says(status) && says(page)
	})
	o.t.Logf("told %q after %s", words[0], time.Since(began).Round(time.Second/10))
	o.want("status", status, "!All is well")
	o.want("page", page, "!All is well")
}
