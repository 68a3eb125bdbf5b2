package e2e

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// Tokens of three seconds, and callers that take longer than that to send their body: the
// token is taken when the call leaves, so the service never sees one that has expired.
func TestTokensExpireWhileBodiesCome(t *testing.T) {
	t.Parallel() // it waits, mostly
	w := newWorld(t)
	w.billing.EditClient("app", func(c *sandbox.Client) { c.TokenLife = 3 * time.Second })
	u := start(t, w.environ()).ready(t)
	began := time.Now()
	var callers sync.WaitGroup
	for range 10 {
		callers.Go(func() {
			req, err := http.NewRequest("POST", "http://"+u.local+"/graphql", dripping(testkit.Query, 4*time.Second))
			if err == nil {
				req.Header.Set("Content-Type", "application/json")
			}
			if r := do(req, err); r.status != 200 || !strings.Contains(r.body, "accounts") {
				t.Errorf("%d %s %v", r.status, r.body, r.err)
			}
		})
	}
	callers.Wait()
	// Taken before the body, all ten would have been rejected. (A machine that stands still
	// for 600 ms can have one refused, too; it is then sent again.)
	if ok, unauthorized := w.billing.Calls(); ok != 10 || unauthorized == 10 {
		t.Errorf("the service answered %d calls and rejected %d", ok, unauthorized)
	}
	// One each 2.28 s at most, and one for the rejected call.
	if n, most := w.billing.TokenRequests(), int(time.Since(began)/(2280*time.Millisecond))+3; n > most {
		t.Errorf("%d token requests, want %d at most", n, most)
	}
}

// dripping is a body that takes so long to come.
func dripping(body string, d time.Duration) io.Reader {
	r, w := io.Pipe()
	go func() {
		for i := range len(body) {
			time.Sleep(d / time.Duration(len(body)))
			if _, err := w.Write([]byte{body[i]}); err != nil {
				return
			}
		}
		w.Close()
	}()
	return r
}

// Two ushers on one API client, where each new token revokes the other's. Every call
// is answered, by the service; the token endpoint is asked at a bounded rate; and the
// log and the metrics of both say what is going on.
func TestTwoUshersOnOneClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.billing.EditClient("app", func(c *sandbox.Client) { c.OneToken = true })
	ushers := []*usher{start(t, w.environ()), start(t, w.environ())}
	for _, u := range ushers {
		u.ready(t)
	}
	began, before := time.Now(), w.billing.TokenRequests()
	const each = 150
	var mu sync.Mutex
	seen := map[int]int{}
	var callers sync.WaitGroup
	for _, u := range ushers {
		for range 2 {
			callers.Go(func() {
				for range each {
					r := u.call()
					// 401 in the service's own words: past the limit usher passes it on.
					if r.err != nil || r.status != 200 && (r.status != 401 || r.code() != "") {
						t.Errorf("%d %s %v", r.status, r.body, r.err)
					}
					mu.Lock()
					seen[r.status]++
					mu.Unlock()
					time.Sleep(5 * time.Millisecond) // a caller's own pace
				}
			})
		}
	}
	callers.Wait()
	took := time.Since(began)
	if n, most := w.billing.TokenRequests()-before, 2*(5+int(took/time.Second)+1); n > most {
		t.Errorf("%d token requests in %v, want %d at most", n, took, most)
	}
	if seen[200] < each/5 {
		t.Errorf("only %v of %d calls", seen, 4*each)
	}
	for _, u := range ushers {
		if !strings.Contains(u.Stderr.String(), "another program uses the same API client") {
			t.Error("the log does not say why tokens are refused")
		}
		metrics := get(t, u.admin, "/metrics").body
		if !strings.Contains(metrics, `usher_token_early_revocations_total{port="main"}`) || strings.Contains(metrics, `usher_token_early_revocations_total{port="main"} 0`) {
			t.Error("early revocations are not counted")
		}
	}
	t.Logf("%v: %d token requests, answers %v", took.Round(time.Millisecond), w.billing.TokenRequests()-before, seen)
}

// The token endpoint fails: a token that is valid serves on. When it has expired callers
// are told 503 at once during the backoff, and no request ever leaves with a token that
// is known to be over; but usher stays ready, as another one would do no better. Callers
// are answered again once the endpoint is back.
func TestExpiryDuringAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	u := start(t, w.environ()).ready(t)
	w.billing.FailTokens(sandbox.Fault{Status: 500})
	if r := u.call(); r.status != 200 {
		t.Errorf("with a valid token: %d %s", r.status, r.body)
	}
	w.billing.FailTokens(sandbox.Fault{})
	w.billing.EditClient("app", func(c *sandbox.Client) { c.TokenLife = 3 * time.Second })
	u = start(t, w.environ()).ready(t)
	w.billing.FailTokens(sandbox.Fault{Status: 500})
	testkit.Eventually(t, "over", func() bool { r := u.call(); return r.status == 503 && r.code() == "TOKEN_UNAVAILABLE" })
	ok, rejected := w.billing.Calls()
	for range 50 {
		if r := u.call(); r.status != 503 || r.header.Get("Retry-After") == "" {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
	if okAfter, after := w.billing.Calls(); okAfter != ok || after != rejected {
		t.Errorf("%d calls left with a token that was over", okAfter-ok+after-rejected)
	}
	if r := get(t, u.admin, "/readyz"); r.status != 200 {
		t.Errorf("an outage after the start takes the pod down: %d %s", r.status, r.body)
	}
	w.billing.FailTokens(sandbox.Fault{})
	testkit.Eventually(t, "answered again", func() bool { return u.call().status == 200 })
}
