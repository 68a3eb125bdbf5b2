package webhookgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"usher/webhookgate/content"
)

// of is a snapshot of a tenant on a platform.
func of(platform, tenant, name string) string {
	return strings.Replace(snapshot(tenant, name), `"tenant":{`, fmt.Sprintf(`"tenant":{"platform":{"code":%q},`, platform), 1)
}

func address(host string) *url.URL { return &url.URL{Scheme: "http", Host: host, Path: "/hook"} }

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
		{snapshot("a", "A"), true, "main at receiver.test", 200},
		{strings.Replace(of("docs", "a", "A"), `{"code":"docs"}`, "null", 1), true, "main at receiver.test", 200},
		{`{"type":"Other","payload":{"tenant":{"platform":{"code":"docs"}}}}`, true, "docs at docs.test", 200}, // without a tenant
		{question, true, "docs at docs.test", 200},

		{of("docs", "a", "A"), false, "docs at docs.test", 200},
		{of("Docs", "a", "A"), false, `/payload/tenant/platform/code is "Docs", and no receiver takes webhooks of this platform`, 422},
		{snapshot("a", "A"), false, "/payload/tenant/platform/code is missing, and no receiver takes webhooks without a platform", 422},
		{strings.Replace(question, "docs", "shop", 1), false, `/payload/tenant/platform/code is "shop", and no receiver takes webhooks of this platform`, 422},
	} {
		var got []string
		g := newGate(t, func(c *Config) {
			c.Types, c.SyncTypes = []string{content.TenantProvisioningChange, "Other"}, []string{"Ask"}
			c.Transport = note("main", &got)
			c.Receivers = []Receiver{
				{Name: "crm", Platforms: []string{"crm", "mail"}, URL: address("crm.test"), Transport: note("crm", &got)},
				{Name: "docs", Platforms: []string{"docs"}, URL: address("docs.test"), Transport: note("docs", &got)},
			}
			if !tt.main {
				c.ForwardURL = nil
			}
		})
		rec := ask(g, tt.body)
		if rec.Code != 200 {
			var no struct{ Faults []content.Fault }
			if err := json.Unmarshal(rec.Body.Bytes(), &no); err != nil {
				t.Fatal(err)
			}
			for _, f := range no.Faults {
				got = append(got, f.Path+" "+f.Message)
			}
		}
		if rec.Code != tt.code || len(got) != 1 || got[0] != tt.want {
			t.Errorf("%s: %d %q, want %d %q", tt.body, rec.Code, got, tt.code, tt.want)
		}
	}
}

// Each receiver has its own password, signature and patience.
func TestReceiversOwnSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := make(map[string]http.Header)
		took := make(map[string]time.Duration)
		receive := func(name string) roundTrip {
			return func(r *http.Request) (*http.Response, error) {
				got[name] = r.Header.Clone()
				begin := time.Now()
				<-r.Context().Done()
				took[name] = time.Since(begin)
				return nil, r.Context().Err()
			}
		}
		g := newGate(t, func(c *Config) {
			c.Transport, c.Attempts, c.Timeout = receive("main"), 1, 2*time.Second
			docs := address("docs.test")
			docs.User = url.UserPassword("u", "p")
			c.Receivers = []Receiver{
				{Name: "docs", Platforms: []string{"docs"}, URL: docs, Transport: receive("docs"), Timeout: 5 * time.Second, SignSecret: secret("whsec_a2V5")},
				{Name: "crm", Platforms: []string{"crm"}, URL: address("crm.test"), Transport: receive("crm")},
			}
		})
		for _, platform := range []string{"", "docs", "crm"} {
			if answer := post(t, g, of(platform, "a", "A"), "Authorization", "Bearer the-sender's"); answer.Code != 504 {
				t.Error(answer)
			}
		}
		if got["docs"].Get("Authorization") != "Basic dTpw" || got["main"].Get("Authorization") != "Bearer the-sender's" || got["crm"].Get("Authorization") != "Bearer the-sender's" {
			t.Errorf("%v", got)
		}
		if got["docs"].Get("Webhook-Signature") == "" || got["main"].Get("Webhook-Signature") != "" || got["crm"].Get("Webhook-Signature") != "" {
			t.Errorf("%v", got)
		}
		if took["main"] != 2*time.Second || took["crm"] != 2*time.Second || took["docs"] != 5*time.Second {
			t.Errorf("%v", took)
		}
	})
}

// One receiver hangs and one refuses: the third's webhooks find room, and are as fast as
// ever. What is too much for one is told so by its name.
func TestAReceiverThatHangsCostsTheOthersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() }
		refuse := func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") }
		well := &counting{takes: 10 * time.Millisecond}
		g := newGate(t, func(c *Config) {
			c.ForwardURL, c.MaxInflight = nil, 31
			c.Receivers = []Receiver{
				{Name: "hangs", Platforms: []string{"hangs"}, URL: address("a"), Transport: roundTrip(hang)},
				{Name: "refuses", Platforms: []string{"refuses"}, URL: address("b"), Transport: roundTrip(refuse)},
				{Name: "well", Platforms: []string{"well"}, URL: address("c"), Transport: well},
			}
		})
		var senders sync.WaitGroup
		told := make(map[string]int)
		var mu sync.Mutex
		for i := range 15 {
			for _, platform := range []string{"hangs", "refuses"} {
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
		if told["hangs"] != 5 || told["refuses"] != 5 { // of 31 places each has 10
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
		for _, rc := range g.receivers.all {
			if rc.inflight != 0 || g.inflight != 0 {
				t.Errorf("%s: %d places are still taken, %d in all", rc.Name, rc.inflight, g.inflight)
			}
		}
	})
}

