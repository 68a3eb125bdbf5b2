package serve_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// of returns a snapshot of a tenant on a platform.
func of(platform, tenant string, users int) string {
	return strings.Replace(snapshot(tenant, users), `"code":"crm"`, `"code":"`+platform+`"`, 1)
}

// Two receivers are behind one gate, each for one platform. No receiver takes the third platform.
func TestTwoReceivers(t *testing.T) {
	t.Parallel()
	crm, docs := sandbox.NewReceiver(), sandbox.NewReceiver()
	crmServer, docsServer := httptest.NewServer(crm), httptest.NewServer(docs)
	defer crmServer.Close()
	defer docsServer.Close()
	env := []string{
		"USHER_WEBHOOK_RECEIVERS_0_NAME=crm", "USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=crm,mail", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=" + crmServer.URL,
		"USHER_WEBHOOK_RECEIVERS_1_PLATFORMS=docs", "USHER_WEBHOOK_RECEIVERS_1_FORWARD_URL=" + docsServer.URL + "/s3cret",
		"USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
	}
	p := start(t, env)
	url := p.URL(t, "webhooks") + "/webhooks"
	docs.Fail(sandbox.Fault{Status: 409})
	for _, step := range []struct {
		platform string
		status   int
		decision string
	}{{"crm", 200, "forwarded"}, {"crm", 200, "duplicate"}, {"mail", 200, "forwarded"}, {"docs", 502, "failed"}, {"shop", 422, "rejected"}} {
		status, decision, answer := post(t, url, of(step.platform, "acme", 5))
		if status != step.status || decision != step.decision {
			t.Errorf("%s: %d %s %s", step.platform, status, decision, answer)
		}
		if status == 422 && !strings.Contains(answer, `"path":"/payload/tenant/platform/code","message":"is \"shop\"`) {
			t.Errorf("it does not say which: %s", answer)
		}
	}
	if len(crm.Deliveries()) != 2 || len(docs.Deliveries()) != 1 {
		t.Errorf("crm got %d, docs got %d", len(crm.Deliveries()), len(docs.Deliveries()))
	}
	admin := p.URL(t, "admin")
	_, metrics := get(t, admin+"/metrics")
	for _, want := range []string{
		`usher_webhook_tries_total{receiver="crm",result="ok"} 2`, `usher_webhook_tries_total{receiver="crm",result="error"} 0`,
		`usher_webhook_tries_total{receiver="1",result="status"} 1`, `usher_webhook_try_duration_seconds_count{receiver="1"} 1`,
		`usher_webhook_received_total{decision="forwarded"} 2`, `usher_webhook_duration_seconds_count 5`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	_, page := get(t, admin+"/")
	_, status := get(t, admin+"/api/status")
	for _, want := range []string{"crm, mail", docsServer.URL, "The receiver 1 (" + docsServer.URL + ") answers 409 to everything: 1 webhook failed", "takes webhooks"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q on the page:\n%s", want, page)
		}
	}
	if !strings.Contains(status, `"name":"crm","platforms":["crm","mail"]`) || strings.Contains(status+page+p.Stderr.String(), "s3cret") {
		t.Error(status)
	}

	// nobody listens there
	env[4] = "USHER_WEBHOOK_RECEIVERS_1_FORWARD_URL=http://" + testkit.FreeAddress(t) + "/s3cret"
	c := start(t, env, "check")
	<-c.Ended
	out := c.Stdout.String()
	if c.Code != 1 || !strings.Contains(out, "ok    receiver crm: "+strings.TrimPrefix(crmServer.URL, "http://")) ||
		!strings.Contains(out, "FAIL  receiver 1: ") || !strings.Contains(out, "Its address is in USHER_WEBHOOK_RECEIVERS_1_FORWARD_URL") || strings.Contains(out, "s3cret") {
		t.Errorf("%d\n%s", c.Code, out)
	}
}

// Webhooks whose receiver was removed from the settings keep waiting. The log, the list and the page of the webhook
// say so.
func TestReceiverIsGone(t *testing.T) {
	t.Parallel()
	receiver := sandbox.NewReceiver()
	receiver.Fail(sandbox.Fault{Status: 500})
	server := httptest.NewServer(receiver)
	defer server.Close()
	env := []string{
		"USHER_WEBHOOK_INBOX=file:" + t.TempDir() + "/inbox.db", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=" + server.URL,
		"USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
	}
	p := start(t, append(env, "USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=crm"))
	if status, _, answer := post(t, p.URL(t, "webhooks")+"/webhooks", of("crm", "acme", 5)); status != 200 {
		t.Fatal(status, answer)
	}
	p.Stop()
	<-p.Ended

	p = start(t, append(env, "USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=docs"))
	admin := "USHER_ADMIN_LISTEN=" + strings.TrimPrefix(p.URL(t, "admin"), "http://")
	const want = "no receiver takes its platform"
	for _, args := range [][]string{{"inbox", "ls"}, {"inbox", "show", "1"}} {
		c := start(t, []string{admin}, args...)
		<-c.Ended
		if out := c.Stdout.String(); c.Code != 0 || !strings.Contains(out, "waiting") || !strings.Contains(out, want) {
			t.Errorf("%q: %d\n%s", args, c.Code, out)
		}
	}
	testkit.Eventually(t, "said in the log", func() bool {
		return strings.Contains(p.Stderr.String(), "webhooks wait, but no receiver takes their platforms")
	})
}

