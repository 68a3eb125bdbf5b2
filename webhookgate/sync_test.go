package webhookgate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/content"
	"usher/internal/receiver"
)

const question = `{"type":"Checkout","payload":{"tenant":{"code":"acme","platform":{"code":"crm"}},"cart":[1]}}`

// asking is a gate whose receiver is asked about checkouts. Whatever is kept is a fault.
func asking(t *testing.T, receive roundTrip, change func(*setup)) *Gate {
	t.Helper()
	return newGate(t, func(c *setup) {
		c.SyncTypes, c.Transport = []string{"Checkout"}, receive
		c.Store = func(_ context.Context, w *Webhook) (string, error) {
			t.Errorf("%s was kept", w.Type)
			return "", nil
		}
		if change != nil {
			change(c)
		}
	})
}

// ask sends a question; what comes back need not be an answer of usher's.
func ask(g *Gate, body string) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	g.ServeHTTP(rec, request(body))
	return rec
}

func TestQuestionIsAnsweredByTheReceiver(t *testing.T) {
	for _, tt := range []struct {
		name         string
		status       int
		body         string
		header       []string
		contentTypes []string
	}{
		{"yes", 200, `{"allowed":true}`, []string{"Content-Type", "application/json; charset=utf-8"}, []string{"application/json; charset=utf-8"}},
		{"no", 403, `["no seats left",{"limit":5}]`, []string{"Content-Type", "application/vnd.shop+json"}, []string{"application/vnd.shop+json"}},
		{"its own trouble", 503, "<html>", []string{"Content-Type", "text/html"}, []string{"text/html"}},
		{"somewhere else", 302, "", []string{"Location", "http://elsewhere"}, nil},
		{"nothing to say", 204, "", nil, nil},
		{"of no type", 200, "<html>", nil, nil},
		{"pressed", 200, "\x1f\x8b", []string{"Content-Type", "a/b", "Content-Encoding", "gzip"}, []string{"a/b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var sent *http.Request
			var results []string
			g := asking(t, func(r *http.Request) (*http.Response, error) {
				sent = r
				b, _ := io.ReadAll(r.Body)
				if string(b) != question {
					t.Errorf("asked %q", b)
				}
				return respond(tt.status, tt.body, append([]string{"X-Private", "stays here"}, tt.header...)...), nil
			}, func(c *setup) {
				c.Tried = func(result string, _ int, _ time.Duration) { results = append(results, result) }
			})
			for range 2 { // the same twice is asked twice
				rec := ask(g, question)
				h := rec.Header()
				if rec.Code != tt.status || rec.Body.String() != tt.body || h.Get("Usher-Decision") != "forwarded" {
					t.Errorf("%d %v %q", rec.Code, h, rec.Body)
				}
				if got := h.Values("Content-Type"); strings.Join(got, "|") != strings.Join(tt.contentTypes, "|") {
					t.Errorf("Content-Type %q", got)
				}
				if h.Get("Content-Length") != "" && tt.status == 204 { // which HTTP does not allow there
					t.Errorf("an answer without a body has a length: %v", h)
				}
				if h.Get("X-Private") != "" || h.Get("Location") != "" || (h.Get("Content-Encoding") != "") != (tt.name == "pressed") {
					t.Errorf("%v", h)
				}
			}
			want := "ok ok"
			if tt.status >= 500 {
				want = "status status"
			}
			if got := strings.Join(results, " "); got != want || sent.Header.Get("Webhook-Id") == "" {
				t.Errorf("tries: %s, want %s; sent %v", got, want, sent.Header)
			}
		})
	}
}

