package admin

import (
	"context"
	"crypto/sha256"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/content"
	"usher/internal/entitlements"
	"usher/internal/inbox"
	"usher/internal/testkit/inboxtest"
	"usher/webhookgate"
)

// entitled returns the admin port of an usher with a gate.
func entitled(b *inboxtest.Box) *Handler {
	cfg := port(b)
	cfg.Gate, cfg.Receivers = gate, receiversOf(b)
	return New(cfg)
}

// Somebody is woken because a tenant cannot use what it should. The tenant's page says first what
// usher answers, and since when; then whether the receiver has the same; and if not, why, and
// what to do, with a button.
func TestWhatTheReceiverHas(t *testing.T) {
	again, now := `href="/webhooks/2?ask=redeliver">Redeliver…`, `action="/redeliver"><input type="hidden" name="id" value="2"><button>Try now</button>`
	for name, tc := range map[string]struct {
		prepare func(b *inboxtest.Box)
		want    []string
	}{
		"taken":  {func(b *inboxtest.Box) { b.Take("eu", "acme", ten) }, []string{"The receiver has it, since"}},
		"parked": {func(b *inboxtest.Box) { b.Answer(422, "no such account"); b.Take("eu", "acme", ten) }, []string{"webhook 2 is parked (since", "<p>422: no such account. Fix the receiver", again}},
		"failed": {func(b *inboxtest.Box) { b.Answer(500, "in use"); b.Take("eu", "acme", ten) }, []string{"webhook 2 is waiting (since", "<p>500: in use; next try in ", now}},
		"down": {func(b *inboxtest.Box) {
			b.Pass(time.Second)
			b.Answer(0, "connection refused")
			b.Take("eu", "acme", ten)
			b.Take("eu", "other", ten)
			b.Take("eu", "third", ten)
		}, []string{"connection refused; next try when the receiver is back. Fix the receiver."}},
		"paused": {func(b *inboxtest.Box) {
			_ = b.Pause(inbox.Pause{Platform: "eu", Tenant: "acme"})
			b.Queue(&webhookgate.Webhook{Type: content.TenantProvisioningChange, Snapshot: true, Lane: webhookgate.LaneName{Platform: "eu", Tenant: "acme"}, Body: []byte(ten)})
		}, []string{"webhook 2 is waiting (since", "<p>paused. Resume the deliveries.", "<button>Resume</button>"}},
		"discarded": {func(b *inboxtest.Box) { b.Answer(422, ""); b.Take("eu", "acme", ten); _ = b.Discard(2) }, []string{"webhook 2 is discarded (since", again}},
		"invalid": {func(b *inboxtest.Box) {
			b.RecordInvalid(context.Background(), invalid422(`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme","name":"Wrong Inc","platform":{"code":"eu"}}}}`))
		}, []string{"The receiver has it", "usher rejected webhook 2", "/payload/tenant/name is missing", `href="/webhooks/2?ask=accept">Accept…`, `href="/webhooks/1?ask=redeliver">Redeliver…`}},
	} {
		t.Run(name, func(t *testing.T) {
			b := inboxtest.Open(t)
			b.Take("eu", "acme", five)
			tc.prepare(b)
			status, page := ask(entitled(b), "GET", "/tenant?platform=eu&code=acme", "", "Accept", "text/html")
			if status != 200 {
				t.Fatalf("%d\n%s", status, page)
			}
			for _, want := range append(tc.want, "usher has answered this since", `class="button danger" href="/tenant?ask=erase`) {
				if !strings.Contains(page, want) {
					t.Errorf("no %q in\n%s", want, page)
				}
			}
			if strings.Contains(page, "Wrong Inc") || strings.Contains(page, "nothing that") {
				t.Errorf("what is invalid counts:\n%s", page)
			}
			if strings.Index(page, `id="since"`) > strings.Index(page, "<td>users</td>") {
				t.Error("since when comes after what")
			}
		})
	}
}

// A tenant's page has its own webhooks only, also if another platform has a tenant with this code.
func TestTenantOnTwoPlatforms(t *testing.T) {
	b := inboxtest.Open(t)
	b.Take("eu", "acme", five)
	for range maxTimeline + 1 { // they must not push out the other's webhook
		b.Take("us", "acme", ten)
		b.Take("us", "acme", five)
	}
	status, page := ask(entitled(b), "GET", "/tenant?platform=eu&code=acme", "", "Accept", "text/html")
	if status != 200 || !strings.Contains(page, `href="/webhooks/1"`) {
		t.Errorf("%d\n%s", status, page)
	}
}

