package catchup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/outbound"
	"usher/internal/testkit"
	"usher/internal/testkit/inboxtest"
)

// A service has a webhook log, and an inbox that reads it.
type service struct {
	t *testing.T
	*inboxtest.Box
	*CatchUp
	log    []event // the newest first
	now    time.Time
	pages  int
	failed error
	during func() // happens while the log is read, once
	caught int
}

func newService(t *testing.T, receivers ...string) *service {
	s := &service{t: t, Box: inboxtest.Open(t, receivers...), now: time.Now()}
	address, _ := url.Parse("https://gate.example.com/webhooks")
	s.CatchUp = New(Config{
		Call: s.call, Inbox: s.Box.Inbox, Addresses: []*url.URL{address},
		CaughtUp: func(n int) { s.caught += n }, Log: slog.New(slog.DiscardHandler),
	})
	s.began = time.Now().Add(-time.Hour)
	return s
}

// call answers as the service does.
func (s *service) call(_ context.Context, _ string, variables map[string]any, data any) (time.Time, error) {
	if s.failed != nil {
		return time.Time{}, s.failed
	}
	if s.during != nil {
		s.during()
		s.during = nil
	}
	s.pages++
	from := 0
	if after, _ := variables["after"].(string); after != "" {
		_, _ = fmt.Sscan(after, &from)
	}
	to := min(from+variables["first"].(int), len(s.log))
	var p page
	for n := range s.log[from:to] {
		p.WebhookEvents.Nodes = append(p.WebhookEvents.Nodes, &s.log[from+n])
	}
	p.WebhookEvents.PageInfo.HasNextPage, p.WebhookEvents.PageInfo.EndCursor = to < len(s.log), fmt.Sprint(to)
	answer, err := json.Marshal(p)
	return s.now, errors.Join(err, json.Unmarshal(answer, data))
}

// pass lets time pass, here, at the service and at the database.
func (s *service) pass(d time.Duration) {
	s.now = s.now.Add(d)
	s.Pass(d)
}

// logs has the service make a webhook that usher does not get. answer is what the service got.
func (s *service) logs(answer any, body string) {
	payload, _ := json.Marshal(body)
	s.log = slices.Insert(s.log, 0, event{
		CreatedAt: s.now.Truncate(time.Second), Payload: payload, URL: "https://gate.example.com/webhooks/t0ken", ResponseCode: answer,
	})
}

// gets has usher get a webhook, too.
func (s *service) gets(platform, tenant, body string) {
	s.logs("200", body)
	s.Take(platform, tenant, body)
}

func (s *service) runs(wantLeft bool) {
	s.t.Helper()
	left, err := s.once(s.t.Context())
	if err != nil || left != wantLeft {
		s.t.Errorf("left %v, %v", left, err)
	}
}

// has is what usher has taken in, the newest first: where it comes from, its state, and its body.
func (s *service) has(tenant string) (all []string) {
	s.t.Helper()
	list, err := s.List(s.t.Context(), inbox.Filter{Limit: 100})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, w := range list {
		if w.Tenant != tenant {
			continue
		}
		if w.Source == lane.SourceCatchUp && w.State == state.Waiting {
			s.Tried(w.ID)
		}
		w := s.Entry(w.ID)
		_, features, _ := strings.Cut(string(w.Body), `"features":`)
		all = append(all, strings.Join(strings.Fields(fmt.Sprint(w.Source, " ", w.State, " ", strings.TrimRight(features, "}"))), " "))
	}
	return all
}

func (s *service) want(tenant string, want ...string) {
	s.t.Helper()
	if got := s.has(tenant); !slices.Equal(got, want) {
		s.t.Errorf("%s: %s\nwant %s", tenant, strings.Join(got, " | "), strings.Join(want, " | "))
	}
}

var body = inboxtest.Snapshot

const (
	a5 = `[{"code":"a","quantity":5}]`
	a6 = `[{"code":"a","quantity":6}]`
	a7 = `[{"code":"a","quantity":7}]`
)

