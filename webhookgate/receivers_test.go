package webhookgate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/content"
	"usher/internal/receiver"
)

// of is a snapshot of a tenant on a platform.
func of(platform, tenant, name string) string {
	return strings.Replace(snapshotOf(tenant, name), `"tenant":{`, fmt.Sprintf(`"tenant":{"platform":{"code":%q},`, platform), 1)
}

// note is a receiver that notes its webhooks under its name.
func note(name string, got *[]string) roundTrip {
	return func(r *http.Request) (*http.Response, error) {
		*got = append(*got, name+" at "+r.URL.Host)
		return respond(200, ""), nil
	}
}

func TestReceiverOfAPlatform(t *testing.T) {
	question := `{"type":"Ask","payload":{"tenant":{"code":"a","platform":{"code":"docs"}}}}`
	for _, tt := range []struct {
		body string
		main bool // there is one for all others
		want string
		code int
	}{
		{of("crm", "a", "A"), true, "crm at crm.test", 200},
		{of("mail", "a", "A"), true, "crm at crm.test", 200},
		{of("docs", "a", "A"), true, "docs at docs.test", 200},
		{of("Docs", "a", "A"), true, "main at receiver.test", 200}, // letter by letter
		{of("", "a", "A"), true, "main at receiver.test", 200},
		{snapshotOf("a", "A"), true, "main at receiver.test", 200},
		{strings.Replace(of("docs", "a", "A"), `{"code":"docs"}`, "null", 1), true, "main at receiver.test", 200},
		// This one has no tenant.
		{`{"type":"Other","payload":{"tenant":{"platform":{"code":"docs"}}}}`, true, "docs at docs.test", 200},
		{question, true, "docs at docs.test", 200},

		{of("docs", "a", "A"), false, "docs at docs.test", 200},
		{of("Docs", "a", "A"), false, `/payload/tenant/platform/code is "Docs", and no receiver takes webhooks of this platform`, 422},
		{snapshotOf("a", "A"), false, "/payload/tenant/platform/code is missing, and no receiver takes webhooks without a platform", 422},
		{strings.Replace(question, "docs", "shop", 1), false, `/payload/tenant/platform/code is "shop", and no receiver takes webhooks of this platform`, 422},
	} {
		var got []string
		var told Outcome
		g := newGate(t, func(c *setup) {
			c.Answered = func(o Outcome) { told = o }
			c.Types, c.SyncTypes = []string{content.TenantProvisioningChange, "Other"}, []string{"Ask"}
			c.Transport = note("main", &got)
			c.Further = []*receiver.Receiver{
				{Name: "crm", Platforms: []string{"crm", "mail"}, URL: address("crm.test"), Transport: note("crm", &got)},
				{Name: "docs", Platforms: []string{"docs"}, URL: address("docs.test"), Transport: note("docs", &got)},
			}
			if !tt.main {
				c.Receiver = nil
			}
		})
		rec := ask(g, tt.body)
		if rec.Code != 200 {
			for _, f := range told.Faults {
				got = append(got, f.Path+" "+f.Message)
			}
		}
		if rec.Code != tt.code || len(got) != 1 || got[0] != tt.want {
			t.Errorf("%s: %d %q, want %d %q", tt.body, rec.Code, got, tt.code, tt.want)
		}
	}
}

// One receiver hangs and one refuses: the third's webhooks find room, and are as fast as
// ever. What is too much for one is told so by its name.
func TestAReceiverThatHangsCostsTheOthersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() }
		refuse := func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") }
		well := &counting{takes: 10 * time.Millisecond}
		g := newGate(t, func(c *setup) {
			c.Receiver, c.MaxInflight = nil, 31
			c.Further = []*receiver.Receiver{
				{Name: "hangs", Platforms: []string{"hangs"}, URL: address("a"), Transport: roundTrip(hang)},
				{Name: "rejects", Platforms: []string{"rejects"}, URL: address("b"), Transport: roundTrip(refuse)},
				{Name: "well", Platforms: []string{"well"}, URL: address("c"), Transport: well},
			}
		})
		var senders sync.WaitGroup
		told := make(map[string]int)
		var mu sync.Mutex
		for i := range 15 {
			for _, platform := range []string{"hangs", "rejects"} {
				senders.Go(func() {
					got := post(t, g, of(platform, fmt.Sprint("t", i), "A"))
					mu.Lock()
					defer mu.Unlock()
					if strings.HasPrefix(got.Error, "too many webhooks at once for the receiver "+platform) {
						told[platform]++
					}
				})
				synctest.Wait()
			}
		}
		if told["hangs"] != 5 || told["rejects"] != 5 { // of 31 places each has 10
			t.Errorf("turned away: %v", told)
		}
		begin := time.Now()
		var others sync.WaitGroup
		for i := range 10 {
			others.Go(func() {
				if got := post(t, g, of("well", fmt.Sprint("t", i), "A")); got.Code != 200 {
					t.Error(got)
				}
			})
		}
		others.Wait()
		if took := time.Since(begin); took != 10*time.Millisecond || well.count() != 10 {
			t.Errorf("10 deliveries at once took %v, %d arrived", took, well.count())
		}
		senders.Wait()
		for p, n := range g.places.taken {
			if n != 0 || g.places.all != 0 {
				t.Errorf("%s: %d places are still taken, %d in all", p.to.Name, n, g.places.all)
			}
		}
	})
}

// Who has another use for webhooks can keep those that nobody takes; never questions, which
// nobody would answer.
func TestStoreUnclaimed(t *testing.T) {
	for _, receivers := range [][]*receiver.Receiver{nil, {{Name: "docs", Platforms: []string{"docs"}, URL: address("docs.test")}}} {
		var kept []*Webhook
		g := newGate(t, func(c *setup) {
			c.Receiver, c.Further, c.StoreUnclaimed, c.SyncTypes = nil, receivers, true, []string{"Checkout"}
			c.Store = func(_ context.Context, w *Webhook) (string, error) { kept = append(kept, w); return "", nil }
		})
		if rec := ask(g, of("crm", "a", "A")); rec.Code != 200 || len(kept) != 1 || kept[0].Receiver != nil {
			t.Errorf("%d %s: %v", rec.Code, rec.Body, kept)
		}
		if rec := ask(g, question); rec.Code != 422 || len(kept) != 1 {
			t.Errorf("%d %s: %v", rec.Code, rec.Body, kept)
		}
	}
}
