package sandbox

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func webhook(platform, tenant string, users int) string {
	return fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{
		"tenant":{"code":%q,"name":"N","platform":{"code":%q}},
		"change":{"features":[{"code":"users","quantity":%d},{"code":"sso","quantity":null}],"subscriptions":[]}}}`, tenant, platform, users)
}

func deliver(rc http.Handler, body string) *httptest.ResponseRecorder {
	return post(rc, "/any/path", "application/json", body, "webhook-id", "id-1")
}

// received returns what the receiver has read, and its answers.
func received(rc *Receiver) string {
	var lines []string
	for _, d := range rc.Deliveries() {
		lines = append(lines, fmt.Sprint(d.Status, " ", d.Summary))
	}
	return strings.Join(lines, "\n")
}

func TestReceiverReads(t *testing.T) {
	rc := NewReceiver()
	for _, body := range []string{webhook("p", "b", 1), webhook("o", "b", 3), webhook("p", "b", 4)} {
		if w := deliver(rc, body); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if got, want := received(rc), "200 N (p/b): users ≤ 1, sso\n200 N (o/b): users ≤ 3, sso\n200 N (p/b): users ≤ 4, sso"; got != want {
		t.Errorf("received:\n%s\nwant:\n%s", got, want)
	}
	if d := rc.Deliveries(); d[0].WebhookID != "id-1" {
		t.Errorf("delivery %+v", d[0])
	}
}

func TestReceiverFails(t *testing.T) {
	rc := NewReceiver()
	rc.Fail(Fault{Status: 500, Times: 1})
	if w := deliver(rc, webhook("p", "a", 1)); w.Code != 500 {
		t.Errorf("failing: %d", w.Code)
	}
	rc.FailFor("b", Fault{Status: 204})
	if a, b := deliver(rc, webhook("p", "a", 3)), deliver(rc, webhook("p", "b", 3)); a.Code != 200 || b.Code != 204 {
		t.Errorf("one tenant's fault: %d %d", a.Code, b.Code)
	}
	rc.FailFor("b", Fault{})
	if w := deliver(rc, webhook("p", "b", 4)); w.Code != 200 {
		t.Errorf("healed: %d", w.Code)
	}
	var got []int
	for _, d := range rc.Deliveries() {
		got = append(got, d.Status)
	}
	if want := []int{500, 200, 204, 200}; !slices.Equal(got, want) {
		t.Errorf("deliveries %v, want %v", got, want)
	}
}