// The newest change of a tenant is taken in once, whoever dropped it, with its JSON as the service writes it.
func TestCatchUp(t *testing.T) {
	s := newService(t)
	s.gets("p", "acme", body("p", "acme", "a=5"))
	s.gets("p", "other", body("p", "other", "a=5"))
	s.pass(time.Hour)
	s.logs(nil, body("p", "acme", "a=6"))
	s.logs("503", strings.ReplaceAll(body("p", "acme", "a=7"), ":", " : "))
	s.pass(time.Minute)
	for range 2 {
		s.runs(false)
		s.want("acme", "catch-up delivered "+a7, "delivered "+a5)
		s.want("other", "delivered "+a5)
		s.pass(10 * time.Minute)
	}
	if s.caught != 1 {
		t.Errorf("%d were counted", s.caught)
	}
	// A change, and back: what usher has is what the service says.
	s.logs(nil, body("p", "other", "a=6"))
	s.logs(nil, body("p", "other", "a=5"))
	s.pass(time.Minute)
	s.runs(false)
	s.want("other", "delivered "+a5)
}

// What nobody can tell yet is left to a later run.
func TestLeft(t *testing.T) {
	t.Run("young", func(t *testing.T) {
		s := newService(t)
		s.gets("p", "acme", body("p", "acme", "a=5"))
		s.pass(time.Hour)
		s.logs(nil, body("p", "acme", "a=6"))
		s.pass(20 * time.Second)
		s.runs(true)
		s.want("acme", "delivered "+a5)
		s.pass(20 * time.Second)
		s.runs(false)
		s.want("acme", "catch-up delivered "+a6, "delivered "+a5)
	})
	t.Run("something came while the log was read", func(t *testing.T) {
		s := newService(t)
		s.gets("p", "acme", body("p", "acme", "a=5"))
		s.pass(time.Hour)
		s.logs(nil, body("p", "acme", "a=6"))
		s.pass(time.Hour)
		s.during = func() { s.Take("p", "acme", body("p", "acme", "a=7")) } // the log lags
		s.runs(true)
		s.want("acme", "delivered "+a7, "delivered "+a5)
		s.logs("200", body("p", "acme", "a=7"))
		s.pass(2 * time.Minute)
		s.runs(false)
		s.want("acme", "delivered "+a7, "delivered "+a5)
	})
	t.Run("something came right before, and the log lags", func(t *testing.T) {
		s := newService(t)
		s.logs(nil, body("p", "acme", "a=6"))
		s.pass(time.Hour)
		s.Take("p", "acme", body("p", "acme", "a=7"))
		s.runs(true)
		s.want("acme", "delivered "+a7)
	})
	t.Run("an old one stays in reach", func(t *testing.T) {
		s := newService(t)
		s.gets("p", "acme", body("p", "acme", "a=5"))
		s.runs(false)
		s.pass(time.Hour)
		s.logs(nil, body("p", "acme", "a=6"))
		for range 20 { // something comes all the time
			s.pass(3 * time.Minute)
			s.Take("p", "acme", body("p", "acme", fmt.Sprint("b=", s.now.Unix())))
			s.runs(true)
		}
		s.pass(10 * time.Minute)
		s.runs(false)
		if all := s.has("acme"); all[0] != "catch-up delivered "+a6 {
			t.Error(all[0])
		}
	})
}