// A webhook may be stored although a receiver takes its platform, by a reconcile for one: usher
// does not say that none does.
func TestAStoredWebhookHasAReceiver(t *testing.T) {
	b := inboxtest.Open(t)
	w := &webhookgate.Webhook{
		ID: "x", Type: "TenantProvisioningChange", Snapshot: true, Lane: webhookgate.LaneName{Platform: "eu", Tenant: "acme"},
		Header: http.Header{}, Body: []byte(five), Digest: sha256.Sum256([]byte(five)),
	}
	if _, err := b.Store(context.Background(), w); err != nil { // as if no receiver took its platform
		t.Fatal(err)
	}
	_, page := ask(entitled(b), "GET", "/tenant?platform=eu&code=acme", "", "Accept", "text/html")
	if strings.Contains(page, "No receiver takes") || !strings.Contains(page, "usher stored it, and delivers it to no receiver (webhook 1).") {
		t.Errorf("the page:\n%s", page)
	}
}

// The overview names the tenants whose webhooks are parked, and what the receiver answered. There is no
// button for what does not exist.
func TestOverviewNamesTheParked(t *testing.T) {
	b := inboxtest.Open(t)
	b.Answer(422, "<html><body><h1>No such account</h1></body></html>")
	for _, tenant := range []string{"a", "b", "c", "d", "e"} {
		b.Take("eu", tenant, five)
	}
	wanted := []string{"5 webhooks of eu/e, eu/d, eu/c and 2 others are parked", "are parked; the receiver answered: 422: No such account", `href="/?ask=pause"`}
	_, page := look(entitled(b), "/", wanted...)
	for _, want := range wanted {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	alone := inboxtest.Open(t, "nobody")
	alone.Receivers = nil
	alone.Take("eu", "a", five)
	for _, target := range []string{"/", "/tenant?platform=eu&code=a"} {
		if status, page := ask(entitled(alone), "GET", target, "", "Accept", "text/html"); status != 200 || strings.Contains(page, "ask=pause") || strings.Contains(page, "Send again") {
			t.Errorf("%s: %d\n%s", target, status, page)
		}
	}
}

func TestTenantsPage(t *testing.T) {
	b := world(t)
	h := New(port(b))
	for target, want := range map[string][]string{
		"/tenants":               {`id="troubled"`, "1 parked", "held up", "us/twice", `<a href="/tenants" aria-current="page">`},
		"/tenants?search=CM":     {"eu/acme", "Found"},
		"/tenants?search=nobody": {"No tenant matches"},
	} {
		status, page := ask(h, "GET", target, "", "Accept", "text/html")
		for _, want := range want {
			if status != 200 || !strings.Contains(page, want) {
				t.Errorf("%s: %d, no %q in\n%s", target, status, want, page)
			}
		}
		if strings.Contains(target, "search") && strings.Contains(page, "eu/late") {
			t.Errorf("%s finds too much", target)
		}
	}
	for query, want := range map[string]int{"trouble=true": 3, "after=acme&platform=eu": 4, "after=acme&platform=eu&limit=1": 1} {
		_, body := ask(h, "GET", "/api/tenants?"+query, "")
		if all, end := listOf[inbox.Tenant](t, body); len(all) != want || (end.Next != "") != (want == 1) {
			t.Errorf("%s: %s", query, body)
		}
	}
	if status, _ := ask(New(port(nil)), "GET", "/tenants", "", "Accept", "text/html"); status != 404 {
		t.Errorf("without an inbox: %d", status)
	}
}

// However many people look at a tenant, a few answers are made at a time. Who has gone gets none.
func TestFewTenantsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := port(world(t))
		var made atomic.Int64
		leave := make(chan struct{})
		cfg.Entitlements = func(context.Context, string, *string) (entitlements.Answer, error) {
			made.Add(1)
			<-leave
			return entitlements.Answer{}, nil
		}
		h := New(cfg)
		var asking sync.WaitGroup
		var answered, gaveUp atomic.Int64
		for i := range 20 {
			asking.Go(func() {
				path := []string{"/tenant?platform=eu&code=acme", "/api/tenant?platform=eu&code=acme"}[i%2]
				if status, body := ask(h, "GET", path, ""); status != 200 {
					t.Errorf("%d %s", status, body)
				}
				answered.Add(1)
			})
		}
		synctest.Wait()
		gone, leaves := context.WithCancel(t.Context())
		asking.Go(func() {
			h.ServeHTTP(httptest.NewRecorder(), newRequest(gone, "/tenant?platform=eu&code=acme"))
			gaveUp.Add(1)
		})
		synctest.Wait()
		leaves()
		synctest.Wait()
		if made.Load() != 2 || gaveUp.Load() != 1 {
			t.Errorf("%d are made at a time, %d gave up", made.Load(), gaveUp.Load())
		}
		close(leave)
		asking.Wait()
		if answered.Load() != 20 {
			t.Errorf("%d answered", answered.Load())
		}
	})
}

func newRequest(ctx context.Context, target string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, "GET", target, nil)
	r.Host = "127.0.0.1:9095"
	return r
}
