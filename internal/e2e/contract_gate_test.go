//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"usher/internal/testkit"
)

// One webhook of a tenant is on its way and 32 wait behind it. More are told to come again; other
// tenants do not notice.
func TestLaneOfThirtyTwo(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}, 1), make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body struct {
			Payload struct{ Tenant struct{ Code string } }
		}
		if json.NewDecoder(r.Body).Decode(&body) == nil && body.Payload.Tenant.Code == "other" {
			return
		}
		select {
		case entered <- struct{}{}:
		default:
		}
		<-release
	}))
	defer receiver.Close()
	u := run(t, gateAlone(receiver.URL))
	url := hooks(t, u)
	var mu sync.Mutex
	var sending sync.WaitGroup
	statuses := make(map[int]int)
	send := func(n int) {
		sending.Go(func() {
			r := asked(t, "POST", url, testkit.Snapshot("acme", n), "Content-Type", "application/json")
			mu.Lock()
			defer mu.Unlock()
			statuses[r.status]++
			if r.status == 503 && (r.header.Get("Retry-After") == "" || r.header.Get("Usher-Decision") != "failed") {
				t.Errorf("%v %s", r.header, r.body)
			}
		})
	}
	send(0)
	<-entered
	for n := range 40 {
		send(n + 1)
	}
	testkit.Eventually(t, "eight are turned away", func() bool { mu.Lock(); defer mu.Unlock(); return statuses[503] == 8 })
	if status, decision, answer := testkit.Post(t, url, testkit.Snapshot("other", 1)); status != 200 || decision != "forwarded" {
		t.Errorf("another tenant: %d %s %s", status, decision, answer)
	}
	close(release)
	sending.Wait()
	if got := fmt.Sprint(statuses); got != "map[200:33 503:8]" {
		t.Errorf("%s, want 33 delivered and 8 turned away", got)
	}
}

// The decision of each answer, in its header and in its JSON.
func TestDecisions(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, 201)
	u := run(t, gateAlone(rc.url, "USHER_WEBHOOK_TOKEN=s3cret", "USHER_WEBHOOK_TRIES=1", "USHER_WEBHOOK_SYNC_TYPES=Ask", "USHER_WEBHOOK_MAX_BODY=1KiB"))
	url := hooks(t, u)
	for i, step := range []struct {
		method, url, body string
		receiver, status  int
		decision          string
	}{
		{"POST", url + "/s3cret", testkit.Snapshot("acme", 1), 201, 200, "forwarded"},
		{"POST", url + "/s3cret", testkit.Snapshot("acme", 1), 201, 200, "duplicate"},
		// other bytes: the receiver may tell them apart
		{"POST", url + "/s3cret", testkit.Snapshot("acme", 1) + " ", 201, 200, "forwarded"},
		{"POST", url + "/s3cret", testkit.Snapshot("acme", 2), 500, 502, "failed"},
		{"POST", url + "/s3cret", testkit.Snapshot("acme", 2), 302, 502, "failed"},
		{"POST", url + "/s3cret", "{", 200, 400, "rejected"},
		{"POST", url + "/s3cret", `{"a":1,"a":2}`, 200, 400, "rejected"},
		{"POST", url + "/s3cret", "{}", 200, 422, "rejected"},
		{"POST", url + "/s3cret", fmt.Sprintf("%2000s", "{}"), 200, 413, "rejected"},
		{"POST", url, "{}", 200, 401, "rejected"},
		{"POST", url + "/wrong", "{}", 200, 401, "rejected"},
		{"POST", url + "/s3cret/more", "{}", 200, 404, "rejected"},
		{"POST", u.URL(t, "webhooks") + "/", "{}", 200, 404, "rejected"},
		{"GET", url + "/s3cret", "", 200, 405, "rejected"},
		{"POST", url + "/s3cret", `{"type":"Ask"}`, 418, 418, "forwarded"},
		{"POST", url + "/s3cret", `{"type":"Ask"}`, 503, 503, "forwarded"},
	} {
		rc.set(step.receiver)
		r := asked(t, step.method, step.url, step.body, "Content-Type", "application/json")
		if r.status != step.status || r.header.Get("Usher-Decision") != step.decision {
			t.Errorf("step %d: %d %s %s, want %d %s", i, r.status, r.header.Get("Usher-Decision"), r.body, step.status, step.decision)
		}
		var own struct {
			Decision string
			Receiver struct{ Status int }
		}
		if step.receiver == 418 || step.receiver == 503 { // the receiver's own answer
			continue
		}
		if err := json.Unmarshal([]byte(r.body), &own); err != nil || own.Decision != step.decision || r.header.Get("Content-Type") != "application/json" {
			t.Errorf("step %d: %v %s", i, err, r.body)
		}
		if r.status == 502 && own.Receiver.Status != step.receiver {
			t.Errorf("step %d: the receiver's status is not in %s", i, r.body)
		}
	}
}