// What somebody knows better is not taken in.
func TestNothingToDo(t *testing.T) {
	t.Run("erased since", func(t *testing.T) {
		s := newService(t)
		s.gets("p", "acme", body("p", "acme", "a=5"))
		s.pass(time.Minute)
		s.logs(nil, body("p", "acme", "a=6"))
		s.pass(time.Minute)
		if _, err := s.Erase("p", "acme"); err != nil {
			t.Fatal(err)
		}
		s.pass(time.Hour)
		s.runs(false)
		s.want("acme")
		s.logs(nil, body("p", "acme", "a=7")) // the tenant is back
		s.pass(time.Minute)
		s.runs(false)
		s.want("acme", "catch-up delivered "+a7)
	})
	t.Run("recorded as invalid", func(t *testing.T) {
		s := newService(t)
		s.logs("422", strings.ReplaceAll(body("p", "acme", "a=5"), "5", `"5"`))
		s.pass(time.Minute)
		for range 2 {
			s.runs(false)
			s.want("acme", "invalid "+strings.ReplaceAll(a5, "5", `"5"`))
		}
	})
	t.Run("nobody takes its platform", func(t *testing.T) {
		s := newService(t, "erp")
		s.logs(nil, body("p", "acme", "a=5"))
		s.pass(time.Minute)
		s.runs(false)
		s.want("acme", "catch-up stored "+a5) // entitlements are on there
	})
	t.Run("of another address, or another type", func(t *testing.T) {
		s := newService(t)
		s.logs(nil, body("p", "acme", "a=5"))
		s.log[0].URL = "https://other.example.com/webhooks"
		s.logs(nil, `{"type":"InvoiceCreated","payload":{"tenant":{"code":"acme"}}}`)
		s.logs(nil, "not JSON")
		s.pass(time.Minute)
		s.runs(false)
		s.want("acme")
		if !s.State().Elsewhere {
			t.Error("nobody says that all of them go elsewhere")
		}
		s.logs(nil, body("p", "acme", "a=6"))
		s.pass(time.Minute)
		s.runs(false)
		if s.want("acme", "catch-up delivered "+a6); s.State().Elsewhere {
			t.Error("one came here")
		}
	})
	t.Run("renamed since", func(t *testing.T) {
		s := newService(t)
		named := func(code string) string {
			return strings.Replace(body("p", code, "a=5"), `"code":"`+code+`"`, `"id":132,"code":"`+code+`"`, 1)
		}
		s.logs(nil, named("acme"))
		s.logs(nil, named("acme-2"))
		s.pass(time.Minute)
		s.runs(false)
		s.want("acme")
		s.want("acme-2", "catch-up delivered "+a5)
	})
}

// On the first day the receiver has what the service says it has: nothing of that is delivered again.
func TestFirstRun(t *testing.T) {
	s := newService(t)
	s.logs("200", body("p", "old", "a=5"))
	s.logs(500, body("p", "failed", "a=5"))
	s.logs(nil, body("p", "lost", "a=5"))
	s.gets("p", "known", body("p", "known", "a=5"))
	s.logs("204", body("p", "known", "a=6"))
	s.pass(time.Hour)
	s.runs(false)
	s.want("old", "catch-up stored "+a5)
	s.want("failed", "catch-up delivered "+a5)
	s.want("lost", "catch-up delivered "+a5)
	s.want("known", "catch-up delivered "+a6, "delivered "+a5)
	s.logs("200", body("p", "new", "a=5")) // by whom, if not by usher?
	s.pass(time.Minute)
	s.runs(false)
	s.want("new", "catch-up delivered "+a5)
}

// A run reads no further than it must, and no page twice.
func TestPages(t *testing.T) {
	s := newService(t)
	for n := range 250 {
		s.gets("p", fmt.Sprint("t", n), body("p", fmt.Sprint("t", n), "a=5"))
	}
	s.pass(time.Hour)
	s.runs(false)
	if s.pages != 3 {
		t.Errorf("%d pages", s.pages)
	}
	s.pages = 0
	s.logs(nil, body("p", "t7", "a=6"))
	s.pass(time.Minute)
	s.runs(false)
	if all := s.has("t7"); len(all) == 0 || all[0] != "catch-up delivered "+a6 {
		t.Error(all)
	}
	if s.pages != 1 && s.pages != 3 { // the first run has seen all within ten minutes
		t.Errorf("%d pages", s.pages)
	}
	s.pass(time.Hour)
	s.logs(nil, body("p", "t8", "a=6"))
	s.pass(time.Minute)
	s.runs(false)
	s.pages = 0
	s.runs(false)
	if s.pages != 1 {
		t.Errorf("%d pages", s.pages)
	}
}

// A run that has failed has read nothing: the next one begins where it did. Why is said, and whether waiting helps.
func TestFailures(t *testing.T) {
	s := newService(t)
	s.logs(nil, body("p", "acme", "a=5"))
	s.pass(time.Minute)
	s.failed = outbound.CallRefusedError("Missing required permission: workflow:read")
	if _, err := s.once(t.Context()); err == nil {
		t.Fatal("no error")
	} else {
		s.note(err)
	}
	if st := s.State(); !st.Refused || !strings.Contains(st.Failed, "permission") || st.Since.IsZero() {
		t.Errorf("%+v", st)
	}
	s.failed = nil
	s.runs(false)
	s.note(nil)
	if st := s.State(); st.Failed != "" {
		t.Errorf("%+v", st)
	}
	s.want("acme", "catch-up delivered "+a5)
	s.pass(time.Hour)
	s.log = nil // somebody has emptied the log, or it is that of another account
	s.runs(false)
	if !s.State().Shorter {
		t.Error("nobody says that the log is shorter")
	}
}

