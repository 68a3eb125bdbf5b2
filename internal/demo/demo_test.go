package demo

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"usher/internal/testkit"
)

// TestMain makes the demo tell its story without pauses.
func TestMain(m *testing.M) {
	beat, webhookEvery = 10*time.Millisecond, 200*time.Millisecond
	testkit.Main(m)
}

// start runs the demo until the test ends.
func start(t *testing.T, environ []string) *testkit.Usher {
	t.Helper()
	return testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int {
		if err := Run(ctx, Config{Program: "go run .", Environ: environ, Stdout: stdout, Stderr: stderr}); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		return 0
	})
}

var demoPorts = []string{"USHER_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0"}

// The demo tells its story in order, then sends webhooks, also while the receiver is down.
var demoStory = []string{
	`curl -s http://127\.0\.0\.1:\d+/graphql \\`,
	`(?m)^1\. The service sends a webhook`,
	`webhook +acme: 10 users +200 queued, delivered\n`,
	`(?m)^2\. A program calls`,
	`call without usher +401 Unauthorized\n`,
	`call through usher +200, 3 accounts\n`,
	`(?m)^3\. The service revokes the token`,
	`the service's answer to usher +401\n`,
	`usher's answer to the program +200, 3 accounts\n`,
	`(?m)^4\. `,
	`check +may acme use sso\? +403 no\n`,
	`webhook +acme: sso added +200 queued, delivered\n`,
	`check +may acme use sso\? +204 yes\n`,
	`(?m)^5\. `,
	`webhook +acme: sso added +200 duplicate, dropped\n`,
	`(?m)^6\. `,
	`webhook +acme: 10 users +200 queued, delivered\n`,
	`check +may acme use sso\? +403 no\n`,
	`(?m)^7\. Somebody forges`,
	`401 rejected\n`,
	`(?m)^8\. Your receiver goes down`,
	`200 queued, 1 waiting\n`,
	`200 queued, 2 waiting\n`,
	`200 queued, 3 waiting\n`,
	`receiver back\n`,
	`3 delivered in order, 0 waiting\n`,
	`(?m)^9\. Your receiver does not accept`,
	`webhook +acme: 200 users +200 queued, parked \(422\)\n`,
	`receiver fixed\n`,
	`usher inbox redeliver \d+ +delivered\n`,
	`(?m)^10\. usher is unreachable`,
	`webhook +globex: 10 users +no answer\n`,
	`webhook +globex: 20 users, sso +no answer\n`,
	`check +may globex use sso\? +404 unknown tenant\n`,
	`usher reconcile --apply +1 `,
	`taken in\n +globex \(crm/globex\): sso, users ≤ 20 +delivered\n +check +may globex use sso\? +204 yes\n`,
	`Try these in another terminal:\n`,
	`USHER_ADMIN_LISTEN=127\.0\.0\.1:\d+ go run \. inbox ls --limit 5\n`,
	`go run \. sandbox send acme users=300 --at http://127\.0\.0\.1:\d+\n`,
	`(?m)^\d\d:\d\d:\d\d  .*200 queued, delivered\n`,
	`the receiver is down\n`,
	`200 queued, 1 waiting\n`,
	`the receiver is back\n`,
	`(?m)^\d\d:\d\d:\d\d  .*delivered at try \d+\n`,
}

func TestDemoStory(t *testing.T) {
	t.Parallel()
	p := start(t, demoPorts)
	testkit.Eventually(t, "the story and what follows", func() bool { return strings.Contains(p.Stdout.String(), "delivered at try") })
	p.Stop()
	<-p.Ended
	rest := p.Stdout.String()
	for _, want := range demoStory {
		at := regexp.MustCompile(want).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("after what came before, no %s in:\n%s", want, p.Stdout.String())
		}
		rest = rest[at[1]:]
	}
	fits(t, p.Stdout.String())
	if log := p.Stderr.String(); p.Code != 0 || log != "" {
		t.Errorf("exit code %d, and the log says without being asked:\n%s", p.Code, log)
	}
}

