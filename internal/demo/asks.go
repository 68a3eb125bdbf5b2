package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"usher/internal/sandbox"
	"usher/internal/serve"
)

func (s *story) throughUsher(ctx context.Context) string {
	client, base := serve.Client(s.at.Calls)
	return query(ctx, client, base)
}

// query calls the billing service, and says in words what was answered.
func query(ctx context.Context, client *http.Client, base string) string {
	const body = `{"query":"{ accounts(limit: 3) { id name } }"}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/graphql", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return "no answer"
	}
	defer resp.Body.Close()
	var answer struct {
		Data struct{ Accounts []struct{ Name string } }
	}
	if json.NewDecoder(resp.Body).Decode(&answer) != nil || resp.StatusCode != http.StatusOK {
		return fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return fmt.Sprintf("%d, %d accounts", resp.StatusCode, len(answer.Data.Accounts))
}

// check asks whether acme may use sso, as a program of the customer would.
func (s *story) check(ctx context.Context) {
	client, base := serve.Client(s.at.Entitlements)
	word := "no answer"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/check?tenant=acme&feature=sso", nil)
	if err == nil {
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			word = map[int]string{http.StatusNoContent: "204 yes", http.StatusForbidden: "403 no"}[resp.StatusCode]
			if word == "" {
				word = fmt.Sprint(resp.StatusCode)
			}
		}
	}
	s.result(ctx, "check    may acme use sso?", word)
}

// outcome says what usher answered to a webhook and, if usher took it in, whether the receiver has
// it.
func (s *story) outcome(ctx context.Context, e sandbox.Entry, err error) string {
	if err != nil {
		return "no answer"
	}
	decision := e.Header.Get("Usher-Decision")
	answer := fmt.Sprintf("%d %s", e.Status, decision)
	switch decision {
	case "queued":
		patience := 2 * time.Second
		if s.down != "" {
			patience = 150 * time.Millisecond // it may be for the other receiver
		}
		if s.delivered(ctx, webhookID(e), patience) {
			return answer + ", delivered"
		}
		return fmt.Sprintf("%s, %d waiting", answer, s.usher.Waiting())
	case "duplicate":
		return answer + ", dropped"
	}
	return answer
}

// webhookID returns the id of the webhook, from usher's answer.
func webhookID(e sandbox.Entry) string {
	var a struct{ Webhook string }
	_ = json.Unmarshal([]byte(e.Answer), &a)
	return a.Webhook
}

// delivered waits until a receiver has accepted the webhook.
func (s *story) delivered(ctx context.Context, id string, patience time.Duration) bool {
	for until := time.Now().Add(patience); time.Now().Before(until); {
		if slices.Contains(s.world.applied(), id) {
			return true
		}
		if !pause(ctx, 10*time.Millisecond) {
			return false
		}
	}
	return false
}

// legacyProgram calls as a program without OAuth would: a few calls a second, sometimes more
// and sometimes fewer, so that the page has something to show.
func legacyProgram(ctx context.Context, address string) {
	client, base := serve.Client(address)
	for n := 0; pause(ctx, 300*time.Millisecond+time.Duration(200*math.Sin(float64(n)/150))*time.Millisecond); n++ {
		query(ctx, client, base)
	}
}