// What the receiver does not answer whole, and in time, is no decision.
func TestQuestionWithoutAnAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		receive roundTrip
		status  int
		error   string
	}{
		"unreachable": {func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") }, 502, "could not be reached"},
		"too slow":    {func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() }, 504, "did not answer within"},
		"breaks off":  {func(*http.Request) (*http.Response, error) { return broken(errors.New("reset")), nil }, 502, "answer ended too early"},
		"never ends":  {func(r *http.Request) (*http.Response, error) { return broken(context.DeadlineExceeded), nil }, 504, "did not answer within"},
		"too large": {func(*http.Request) (*http.Response, error) {
			return respond(200, strings.Repeat("x", 1<<20+1)), nil
		}, 502, "larger than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries, results := 0, ""
				var told Outcome
				g := asking(t, func(r *http.Request) (*http.Response, error) { tries++; return tt.receive(r) }, func(c *setup) {
					c.AnswerWithin = 4500 * time.Millisecond
					c.Answered = func(o Outcome) { told = o }
					c.Tried = func(result string, _ int, _ time.Duration) { results += result }
				})
				begin := time.Now()
				got := post(t, g, question)
				if got.Code != tt.status || got.Error != forBuyers || got.Decision != failed || tries != 1 || results != map[int]string{502: "error", 504: "timeout"}[tt.status] {
					t.Errorf("%v after %d tries: %s", got, tries, results)
				}
				if !strings.Contains(told.Why, tt.error) || strings.Contains(told.Why, "reset") || told.Tries != 1 || !told.Question {
					t.Errorf("told %+v", told)
				}
				if took := time.Since(begin); took != 0 && took != 4500*time.Millisecond {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

// broken is an answer whose body ends with err.
func broken(err error) *http.Response {
	resp := respond(200, "")
	resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(`{"allowed":`), failing{err}))
	return resp
}

type failing struct{ err error }

func (r failing) Read([]byte) (int, error) { return 0, r.err }

// A question waits for nothing: not for a delivery of its tenant that hangs, nor for
// another question; and it goes through every check that webhooks go through.
func TestQuestionsWaitInNoQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		g := newGate(t, func(c *setup) {
			c.SyncTypes = []string{"Checkout"}
			c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				if b, _ := io.ReadAll(r.Body); strings.Contains(string(b), content.TenantProvisioningChange) {
					<-hang
				}
				return respond(200, "yes"), nil
			})
		})
		var wg sync.WaitGroup
		wg.Go(func() { post(t, g, snapshotOf("acme", "A")) })
		synctest.Wait()
		for range 50 {
			if rec := ask(g, question); rec.Code != 200 || rec.Body.String() != "yes" {
				t.Fatalf("%d %s", rec.Code, rec.Body)
			}
		}
		close(hang)
		wg.Wait()
	})
	never := func(*http.Request) (*http.Response, error) { t.Error("asked"); return respond(200, ""), nil }
	for body, want := range map[string]string{
		question[:60]: "400 " + forBuyers, `{"type" : "Checkout","type":"Checkout"}`: "400 " + forBuyers,
		`{"Checkout":`: "400 the body is not JSON", strings.Replace(question, "Checkout", "checkout", 1): "422 /type is",
	} {
		if got := post(t, asking(t, never, nil), body); !strings.HasPrefix(fmt.Sprint(got.Code, " ", got.Error), want) {
			t.Errorf("%s: %v", body, got)
		}
	}
	if got := post(t, asking(t, never, func(c *setup) { c.Tokens = tokens("secret") }), question); got.Code != 401 {
		t.Error(got)
	}
}

// The sender's hang-up ends the try; nothing is said about the receiver.
func TestQuestionEndsWithItsSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		cancelled := false
		g := asking(t, func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			cancelled = true
			return nil, r.Context().Err()
		}, func(c *setup) {
			c.Log = logTo(&log)
			c.Tried = func(result string, _ int, _ time.Duration) { t.Errorf("counted: %s", result) }
		})
		ctx, hangUp := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); hangUp() }()
		begin := time.Now()
		g.ServeHTTP(httptest.NewRecorder(), request(question).WithContext(ctx))
		if !cancelled || time.Since(begin) != time.Second || !strings.Contains(log.String(), "the sender hung up") {
			t.Errorf("cancelled %v after %v: %s", cancelled, time.Since(begin), log.String())
		}
	})
}

// A shutdown waits for the answer, and when its grace is over says so.
func TestQuestionAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := asking(t, func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}, nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			if got := post(t, g, question); got.Code != 503 {
				t.Error(got)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if g.Shutdown(ctx) == nil {
			t.Error("it did not wait")
		}
		wg.Wait()
	})
}

// A question needs a type and no more: no schema applies, and a type in both lists is one.
func TestQuestionNeedsNothingButItsType(t *testing.T) {
	for _, body := range []string{`{"type":"Checkout"}`, `{"type":"Checkout","payload":[]}`, `{"type":"Checkout","payload":{"tenant":{"code":[],"platform":7}}}`} {
		g := asking(t, func(*http.Request) (*http.Response, error) { return respond(200, ""), nil }, func(c *setup) {
			c.Types, c.Schema = []string{"Checkout"}, []byte(`{"required":["id"]}`)
		})
		if rec := ask(g, body); rec.Code != 200 || rec.Header().Get("Usher-Decision") != forwarded {
			t.Errorf("%s: %d %s", body, rec.Code, rec.Body)
		}
	}
}