// Of three receivers one hangs and one refuses. Meanwhile the third gets all its webhooks. Then usher is restarted, and
// one platform has another receiver. The webhooks that wait go to the receiver of their platform, in order.
func TestReceiversWithAnInbox(t *testing.T) {
	t.Parallel()
	inboxes := map[string]string{"file": "file:" + filepath.Join(t.TempDir(), "inbox.db")}
	// which lane has what is the same on either, and a server takes as much time as all other tests
	if testkit.Thorough() {
		inboxes["postgres"] = pgtest.Schema(t)
	}
	for name, inbox := range inboxes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			receiversOfAnInbox(t, inbox)
		})
	}
}

func receiversOfAnInbox(t *testing.T, inbox string) {
	well, wellURL := testkit.NewLedger(t)
	rejecting, refusingURL := testkit.NewLedger(t)
	rejecting.SetDown(true)
	recovered := new(testkit.Ledger)
	var hangs atomic.Bool
	hanging := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			_, _ = io.Copy(io.Discard, r.Body) // or the server does not notice that the caller has gone
			<-r.Context().Done()
			return
		}
		recovered.ServeHTTP(w, r)
	}))
	defer hanging.Close()
	hangs.Store(true)

	// run starts usher, with the platforms of the healthy receiver and of the one that rejects.
	run := func(ofWell, ofRefusing string) *testkit.Usher {
		env := []string{
			"USHER_WEBHOOK_INBOX=" + inbox, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
			"USHER_SHUTDOWN_GRACE=100ms", "USHER_WEBHOOK_TIMEOUT=1s", "USHER_WEBHOOK_INBOX_CONCURRENCY=2",
		}
		for n, receiver := range [][3]string{{"well", ofWell, wellURL}, {"rejecting", ofRefusing, refusingURL}, {"hanging", "docs", hanging.URL}} {
			prefix := fmt.Sprintf("USHER_WEBHOOK_RECEIVERS_%d_", n)
			env = append(env, prefix+"NAME="+receiver[0], prefix+"PLATFORMS="+receiver[1], prefix+"FORWARD_URL="+receiver[2])
		}
		p := start(t, env)
		p.Ready(t)
		return p
	}
	p := run("crm", "mail,shop")
	const tenants, webhooks = 4, 5
	var want []int // of each tenant
	for n := 1; n <= webhooks; n++ {
		want = append(want, n)
		for i := range tenants {
			for _, platform := range []string{"docs", "mail", "shop", "crm"} {
				status, decision, answer := post(t, p.URL(t, "webhooks")+"/webhooks", of(platform, fmt.Sprint(platform, i), n))
				if status != 200 || decision != "queued" {
					t.Fatalf("%s%d %d: %d %s %s", platform, i, n, status, decision, answer)
				}
			}
		}
	}
	has := func(l *testkit.Ledger, platform string) func() bool {
		return func() bool {
			for i := range tenants {
				if !slices.Equal(l.All(fmt.Sprint(platform, i)), want) {
					return false
				}
			}
			return true
		}
	}
	testkit.Eventually(t, "delivered to the receiver that is well", has(well, "crm"))
	if n := recovered.Count("docs0") + rejecting.Count("mail0") + rejecting.Count("shop0"); n > 0 {
		t.Fatalf("%d were taken by receivers that are not well", n)
	}

	p.Stop()
	<-p.Ended
	p = run("crm,mail", "shop")
	testkit.Eventually(t, "mail delivered to the receiver that takes it now", has(well, "mail"))
	hangs.Store(false)
	rejecting.SetDown(false)
	testkit.Eventually(t, "docs delivered when its receiver answers", has(recovered, "docs"))
	testkit.Eventually(t, "shop delivered when its receiver is back", has(rejecting, "shop"))
	if rejecting.Count("mail0") > 0 {
		t.Error("the receiver that has lost a platform got a webhook of it")
	}
	testkit.Eventually(t, "nothing waits", func() bool {
		_, status := get(t, p.URL(t, "admin")+"/metrics")
		return strings.Contains(status, "\nusher_inbox_pending 0\n")
	})
	if status, decision, answer := post(t, p.URL(t, "webhooks")+"/webhooks", of("mail", "mail0", webhooks)); decision != "duplicate" {
		t.Errorf("what the new receiver accepted: %d %s %s", status, decision, answer)
	}
	if status, decision, answer := post(t, p.URL(t, "webhooks")+"/webhooks", of("other", "other0", 1)); status != 422 {
		t.Errorf("a platform that nobody takes: %d %s %s", status, decision, answer)
	}
}
