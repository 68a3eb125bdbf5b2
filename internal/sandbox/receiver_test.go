package sandbox

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func webhook(platform, tenant string, users int) string {
	return fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{
		"tenant":{"code":%q,"name":"N","platform":{"code":%q}},
		"change":{"features":[{"code":"users","quantity":%d},{"code":"sso","quantity":null}],"subscriptions":[]}}}`, tenant, platform, users)
}

func deliver(rc http.Handler, body string) *httptest.ResponseRecorder {
	return post(rc, "/any/path", "application/json", body, "webhook-id", "id-1")
}

func held(rc *Receiver) string {
	var lines []string
	for _, t := range rc.Tenants() {
		lines = append(lines, t.String())
	}
	return strings.Join(lines, "\n")
}

func TestReceiverApplies(t *testing.T) {
	rc := NewReceiver()
	for _, body := range []string{webhook("p", "b", 1), webhook("p", "a", 2), webhook("o", "b", 3), webhook("p", "b", 4)} {
		if w := deliver(rc, body); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if got, want := held(rc), "N (o/b): users ≤ 3, sso\nN (p/a): users ≤ 2, sso\nN (p/b): users ≤ 4, sso"; got != want {
		t.Errorf("held:\n%s\nwant:\n%s", got, want)
	}
	d := rc.Deliveries()
	if len(d) != 4 {
		t.Fatalf("%d deliveries", len(d))
	}
	if first := d[0]; first.Platform != "p" || first.Tenant != "b" || first.WebhookID != "id-1" || !first.Applied ||
		first.Status != 200 || first.Digest != digest([]byte(webhook("p", "b", 1))) {
		t.Errorf("delivery %+v", first)
	}
}

func TestReceiverOddWebhooks(t *testing.T) {
	for name, tt := range map[string]struct {
		body   string
		status int
	}{
		"other type":     {`{"type":"Other","payload":7}`, 200},
		"no tenant code": {`{"type":"TenantProvisioningChange","payload":{}}`, 200},
		"wrong type":     {strings.Replace(webhook("p", "a", 1), "null", `"many"`, 1), 422},
		"not JSON":       {`{"type":`, 400},
	} {
		t.Run(name, func(t *testing.T) {
			rc := NewReceiver()
			if w := deliver(rc, tt.body); w.Code != tt.status {
				t.Errorf("%d %s, want %d", w.Code, w.Body, tt.status)
			}
			if d := rc.Deliveries(); len(d) != 1 || d[0].Applied || d[0].Status != tt.status || len(rc.Tenants()) != 0 {
				t.Errorf("deliveries %+v, tenants %v", d, rc.Tenants())
			}
		})
	}
	w := httptest.NewRecorder()
	NewReceiver().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", w.Code)
	}
}

func TestReceiverFails(t *testing.T) {
	rc := NewReceiver()
	rc.Fail(Fault{Status: 500, Times: 1})
	if w := deliver(rc, webhook("p", "a", 1)); w.Code != 500 || len(rc.Tenants()) != 0 {
		t.Errorf("failing: %d, %v", w.Code, rc.Tenants())
	}
	rc.FailFor("b", Fault{Status: 204})
	if a, b := deliver(rc, webhook("p", "a", 3)), deliver(rc, webhook("p", "b", 3)); a.Code != 200 || b.Code != 204 {
		t.Errorf("one tenant's fault: %d %d", a.Code, b.Code)
	}
	rc.FailFor("b", Fault{})
	if w := deliver(rc, webhook("p", "b", 4)); w.Code != 200 {
		t.Errorf("healed: %d", w.Code)
	}
	var got []string
	for _, d := range rc.Deliveries() {
		got = append(got, fmt.Sprint(d.Status, d.Applied))
	}
	if want := "500 false,200 true,204 false,200 true"; strings.Join(got, ",") != want {
		t.Errorf("deliveries %v, want %v", got, want)
	}
}

func TestReceiverTimeouts(t *testing.T) {
	for name, tt := range map[string]struct {
		fault   Fault
		applied bool
	}{
		"hang":         {Fault{Hang: true}, false},
		"slow":         {Fault{Delay: time.Hour}, false},
		"just in time": {Fault{Delay: time.Second}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, rc := newPair(1)
				rc.Fail(tt.fault)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				e := s.Send(ctx, []byte(webhook("p", "a", 1)))
				d := rc.Deliveries()[0]
				if d.Applied != tt.applied || len(rc.Tenants()) == 1 != tt.applied || d.Status != e.Status {
					t.Errorf("delivery %+v, entry %+v", d, e)
				}
			})
		})
	}
}

// Over a real connection the hang must end with the client, not with the test.
func TestReceiverHangEndsWhenTheClientLeaves(t *testing.T) {
	rc := NewReceiver()
	rc.Fail(Fault{Hang: true})
	arrived := make(chan struct{})
	rc.OnDelivery = func(*http.Request, []byte) { close(arrived) }
	server := httptest.NewServer(rc)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	s := NewSender(1, server.URL)
	if e := s.Change(ctx); e.Status != 0 {
		t.Errorf("entry %+v", e)
	}
	server.Close() // waits for the handler
	if d := rc.Deliveries(); len(d) != 1 || d[0].Status != 0 {
		t.Errorf("deliveries %+v", d)
	}
}

func TestDeliveriesAreBounded(t *testing.T) {
	rc := NewReceiver()
	for range deliveriesSize + 3 {
		rc.record(&Delivery{})
	}
	if n := len(rc.Deliveries()); n != deliveriesSize {
		t.Errorf("%d deliveries", n)
	}
}
