package serve_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// The decision of each answer, in its header and in its JSON, by the figures that are promised.
func TestDecisions(t *testing.T) {
	t.Parallel()
	g := startGate(t, "USHER_WEBHOOK_TOKEN=s3cret", "USHER_WEBHOOK_TRIES=1", "USHER_WEBHOOK_MAX_BODY=1KiB")
	for _, step := range []struct {
		path, body       string
		receiver, status int
		decision         string
	}{
		{"/s3cret", snapshot("acme", 1), 201, 200, "forwarded"},
		{"/s3cret", snapshot("acme", 1), 201, 200, "duplicate"},
		{"/s3cret", snapshot("acme", 1) + " ", 201, 200, "forwarded"}, // other bytes: the receiver may tell them apart
		{"/s3cret", snapshot("acme", 2), 500, 502, "failed"},
		{"/s3cret", snapshot("acme", 2), 302, 502, "failed"},
		{"/s3cret", "{", 200, 400, "rejected"},
		{"/s3cret", "{}", 200, 422, "rejected"},
		{"/s3cret", fmt.Sprintf("%2000s", "{}"), 200, 413, "rejected"},
		{"", "{}", 200, 401, "rejected"},
		{"/wrong", "{}", 200, 401, "rejected"},
		{"/s3cret/more", "{}", 200, 404, "rejected"},
	} {
		g.receiver.Fail(sandbox.Fault{Status: step.receiver})
		status, decision, answer := post(t, g.url+step.path, step.body)
		var own struct {
			Decision string
			Receiver struct{ Status int }
		}
		err := json.Unmarshal([]byte(answer), &own)
		if status != step.status || decision != step.decision || err != nil || own.Decision != decision || status == 502 && own.Receiver.Status != step.receiver {
			t.Errorf("%s %.50s: %d %s %s, want %+v", step.path, step.body, status, decision, answer, step)
		}
	}
}

// 32 webhooks of a tenant wait behind the one on its way. More are told to come again.
func TestLaneOfThirtyTwo(t *testing.T) {
	t.Parallel()
	g := startGate(t)
	entered := make(chan struct{}, 40)
	release := make(chan struct{})
	g.receiver.OnDelivery = func(*http.Request, []byte) { entered <- struct{}{}; <-release }
	statuses := make(chan int, 41)
	send := func(n int) { status, _, _ := post(t, g.url, snapshot("acme", n)); statuses <- status }
	go send(0)
	<-entered
	for n := range 40 {
		go send(n + 1)
	}
	for range 8 {
		if status := <-statuses; status != 503 {
			t.Errorf("turned away with %d", status)
		}
	}
	close(release)
	for range 33 {
		if status := <-statuses; status != 200 {
			t.Errorf("delivered, and answered %d", status)
		}
	}
}

// Of a body that is too large the inbox has the first 64 KiB, if a token vouches for it; a type that is in neither list
// is counted, and logged once.
func TestInvalidThroughTheHouse(t *testing.T) {
	t.Parallel()
	for _, check := range []string{"USHER_WEBHOOK_TOKEN=s3cret", "USHER_WEBHOOK_SIGNING_KEY=s3cret"} {
		g := startGate(t, check, "USHER_WEBHOOK_MAX_BODY=100KiB", "USHER_WEBHOOK_INBOX=file:"+t.TempDir()+"/inbox.db")
		g.Ready(t)
		byToken := strings.Contains(check, "TOKEN")
		if status, _, answer := post(t, g.url, snapshot("acme", 5)+strings.Repeat(" ", 200<<10), "X-Webhook-Token", "s3cret"); status != 413 {
			t.Errorf("%d %s", status, answer)
		}
		admin := g.URL(t, "admin")
		if status, payload := get(t, admin+"/webhooks/1/payload"); (status == 200) != byToken || byToken && len(payload) != 64<<10 {
			t.Errorf("%s: %d, %d bytes", check, status, len(payload))
		}
		if !byToken {
			continue
		}
		for range 2 {
			post(t, g.url, `{"type":"Nonsense","payload":{}}`, "X-Webhook-Token", "s3cret")
		}
		testkit.Eventually(t, "counted", func() bool {
			_, metrics := get(t, admin+"/metrics")
			return strings.Contains(metrics, "\nusher_webhook_invalid_total{reason=\"type\"} 2\n") && strings.Contains(metrics, "\nusher_inbox_invalid 1\n")
		})
		if n := strings.Count(g.Stderr.String(), "webhooks of this type are rejected"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	}
}
