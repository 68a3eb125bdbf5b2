package sandbox

import (
	"bytes"
	"context"
	"fmt"
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

func TestSameSeedSameWebhooks(t *testing.T) {
	a, _ := newPair(7)
	b, _ := newPair(7)
	c, _ := newPair(8)
	differs := false
	for range 100 {
		ea, eb, ec := mustChange(t, a), mustChange(t, b), mustChange(t, c)
		if !bytes.Equal(ea.Body, eb.Body) || ea.Summary != eb.Summary {
			t.Fatalf("seed 7 made %q and %q", ea.Summary, eb.Summary)
		}
		differs = differs || !bytes.Equal(ea.Body, ec.Body)
	}
	if !differs {
		t.Error("seeds 7 and 8 make the same")
	}
}

// Every fourth webhook repeats the one before it.
func TestNext(t *testing.T) {
	s, rc := newPair(1)
	var last SentWebhook
	for n := 1; n <= 40; n++ {
		e := s.Next(t.Context())
		if again := e.Summary == fmt.Sprintf("#%d again: %s", n-1, last.Summary); e.N != n || again != (n%4 == 0) || again != bytes.Equal(e.Body, last.Body) {
			t.Fatalf("webhook %d is number %d: %s", n, e.N, e.Summary)
		}
		last = e
	}
	if d := rc.Deliveries(); len(d) != 40 {
		t.Errorf("deliveries %+v", d)
	}
}

func TestSendNotesTheAnswer(t *testing.T) {
	var got *http.Request
	var body []byte
	s := NewSender(1, "http://gate.example/webhooks")
	s.Header = http.Header{"X-Webhook-Token": {"secret"}}
	s.Client.Transport = inProcess{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.Header().Set("Usher-Decision", "rejected")
		w.WriteHeader(422)
		_, _ = io.WriteString(w, strings.Repeat("x", 2*excerptSize))
	})}
	e := s.Send(t.Context(), []byte("nonsense"))
	if e.Status != 422 || e.Decision != "rejected" || len(e.Answer) != excerptSize {
		t.Errorf("entry %+v", e)
	}
	if got.Header.Get("X-Webhook-Token") != "secret" || got.Header.Get("Content-Type") != "application/json" || string(body) != "nonsense" {
		t.Errorf("sent %v %q", got.Header, body)
	}
}

func TestSendWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, rc := newPair(1)
		rc.Fail(Fault{Hang: true})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if e := s.Change(ctx); e.Status != 0 || e.Answer == "" || e.Took != 10*time.Second {
			t.Errorf("entry %+v", e)
		}
	})
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
