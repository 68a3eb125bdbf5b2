package admin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/admin/status"
	"usher/internal/entitlements"
	"usher/internal/inbox"
	"usher/internal/inbox/engine"
	"usher/internal/testkit"
	"usher/internal/testkit/inboxtest"
)

// If all chosen webhooks are delivered before somebody confirms, nothing is done, and the page says so.
func TestNothingLeftToDo(t *testing.T) {
	for act, said := range map[string]string{"redeliver": "usher redelivers them.", "discard": "They are discarded."} {
		h := New(port(inboxtest.Open(t)))
		w := post(h, "/"+act, "state=parked")
		_, page := ask(h, "GET", w.Header().Get("Location"), "", "Accept", "text/html")
		if w.Code != http.StatusSeeOther || strings.Contains(page, said) || !strings.Contains(page, "Nothing was done") {
			t.Errorf("%s: %d\n%s", act, w.Code, page)
		}
	}
}

// An empty name does not mean all tenants: a script may have failed to fill it in.
func TestEmptyNameIsNotEverything(t *testing.T) {
	b := world(t)
	h, before := New(port(b)), b.Stands()
	for _, path := range []string{"/api/pause", "/api/resume"} {
		for _, body := range []string{`{"tenant":""}`, `{"tenant":null}`, `{"receiver":""}`, `{"receiver":null}`, `{"tenant":"acme","tenant":""}`, `{"tenant":"","platform":"eu"}`} {
			if status, answer := ask(h, "POST", path, body); status != 400 {
				t.Errorf("%s %s: %d %s", path, body, status, answer)
			}
		}
	}
	for _, form := range []string{"tenant=", "receiver=", "tenant=&platform=eu"} {
		if w := post(h, "/pause", form); w.Code != 400 {
			t.Errorf("%s: %d", form, w.Code)
		}
	}
	if did := inboxtest.Acted(before, b.Stands()); did != "" {
		t.Errorf("did %q", did)
	}
}

// A replica without a gate shows the webhooks of the shared inbox.
func TestListWithoutAGate(t *testing.T) {
	h := New(port(world(t)))
	status, page := ask(h, "GET", "/webhooks", "", "Accept", "text/html")
	if status != 200 || strings.Contains(page, "The webhook gate is off") || !strings.Contains(page, `id="w-3"`) || !strings.Contains(page, `<a href="/webhooks" aria-current="page">`) {
		t.Errorf("%d\n%s", status, page)
	}
}

