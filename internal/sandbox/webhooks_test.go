package sandbox

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// inProcess calls a handler without a network, so that it works inside a synctest bubble.
type inProcess struct{ http.Handler }

func (h inProcess) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	defer func() {
		switch e := recover(); e {
		case nil:
		case http.ErrAbortHandler:
			resp, err = nil, context.Cause(r.Context())
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
		default:
			panic(e)
		}
	}()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

func newPair(seed uint64) (*Sender, *Receiver) {
	rc := NewReceiver()
	s := NewSender(seed, "http://receiver.example/webhooks")
	s.Client.Transport = inProcess{rc}
	return s, rc
}

func mustChange(t *testing.T, s *Sender) SentWebhook {
	t.Helper()
	e := s.Change(t.Context())
	if e.Status == 0 {
		t.Fatal(e.Answer)
	}
	return e
}

// Each change changes one tenant, and sends its new snapshot.
func TestChanges(t *testing.T) {
	s, rc := newPair(1)
	for range 100 {
		before := s.snapshots()
		e := mustChange(t, s)
		if e.Status != http.StatusOK || e.Took < 0 || !strings.Contains(e.Summary, ": ") {
			t.Fatalf("entry %+v", e)
		}
		changed := 0
		for i, now := range s.snapshots() {
			if now != before[i] {
				changed++
			}
		}
		if changed != 1 || !slices.Contains(s.snapshots(), string(e.Body)) {
			t.Fatalf("%s: %d tenants changed", e.Summary, changed)
		}
	}
	if n := len(rc.Deliveries()); n != 100 {
		t.Errorf("%d deliveries", n)
	}
}

// A webhook is tried twice, 5 s each, and is then in the log alone. The questions at checkout and the test button are
// sent once.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, rc := newPair(1)
		users := map[string]*int{"users": new(3)}
		for _, tt := range []struct {
			name     string
			fault    Fault
			send     func() SentWebhook
			attempts int
			took     time.Duration
			code     string
		}{
			{"accepted", Fault{}, func() SentWebhook { return s.Change(t.Context()) }, 1, 0, "200"},
			{"accepted at the second attempt", Fault{Status: 503, Times: 1}, func() SentWebhook { return s.Change(t.Context()) }, 2, 0, "200"},
			{"dropped", Fault{Status: 503}, func() SentWebhook { return s.Change(t.Context()) }, 2, 0, "503"},
			{"hangs", Fault{Hang: true}, func() SentWebhook { return s.Change(t.Context()) }, 2, 10 * time.Second, "none"},
			{"checkout", Fault{Status: 403}, func() SentWebhook { return s.Ask(t.Context(), State{"acme", "", users}) }, 1, 0, "403"},
			{"checkout hangs", Fault{Hang: true}, func() SentWebhook { return s.Ask(t.Context(), State{"acme", "", users}) }, 1, 5 * time.Second, "none"},
			{"test button", Fault{Status: 500}, func() SentWebhook { return s.Send(t.Context(), State{TestTenant, "", nil}.Webhook()) }, 1, 0, "500"},
		} {
			rc.Fail(tt.fault)
			e := tt.send()
			logged := s.log.all()
			last := logged[len(logged)-1]
			code := "none"
			if last.ResponseCode != nil {
				code = *last.ResponseCode
			}
			if e.Attempts != tt.attempts || e.Took != tt.took || code != tt.code || *last.Payload != string(e.Body) || *last.URL != s.URLs[0] {
				t.Errorf("%s: %d attempts in %v, %s, logged as %s", tt.name, e.Attempts, e.Took, e.Reply, code)
			}
		}
		if n := len(s.log.all()); n != 7 {
			t.Errorf("%d entries for 7 webhooks", n)
		}
		for _, held := range s.book.list() {
			if held.Code == TestTenant {
				t.Error("the test button's tenant is one of the tenants")
			}
		}
	})
}

// What is sent has no escape that JSON.stringify does not make: receivers hash what they parsed.
func TestCompactBody(t *testing.T) {
	body := State{Tenant: `<a> & "b" ü`}.Webhook()
	if !bytes.Contains(body, []byte(`"code":"<a> & \"b\" ü"`)) || bytes.HasSuffix(body, []byte("\n")) {
		t.Errorf("%s", body)
	}
}

// What a checkout asks is what the service documents: no platform, and the plan of each feature.
func TestCheckoutAsks(t *testing.T) {
	const want = `{"type":"CheckoutValidation","payload":{"tenant":{"id":9685625,"code":"acme","name":"acme"},"change":{"features":[{"code":"users","name":"users","value":"","quantity":3,` +
		`"plan":{"code":"standard","name":"Standard"},"price_list":{"code":"eur-2026","name":"Euro 2026"}}]}}}`
	if got := (State{"acme", "", map[string]*int{"users": new(3)}}).checkout(); string(got) != want {
		t.Errorf("%s", got)
	}
}

func TestRedirectIsAnAnswer(t *testing.T) {
	s := NewSender(1, "http://gate.example/")
	s.Client.Transport = inProcess{http.RedirectHandler("http://elsewhere.example/", http.StatusTemporaryRedirect)}
	if e := s.Change(t.Context()); e.Status != http.StatusTemporaryRedirect {
		t.Errorf("entry %+v", e)
	}
}

// snapshots returns the snapshot of each tenant.
func (s *Sender) snapshots() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.world.tenants {
		list = append(list, string(t.render()))
	}
	return list
}