// The service names no platform in its questions: usher asks the receiver that knows the tenant.
func TestWhoAnswersAQuestion(t *testing.T) {
	on := func(platform string) *receiver.Receiver {
		return &receiver.Receiver{Name: platform, Platforms: []string{platform}, URL: address(platform)}
	}
	main := &receiver.Receiver{Name: receiver.Main, URL: address("main")}
	known := map[string][]string{"crm's": {"crm"}, "both's": {"crm", "docs"}, "lost": {"shop"}}
	for _, tc := range []struct {
		of        LaneName
		receivers []*receiver.Receiver
		want      string
	}{
		{LaneName{"crm", "docs's", ""}, []*receiver.Receiver{main, on("crm")}, "crm"},
		{LaneName{"shop", "a", ""}, []*receiver.Receiver{main, on("crm")}, "main"},
		{LaneName{"shop", "crm's", ""}, []*receiver.Receiver{on("crm"), on("docs")}, "422"},
		{LaneName{"", "crm's", ""}, []*receiver.Receiver{main, on("crm")}, "crm"},
		{LaneName{"", "crm's", ""}, []*receiver.Receiver{on("crm"), on("docs")}, "crm"},
		{LaneName{"", "both's", ""}, []*receiver.Receiver{main, on("crm"), on("docs")}, "main"},
		{LaneName{"", "both's", ""}, []*receiver.Receiver{on("crm"), on("docs")}, "422"},
		{LaneName{"", "lost", ""}, []*receiver.Receiver{on("crm"), on("docs")}, "422"},
		{LaneName{"", "nobody's", ""}, []*receiver.Receiver{main, on("crm")}, "main"},
		{LaneName{"", "nobody's", ""}, []*receiver.Receiver{on("crm")}, "crm"},
		{LaneName{"", "nobody's", ""}, []*receiver.Receiver{on("crm"), on("docs")}, "422"},
		{LaneName{"", "away", ""}, []*receiver.Receiver{main, on("crm")}, "503"},
		{LaneName{"", "away", ""}, []*receiver.Receiver{on("crm")}, "crm"},
		{LaneName{"", "", ""}, []*receiver.Receiver{on("crm"), on("docs")}, "422"},
		{LaneName{"", "crm's", ""}, nil, "422"},
	} {
		c := &Config{Receivers: receiver.NewSet(tc.receivers...), Log: slog.New(slog.DiscardHandler)}
		c.PlatformsOf = func(_ context.Context, tenant string) ([]string, error) {
			if tenant == "away" {
				return nil, errors.New("the database is away")
			}
			return known[tenant], nil
		}
		to, no := c.whoAnswers(t.Context(), tc.of)
		got := ""
		if no != nil {
			got = fmt.Sprint(no.status)
		} else {
			got = to.Name
		}
		if got != tc.want {
			t.Errorf("%+v of %d receivers: %s, want %s", tc.of, len(tc.receivers), got, tc.want)
		}
	}
}

// Questions have places of their own: changes that hang take none of them, nor the other way round.
func TestQuestionsHavePlacesOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs, release := context.WithCancel(t.Context())
		g := newGate(t, func(c *setup) {
			c.SyncTypes, c.MaxInflight = []string{"Checkout"}, 2
			c.Transport = roundTrip(func(*http.Request) (*http.Response, error) { <-hangs.Done(); return respond(200, ""), nil })
		})
		var senders sync.WaitGroup
		for i := range 2 {
			senders.Go(func() { post(t, g, snapshotOf(fmt.Sprint(i), "A")) })
			senders.Go(func() { ask(g, question) })
		}
		synctest.Wait()
		if g.places.all != 4 {
			t.Errorf("%d places are taken, not 4", g.places.all)
		}
		if got := post(t, g, snapshotOf("3", "A")); got.Code != 503 {
			t.Errorf("one change too many: %v", got)
		}
		if got := post(t, g, question); got.Code != 503 || got.Error != forBuyers {
			t.Errorf("one question too many: %v", got)
		}
		release()
		senders.Wait()
	})
}