// fits checks that no line is longer than 80 columns.
func fits(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// The first webhook waits for nothing: it is delivered even with pauses of an hour.
func TestDemoFirstWebhook(t *testing.T) {
	quick := beat
	beat = time.Hour
	t.Cleanup(func() { beat = quick })
	p := start(t, demoPorts)
	testkit.Eventually(t, "a webhook delivered", func() bool { return strings.Contains(p.Stdout.String(), "200 queued, delivered\n") })
}

func TestDemo(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:8080")
	if err == nil {
		defer taken.Close()
	} // else it is taken already
	p := start(t, []string{"USHER_BASE_URL=https://not.used", "USHER_KEYS=slip", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json", "USHER_LOG_LEVEL=info"})
	p.Ready(t)
	testkit.WantCall(t, p.URL(t, "main"), 200, "accounts")
	for _, want := range []string{"curl -s " + p.URL(t, "main") + "/graphql", "127.0.0.1:8080 is taken", "Ctrl-C"} {
		if !strings.Contains(p.Stdout.String(), want) {
			t.Errorf("no %q in:\n%s", want, p.Stdout.String())
		}
	}
	p.Stop()
	<-p.Ended
	if p.Code != 0 {
		t.Errorf("exit code %d: %s", p.Code, p.Stderr.String())
	}
}

// With the user's own receiver the story shows the receiver's answers: usher retries while it fails, delivers
// everything once it works, and parks what it rejects for good.
func TestDemoWithYourReceiver(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	status.Store(500)
	var unsigned atomic.Int32
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Webhook-Signature") == "" || r.URL.Path != "/provisioning" {
			unsigned.Add(1)
		}
		w.WriteHeader(int(status.Load()))
	}))
	defer receiver.Close()
	p := start(t, append(demoPorts, "USHER_WEBHOOK_FORWARD_URL="+receiver.URL+"/provisioning", "USHER_WEBHOOK_FORWARD_SIGNING_KEY=whsec_a2V5", "USHER_ADMIN_TOKEN=ana:an-admin-token,ben:another-token"))
	says := func(pattern string) {
		t.Helper()
		testkit.Eventually(t, pattern, func() bool { return regexp.MustCompile(pattern).MatchString(p.Stdout.String()) })
	}
	says(`your receiver ` + receiver.URL + `\n`)
	says(`webhook +acme: 10 users +200 queued, waiting \(500\)\n`)
	says(`webhook +acme: sso added +200 queued, waiting\n`) // behind that one
	says(`check +may acme use sso\? +204 yes\n`)
	says(`acme: 10 users +try 2: 500, waiting\n`)
	says(`From now on a webhook comes`)
	status.Store(204)
	says(`acme: 10 users +delivered \(204\) at try \d+\n`)
	says(`acme: sso added +delivered \(204\) at try 1\n`)
	status.Store(422)
	says(`200 queued, parked \(422\)\n`)
	receiver.Close()
	says(`200 queued, waiting \(no answer\)\n`)
	p.End()
	fits(t, p.Stdout.String())
	if unsigned.Load() > 0 {
		t.Errorf("%d webhooks came without a signature or elsewhere", unsigned.Load())
	}
	if log := p.Stderr.String(); p.Code != 0 || log != "" || strings.Contains(p.Stdout.String(), "goes down") {
		t.Errorf("exit code %d, the log says:\n%s\nand the story:\n%s", p.Code, log, p.Stdout.String())
	}
}

// The demo shows every part, on ports that curl and a browser can reach: it ignores off, and sockets.
func TestDemoNeedsItsPorts(t *testing.T) { // not beside TestDemo, which also takes default ports
	p := start(t, []string{"USHER_LISTEN=unix:" + filepath.Join(t.TempDir(), "calls"), "USHER_WEBHOOK_LISTEN=off", "USHER_ENTITLEMENTS_LISTEN=off", "USHER_ADMIN_LISTEN=off"})
	testkit.Eventually(t, "a webhook delivered, a call answered", func() bool {
		return strings.Contains(p.Stdout.String(), "200 queued, delivered\n") && strings.Contains(p.Stdout.String(), "200, 3 accounts")
	})
}
