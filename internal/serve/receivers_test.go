package serve_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
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
		`usher_webhook_tries_total{receiver="1",result="status"} 1`,
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