// A run that leaves nothing ends what was missed before it began: usher has it now. One that left something does not,
// nor one that cannot be believed.
func TestMissedIsOver(t *testing.T) {
	s := newService(t)
	missed := func(when string, want int) {
		t.Helper()
		testkit.Eventually(t, when, func() bool { return s.Stats().Missed.Webhooks == want })
	}
	s.gets("p", "acme", body("p", "acme", "a=5"))
	s.pass(time.Hour)
	s.runs(false)
	s.logs("503", body("p", "acme", "a=6"))
	s.Miss(time.Now())
	missed("at first", 1)
	s.pass(20 * time.Second)
	s.runs(true)
	s.Miss(time.Now())
	missed("left to a later run", 2)
	log := s.log
	s.log = nil
	s.pass(time.Minute)
	s.runs(false)
	s.Miss(time.Now())
	missed("the log is shorter", 3)
	s.log = log
	s.pass(time.Minute)
	s.during = func() { s.pass(time.Second); s.Miss(time.Now()) }
	s.runs(false)
	s.want("acme", "catch-up delivered "+a6, "delivered "+a5)
	s.pass(time.Minute)
	missed("one more while the log was read", 4)
	s.runs(false)
	missed("all is taken in", 0)
}

// Changes that come through the log alone while the gate is up say that the service does not reach it.
func TestAlone(t *testing.T) {
	s := newService(t)
	for n := range 3 {
		s.logs("404", body("p", fmt.Sprint("t", n), "a=5"))
	}
	s.pass(time.Minute)
	s.runs(false)
	if st := s.State(); st.Alone != 3 || st.Answer != "404" || st.AloneSince.IsZero() {
		t.Errorf("%+v", st)
	}
	s.GateAnswered(200)
	if st := s.State(); st.Alone != 0 {
		t.Errorf("%+v", st)
	}
}

// usher catches up once it takes webhooks again.
func TestWake(t *testing.T) {
	c := New(Config{})
	woken := func() bool { return len(c.wake) == 1 }
	for _, step := range []struct {
		status int
		want   bool
	}{{200, false}, {503, false}, {503, false}, {200, true}, {503, true}, {200, true}} {
		if c.GateAnswered(step.status); woken() != step.want {
			t.Errorf("after %d: %v", step.status, woken())
		}
	}
}