// In an outage the figures and the pauses stay as they were, and the page says how old they are.
func TestFiguresOfAnOutage(t *testing.T) {
	b := world(t)
	if err := b.Pause(inbox.Pause{Tenant: "acme", Platform: "eu"}); err != nil {
		t.Fatal(err)
	}
	cfg := port(b)
	cfg.Gate, cfg.Receivers = gate, b.Receivers
	h := New(cfg)
	figures := func() (all status.Inbox, page string) {
		_, body := ask(h, "GET", "/api/status", "")
		var s struct{ Inbox status.Inbox }
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			t.Fatal(err)
		}
		_, page = ask(h, "GET", "/", "", "Accept", "text/html")
		return s.Inbox, page
	}
	before, page := figures()
	if before.Parked == 0 || len(before.HeldUp) == 0 || len(before.Paused) != 1 || !before.Counted.IsZero() || strings.Contains(page, "be read now") || !strings.Contains(page, "Paused: tenant eu/acme") {
		t.Fatalf("%+v\n%s", before, page)
	}
	b.Break("the power is cut")
	for now, page := figures(); ; now, page = figures() {
		if now.Waiting != before.Waiting || now.Parked != before.Parked || now.Invalid != before.Invalid || now.Used != before.Used || len(now.Paused) != 1 || len(now.HeldUp) != len(before.HeldUp) || !strings.Contains(page, "Paused: tenant eu/acme") {
			t.Fatalf("%+v\n%s", now, page)
		}
		// not until they are counted again, after a second
		if !now.Counted.IsZero() && strings.Contains(page, "The inbox can't be read now. It was counted <time") {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// While the database is away, also in its first seconds, whatever people do or look at is 503 with the cause:
// it was not done, and may be later.
func TestDatabaseIsAway(t *testing.T) {
	b := world(t)
	h := New(port(b))
	const why = "the inbox's database can't be reached"
	b.Fail(&engine.AwayError{Err: errors.New(why)})
	for _, c := range []string{
		`POST /api/pause {}`, `POST /api/resume {"tenant":"acme","platform":"eu"}`, `POST /api/erase {"tenant":"acme","platform":"eu"}`,
		`POST /api/webhooks/3/redeliver {}`, `POST /api/webhooks/3/discard {}`,
		`POST /api/webhooks/3/accept {}`, `POST /api/reconcile {"about":""}`, `GET /api/webhooks `, `GET /api/webhooks/3 `, `GET /api/tenants `, `GET /api/tenant?code=acme `,
	} {
		part := strings.SplitN(c, " ", 3)
		if status, body := ask(h, part[0], part[1], part[2], "Content-Type", "application/json"); status != 503 || !strings.Contains(body, why) {
			t.Errorf("%s: %d %s", c, status, body)
		}
	}
}

// While the inbox cannot be read, a tenant is answered that is held in memory, and it is said that the rest is not known.
func TestTenantWhileTheDatabaseIsAway(t *testing.T) {
	b := world(t)
	h := entitled(b)
	for _, away := range []bool{false, true} {
		if away {
			b.Fail(&engine.AwayError{Err: errors.New("no answer")})
		}
		status, body := ask(h, "GET", "/api/tenant?code=acme&platform=eu", "")
		if status != 200 || strings.Contains(body, `"unread":"`) != away {
			t.Errorf("away %v: %d %s", away, status, body)
		}
	}
}

// While the database hangs, also with actions under way and right after something was counted, the status
// takes some seconds altogether, and so does the page. The figures are the last ones.
func TestStatusWhileTheDatabaseHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := world(t)
		b.RecordInvalid(context.Background(), invalid422(ten))
		b.Miss(time.Now())
		cfg := port(b)
		cfg.Gate, cfg.Receivers = gate, b.Receivers
		book := entitlements.NewBook(b.Snapshots, true)
		cfg.Entitlements, cfg.EntitlementsPort = book.Lookup, true
		h := New(cfg)
		_, _ = cfg.Entitlements(t.Context(), "twice", nil)
		time.Sleep(5 * time.Second) // what was missed is stored
		look := func(path, accept string) string {
			began := time.Now()
			_, body := ask(h, "GET", path, "", "Accept", accept)
			if took := time.Since(began); took > 2*statusPatience || path == "/api/status" && took > statusPatience {
				t.Errorf("%s took %v", path, took)
			}
			return body
		}
		const json = "application/json"
		for _, want := range []string{`"parked":3`, `"invalid":1`, `"unknown":1`, "with a 5xx", "eu/odd"} {
			if body := look("/api/status", json); !strings.Contains(body, want) {
				t.Fatalf("no %s in %s", want, body)
			}
		}
		ctx, back := context.WithCancel(t.Context())
		b.Hang(ctx)
		for range 4 {
			go ask(h, "POST", "/api/webhooks/3/redeliver", "{}", "Content-Type", json)
		}
		for range 20 {
			if body := look("/api/status", json); !strings.Contains(body, `"parked":3`) {
				t.Errorf("the figures are gone: %s", body)
			}
			look("/", "text/html")
			time.Sleep(700 * time.Millisecond)
		}
		back()
		time.Sleep(time.Minute) // the actions end
	})
}

// Whoever goes away from a page that takes long has its reading end, whichever page it is, and that is no
// error. (Figures are counted for everybody at once: these may take some seconds.)
func TestPageEndsWithItsReader(t *testing.T) {
	queries := map[string]string{
		"/tenant": "code=acme&platform=eu&ask=erase", "/api/tenant": "code=acme", "/webhooks": "tenant=acme&ask=discard", "/api/redeliver": "platform=eu",
		"/api/webhooks": "tenant=acme", "/tenants": "search=x", "/api/tenants": "trouble=true", "/": "ask=pause", "/api/discard": "tenant=acme",
	}
	synctest.Test(t, func(t *testing.T) {
		b := world(t)
		var log testkit.Output
		cfg := port(b)
		cfg.Gate, cfg.Receivers, cfg.Log = gate, b.Receivers, slog.New(slog.NewTextHandler(&log, nil))
		cfg.Entitlements = entitlements.NewBook(b.Snapshots, true).Lookup
		h := New(cfg)
		h.status(t.Context()) // it has been counted once
		hangs, back := context.WithCancel(t.Context())
		b.Hang(hangs)
		for _, to := range h.routes {
			if to.read == nil {
				continue
			}
			path := strings.ReplaceAll(to.path, "{id}", "3") + "?" + queries[to.path]
			ctx, gone := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				r := httptest.NewRequest("GET", path, nil).WithContext(ctx)
				r.Host = "127.0.0.1:9095"
				h.ServeHTTP(httptest.NewRecorder(), r)
			}()
			synctest.Wait()
			gone()
			began := time.Now()
			<-ended
			if took := time.Since(began); took > 2*statusPatience {
				t.Errorf("%s went on for %v", path, took)
			}
		}
		if strings.Contains(log.String(), "level=ERROR") || strings.Contains(log.String(), "level=WARN") {
			t.Error(log.String())
		}
		back()
		time.Sleep(time.Minute)
	})
}