// Questions whose receiver hangs leave room for what an inbox takes in.
func TestQuestionsLeaveRoomForTheInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := 0
		g := newGate(t, func(c *Config) {
			c.SyncTypes, c.MaxInflight = []string{"Checkout"}, 10
			c.Keep = func(*Webhook) (string, error) { kept++; return "", nil }
			c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() })
		})
		var senders sync.WaitGroup
		for range 20 {
			senders.Go(func() { ask(g, question) })
		}
		synctest.Wait()
		if rec := ask(g, documented); rec.Code != 200 || kept != 1 {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
		senders.Wait()
	})
}

// Who has another use for webhooks can keep those that nobody takes; never questions, which
// nobody would answer.
func TestKeepUnclaimed(t *testing.T) {
	for _, receivers := range [][]Receiver{nil, {{Name: "docs", Platforms: []string{"docs"}, URL: address("docs.test")}}} {
		var kept []*Webhook
		g := newGate(t, func(c *Config) {
			c.ForwardURL, c.Transport, c.Receivers, c.KeepUnclaimed, c.SyncTypes = nil, nil, receivers, true, []string{"Checkout"}
			c.Keep = func(w *Webhook) (string, error) { kept = append(kept, w); return "", nil }
		})
		if rec := ask(g, of("crm", "a", "A")); rec.Code != 200 || len(kept) != 1 || g.ReceiverOf(kept[0].Lane) != "" {
			t.Errorf("%d %s: %v", rec.Code, rec.Body, kept)
		}
		if rec := ask(g, question); rec.Code != 422 || len(kept) != 1 {
			t.Errorf("%d %s: %v", rec.Code, rec.Body, kept)
		}
	}
	if _, err := New(Config{KeepUnclaimed: true}); err == nil {
		t.Error("kept by nobody")
	}
}

// Who keeps webhooks asks by the platform, at each try.
func TestTryAndReceiverOf(t *testing.T) {
	var got []string
	var tried []string
	g := newGate(t, func(c *Config) {
		c.ForwardURL = nil
		c.Receivers = []Receiver{{Name: "docs", Platforms: []string{"docs"}, URL: address("docs.test"), Transport: note("docs", &got)}}
		c.Attempted = func(receiver, result string, _ time.Duration) { tried = append(tried, receiver+" "+result) }
	})
	for platform, want := range map[string]string{"docs": "docs", "crm": "", "": ""} {
		if got := g.ReceiverOf(Lane{Platform: platform, Tenant: "a"}); got != want {
			t.Errorf("of %q: %q, want %q", platform, got, want)
		}
	}
	if a := g.Try(context.Background(), &Webhook{Lane: Lane{Platform: "docs", Tenant: "a"}, Header: make(http.Header)}); !a.Accepted() {
		t.Errorf("%+v", a)
	}
	if a := g.Try(context.Background(), &Webhook{Lane: Lane{Platform: "crm", Tenant: "a"}}); !errors.Is(a.Err, errNoReceiver) {
		t.Errorf("%+v", a)
	}
	if len(got) != 1 || len(tried) != 1 || tried[0] != "docs ok" {
		t.Errorf("%q %q", got, tried)
	}
}

func TestReceiversThatCannotBe(t *testing.T) {
	good := func(name, platform string) Receiver {
		return Receiver{Name: name, Platforms: []string{platform}, URL: address("r")}
	}
	nowhere, twice := good("a", "x"), good("a", "x")
	nowhere.URL, twice.Platforms = nil, []string{"x", "x"}
	for name, tt := range map[string]struct {
		receivers []Receiver
		ok        bool
	}{
		"one":                        {[]Receiver{good("a", "x")}, true},
		"two":                        {[]Receiver{good("a", "x"), good("b", "y")}, true},
		"its own platform twice":     {[]Receiver{twice}, true},
		"a platform claimed twice":   {[]Receiver{good("a", "x"), good("b", "x")}, false},
		"a name used twice":          {[]Receiver{good("a", "x"), good("a", "y")}, false},
		"the main receiver's name":   {[]Receiver{good("main", "x")}, false},
		"no name":                    {[]Receiver{good("", "x")}, false},
		"no address":                 {[]Receiver{nowhere}, false},
		"no platforms":               {[]Receiver{{Name: "a", URL: address("r")}}, false},
		"a platform without a code":  {[]Receiver{good("a", "")}, false},
		"nobody at all":              {nil, false},
		"an address of another kind": {[]Receiver{{Name: "a", Platforms: []string{"x"}, URL: &url.URL{Scheme: "ftp", Host: "r"}}}, false},
	} {
		if _, err := New(Config{Receivers: tt.receivers}); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