// asks has somebody ask for a run over the log.
func (s *service) asks(since time.Time, mode lane.ReconcileMode, want string) {
	s.t.Helper()
	begun, _, err := s.BeginRun(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	var said []string
	run, err := s.Reconcile(s.t.Context(), begun.ID, since, mode, func(some []lane.Compared, _ int) error {
		for _, c := range some {
			said = append(said, fmt.Sprintf("%s %s%v %v", c.Tenant, c.Result, c.Changes, c.Applied))
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if got := strings.Join(append(said, run.Found.String(), run.Failed), "; "); got != want {
		s.t.Errorf("%s: %s\nwant %s", mode, got, want)
	}
}

// A run that somebody asks for says what it would take in, or takes it in. The next run of usher's own begins where it
// would have begun without it.
func TestReconcile(t *testing.T) {
	s := newService(t)
	s.gets("p", "acme", body("p", "acme", "a=5"))
	s.gets("p", "same", body("p", "same", "a=5"))
	s.gets("p", "gone", body("p", "gone", "a=5"))
	s.gets("p", "busy", body("p", "busy", "a=5"))
	s.pass(time.Minute)
	if _, err := s.Erase("p", "gone"); err != nil {
		t.Fatal(err)
	}
	s.runs(false)
	s.logs(nil, body("p", "acme", "a=6"))
	s.pass(time.Hour)
	s.logs(nil, body("p", "new", "a=7"))
	s.logs("422", strings.ReplaceAll(body("p", "bad", "a=5"), "5", `"5"`))
	s.logs(nil, body("p", "busy", "a=6"))
	s.pass(time.Minute)
	s.Take("p", "busy", body("p", "busy", "a=7"))
	s.Miss(time.Now())
	for range 2 {
		s.asks(time.Time{}, lane.ToCompare, "busy left[] false; new new[+ a (7)] false; acme differs[a 5 → 6] false; "+
			"1 equal, 1 differs, 1 new, 1 left, 2 passed over; ")
	}
	s.want("acme", "delivered "+a5)
	s.want("new")
	s.want("bad") // nor is it recorded
	s.asks(s.now.Add(-10*time.Minute), lane.ToApply, "busy left[] false; new new[+ a (7)] true; 1 new, 1 left, 1 taken in, 1 passed over; ")
	s.want("new", "catch-up delivered "+a7)
	s.want("bad", "invalid "+strings.ReplaceAll(a5, "5", `"5"`))
	s.want("acme", "delivered "+a5)
	s.asks(time.Time{}, lane.ToApply, "busy left[] false; acme differs[a 5 → 6] true; 2 equal, 1 differs, 1 left, 1 taken in, 2 passed over; ")
	s.want("acme", "catch-up delivered "+a6, "delivered "+a5)
	s.logs("200", body("p", "busy", "a=7"))
	s.pass(2 * time.Minute)
	if s.Stats().Missed.Webhooks != 1 {
		t.Error("one was left, and nothing is missed")
	}
	s.asks(time.Time{}, lane.ToCompare, "4 equal, 2 passed over; ")
	testkit.Eventually(t, "nothing is missed", func() bool { return s.Stats().Missed.Webhooks == 0 && !s.Stats().Reconciled.IsZero() })
	if st := s.State(); st.Webhooks != 0 {
		t.Errorf("%+v: somebody has asked for it, and was told", st)
	}
	s.runs(false)
	s.log = s.log[len(s.log)-2:]
	s.asks(time.Time{}, lane.ToApply, "acme differs[a 6 → 5] false; 1 equal, 1 differs; the webhook log ends before the newest webhook that usher has read there: is it that of the same account?")
	for n := range s.log {
		s.log[n].URL = "https://other.example.com/webhooks"
	}
	s.asks(time.Time{}, lane.ToCompare, "nothing; the webhook log has no webhook that was sent to this gate: is USHER_WEBHOOK_CATCH_UP_URL right?")
}

// Whoever has asked for a run hears why the log could not be read.
func TestReconcileFails(t *testing.T) {
	s := newService(t)
	s.failed = errors.New("the service answered 500")
	begun, _, err := s.BeginRun(nil)
	if err == nil {
		_, err = s.Reconcile(t.Context(), begun.ID, time.Time{}, lane.ToApply, func([]lane.Compared, int) error { return nil })
	}
	if err == nil || err.Error() != "cannot read the billing service's webhook log: the service answered 500" {
		t.Error(err)
	}
}

// What was caught up lately is one sentence: how many webhooks of how many tenants, and whether usher was down then.
func TestCaughtLately(t *testing.T) {
	s := newService(t)
	s.began = time.Now()
	s.logs(nil, body("p", "old", "a=5"))
	s.pass(time.Minute)
	s.runs(false) // the first of all
	if st := s.State(); st.Webhooks != 0 {
		t.Errorf("%+v", st)
	}
	s.pass(time.Hour)
	s.logs(nil, body("p", "acme", "a=6"))
	s.logs(nil, body("p", "globex", "a=6"))
	s.pass(4 * time.Minute)
	s.logs(nil, body("p", "other", "a=6"))
	s.pass(time.Minute)
	s.runs(false)
	s.logs(nil, body("p", "acme", "a=7"))
	s.pass(2 * time.Minute)
	s.runs(false)
	st := s.State()
	if st.Webhooks != 4 || st.Tenants != 3 || !st.Down || st.To.Sub(st.From).Round(time.Minute) != 4*time.Minute || st.CaughtAt.IsZero() {
		t.Errorf("%+v", st)
	}
	s.began = time.Now().Add(-time.Hour)
	s.logs("503", body("p", "acme", "a=8"))
	s.pass(2 * time.Minute)
	s.runs(false)
	if st := s.State(); st.Webhooks != 5 || st.Down {
		t.Errorf("%+v", st)
	}
}
