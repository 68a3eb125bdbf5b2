package webhookgate

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// unreadable is a body that must not be touched.
type unreadable struct{ t *testing.T }

func (u unreadable) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

func TestRefusedBeforeTheBodyIsRead(t *testing.T) {
	g := newGate(t, func(c *setup) {
		c.Tokens = tokens("good")
		c.MaxBody = 1000
	})
	for want, change := range map[int]func(*http.Request){
		401: func(r *http.Request) {},
		404: func(r *http.Request) { r.URL.Path = "/other" },
		405: func(r *http.Request) { r.Method = "PUT" },
		413: func(r *http.Request) {
			r.Header.Set("X-Webhook-Token", "good")
			r.Header.Set("Expect", "100-continue") // without it the beginning is kept
			r.ContentLength = 1001
		},
	} {
		r := httptest.NewRequest("POST", "/webhooks", unreadable{t})
		change(r)
		if got := serve(t, g, r); got.Code != want {
			t.Errorf("got %v, want %d", got, want)
		}
	}
}

func TestBodyTooLarge(t *testing.T) {
	g := newGate(t, func(c *setup) { c.MaxBody = int64(len(documented)) })
	if got := post(t, g, documented); got.Code != 200 {
		t.Errorf("at the limit: %v", got)
	}
	r := httptest.NewRequest("POST", "/webhooks", io.MultiReader(strings.NewReader(documented), strings.NewReader(" ")))
	r.ContentLength = -1
	if got := serve(t, g, r); got.Code != 413 {
		t.Errorf("one byte beyond, length unknown: %v", got)
	}
}

// dripping is a connection whose body comes in steps, and then stops.
type dripping struct {
	*httptest.ResponseRecorder
	steps    int
	each     time.Duration
	arrived  int // of a step, and not yet read
	deadline time.Time
}

func (d *dripping) SetReadDeadline(t time.Time) error {
	d.deadline = t
	return nil
}

func (d *dripping) Read(p []byte) (int, error) {
	if d.arrived > 0 {
		n := min(d.arrived, len(p))
		d.arrived -= n
		return n, nil
	}
	pause := d.each
	if d.steps == 0 {
		pause = 24 * time.Hour
	}
	if left := time.Until(d.deadline); left < pause {
		time.Sleep(left)
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(pause)
	d.steps--
	d.arrived = 1 << 10
	return d.Read(p)
}

func TestSlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, nil)
		start := time.Now()
		d := &dripping{ResponseRecorder: httptest.NewRecorder(), steps: 8, each: 10 * time.Second}
		r := httptest.NewRequest("POST", "/webhooks", d)
		g.ServeHTTP(d, r)
		if d.Code != 408 {
			t.Errorf("got %d %s, want 408", d.Code, d.Body)
		}
		if took := time.Since(start); took != bodyPatience {
			t.Errorf("took %v", took)
		}
	})
}

// A webhook that says that it is too large is invalid as such, and kept, also if it would not arrive in time.
func TestSlowBodyThatIsTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept []byte
		g := newGate(t, func(c *setup) {
			c.Tokens = tokens("good")
			c.MaxBody = 1 << 20
			c.Invalid = func(_ context.Context, r *Invalid) int64 { kept = r.Body; return 1 }
		})
		start := time.Now()
		d := &dripping{ResponseRecorder: httptest.NewRecorder(), steps: 8, each: time.Second}
		r := httptest.NewRequest("POST", "/webhooks", d)
		r.Header.Set("X-Webhook-Token", "good")
		r.ContentLength = 2 << 20
		g.ServeHTTP(d, r)
		if took := time.Since(start); d.Code != 413 || len(kept) == 0 || took > 2*drainPatience {
			t.Errorf("got %d %s after %v, %d bytes kept", d.Code, d.Body, took, len(kept))
		}
	})
}

func TestBodyDeadlineIsCleared(t *testing.T) {
	d := &dripping{ResponseRecorder: httptest.NewRecorder()}
	newGate(t, nil).ServeHTTP(d, request(documented))
	if d.Code != 200 || !d.deadline.IsZero() {
		t.Errorf("got %d, deadline %v", d.Code, d.deadline)
	}
}

func TestBodyBreaksOff(t *testing.T) {
	g := newGate(t, nil)
	r := httptest.NewRequest("POST", "/webhooks", io.MultiReader(strings.NewReader("{"), errReader{}))
	if got := serve(t, g, r); got.Code != 400 {
		t.Errorf("got %v", got)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
