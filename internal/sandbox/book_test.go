package sandbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// answerTo asks a sandbox a query with a token of all scopes, and returns its data, or the first error.
func answerTo(t *testing.T, s *Sandbox, query string, variables map[string]any) (data json.RawMessage, fault string) {
	t.Helper()
	form := fields("client_id", ClientID, "client_secret", ClientSecret, "scope", "standard:read billing:read product:read workflow:read")
	tok := decode[tokenResponse](t, post(s, "/oauth/token", formType, form.Encode())).AccessToken
	w := ask(s.Billing, tok, string(encode(map[string]any{"query": query, "variables": variables})))
	got := decode[struct {
		Data   json.RawMessage
		Errors []struct {
			Message         string
			Path, Locations any
		}
	}](t, w)
	if len(got.Errors) > 0 {
		return nil, got.Errors[0].Message
	}
	return got.Data, ""
}

// wantData asks a query, and compares the data of the answer.
func wantData(t *testing.T, s *Sandbox, query, want string) {
	t.Helper()
	if got, fault := answerTo(t, s, query, nil); string(got) != want || fault != "" {
		t.Errorf("%s:\n%s%s, want\n%s", query, got, fault, want)
	}
}

// inBubble is a sandbox without ports, whose webhooks go to its receiver.
func inBubble() *Sandbox {
	s := &Sandbox{Sender: NewSender(1, "http://gate.example/webhooks/secret"), Receiver: NewReceiver()}
	s.Billing = NewBilling(Client{ID: ClientID, Secret: ClientSecret, Scopes: []string{"standard:read", "billing:read", "product:read", "workflow:read"}})
	s.book, s.Billing.log, s.Platforms = s.Sender.book, s.Sender.log, s.Sender.platforms
	s.Sender.Client.Transport = inProcess{s.Receiver}
	s.Sender.Token, s.Sender.SigningKey = "tok", "key"
	return s
}

// The service knows each tenant by its last change, whether its webhook was sent, failed or was lost.
func TestWhatTheServiceKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inBubble()
		send := func(body, want string) {
			t.Helper()
			if w := post(s, "/sandbox/send", "", body); w.Code != 200 || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: %d %s, want %s", body, w.Code, w.Body, want)
			}
		}
		send(`{"tenant":"acme","features":{"users":25,"sso":null}}`, `"status":200`)
		time.Sleep(time.Hour)
		send(`{"tenant":"acme","features":{"users":30},"lost":true}`, `{"status":0,"decision":"","replies":[],"lost":true}`)
		if err := s.Fail(Failure{Part: "receiver", Status: 500}); err != nil {
			t.Fatal(err)
		}
		send(`{"tenant":"acme","platform":"docs","features":{"seats":4294967296}}`, `"status":500`)
		for _, raw := range []string{"\xff", `{}`, `{"type":"Other","payload":{"tenant":{"code":"x"}}}`, `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":7}}}`} {
			post(s, "/sandbox/send?raw", "", raw)
		}
		post(s, "/sandbox/send?raw", "", `{"type":"TenantProvisioningChange","payload":{"tenant":{"id":"x7","code":"raw","platform":{"code":"odd"}},"change":[]}}`)
		if n := len(s.Receiver.Deliveries()); n != 13 {
			t.Errorf("the receiver got %d webhooks, want those that were not lost, twice if they failed", n)
		}

		const id = `"id":"9685625"`
		wantData(t, s, `{ tenants { totalCount nodes { id code name subdomain platform { code name } account { id name code } createdAt updatedAt } } }`,
			`{"tenants":{"totalCount":3,"nodes":[{`+id+`,"code":"acme","name":"acme","subdomain":null,"platform":{"code":"crm","name":"CRM Cloud"},`+
				`"account":{"id":"378043","name":"acme","code":null},"createdAt":"2000-01-01T00:00:00Z","updatedAt":"2000-01-01T01:00:00Z"},`+
				`{"id":"12498051","code":"acme","name":"acme","subdomain":null,"platform":{"code":"docs","name":"Docs Cloud"},"account":{"id":"378043","name":"acme","code":null},`+
				`"createdAt":"2000-01-01T01:00:00Z","updatedAt":"2000-01-01T01:00:00Z"},`+
				`{"id":"x7","code":"raw","name":null,"subdomain":null,"platform":{"code":"odd","name":null},"account":null,"createdAt":"2000-01-01T01:00:00Z","updatedAt":"2000-01-01T01:00:00Z"}]}}`)
		wantData(t, s, `{ a: tenant(code: "raw") { id } b: tenant(id: "x7") { code } c: tenant(code: "nobody") { id } }`, `{"a":{"id":"x7"},"b":{"code":"raw"},"c":null}`)
		wantData(t, s, `{ tenant(code: "acme") { latestProvisioningChange { features } } }`, // as the documents show it
			`{"tenant":{"latestProvisioningChange":{"features":"[{\"code\":\"users\",\"name\":\"users\",\"value\":\"\",\"quantity\":30}]"}}}`)
		wantData(t, s, `{ subscriptions(first: 1) { nodes { state startDate trialStartDate plan { code } product { name } tenant { code } charges { quantity feature { code } } } } }`,
			`{"subscriptions":{"nodes":[{"state":"ACTIVE","startDate":"2026-01-01","trialStartDate":null,"plan":{"code":"standard"},"product":{"name":"CRM Cloud Suite"},`+
				`"tenant":{"code":"acme"},"charges":[{"quantity":30,"feature":{"code":"users"}}]}]}}`)
		wantData(t, s, `{ platforms { nodes { code webhookUrl webhookSigningKey webhookAuthToken provisioningEnabled checkoutValidationEnabled } } }`,
			`{"platforms":{"nodes":[{"code":"crm","webhookUrl":"http://gate.example/webhooks/secret","webhookSigningKey":"key","webhookAuthToken":"tok","provisioningEnabled":true,"checkoutValidationEnabled":true},`+
				`{"code":"docs","webhookUrl":"http://gate.example/webhooks/secret","webhookSigningKey":"key","webhookAuthToken":"tok","provisioningEnabled":true,"checkoutValidationEnabled":true},`+
				`{"code":"odd","webhookUrl":null,"webhookSigningKey":null,"webhookAuthToken":null,"provisioningEnabled":null,"checkoutValidationEnabled":null}]}}`)
	})
}

// The log has every webhook, the newest first, also those of one second: what was sent, answered, dropped and lost.
func TestWebhookLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inBubble()
		for users := range 3 {
			s.Sender.Send(t.Context(), State{"acme", "", map[string]*int{"users": &users}}.Webhook())
		}
		time.Sleep(1500 * time.Millisecond)
		s.Receiver.Fail(Fault{Status: 503, Body: "later"})
		s.Sender.Send(t.Context(), []byte("{ \"not\": \"compact\" }"))
		s.Receiver.Fail(Fault{Hang: true})
		s.Sender.Send(t.Context(), []byte("no JSON"))
		s.Sender.lose(State{Tenant: "lost"}.Webhook())

		wantData(t, s, `{ webhookEvents(first: 3) { totalCount nodes { id createdAt updatedAt responseCode responseBody payloadType url } } }`,
			`{"webhookEvents":{"totalCount":6,"nodes":[`+
				`{"id":"6","createdAt":"2000-01-01T00:00:11Z","updatedAt":"2000-01-01T00:00:11Z","responseCode":null,"responseBody":null,"payloadType":"default","url":"http://gate.example/webhooks/secret"},`+
				`{"id":"5","createdAt":"2000-01-01T00:00:01Z","updatedAt":"2000-01-01T00:00:11Z","responseCode":null,"responseBody":null,"payloadType":"default","url":"http://gate.example/webhooks/secret"},`+
				`{"id":"4","createdAt":"2000-01-01T00:00:01Z","updatedAt":"2000-01-01T00:00:01Z","responseCode":"503","responseBody":"later","payloadType":"default","url":"http://gate.example/webhooks/secret"}]}}`)
		wantData(t, s, `{ webhookEvents(first: 2, after: "Mw") { nodes { id responseCode } pageInfo { hasNextPage hasPreviousPage endCursor } } }`,
			`{"webhookEvents":{"nodes":[{"id":"3","responseCode":"200"},{"id":"2","responseCode":"200"}],"pageInfo":{"hasNextPage":true,"hasPreviousPage":true,"endCursor":"NQ"}}}`)
		wantData(t, s, `{ webhookEvents(sort: "created_at ASC", first: 1) { edges { cursor node { id } } } webhookEvent(id: "4") { payload headers } }`,
			`{"webhookEvents":{"edges":[{"cursor":"MQ","node":{"id":"1"}}]},"webhookEvent":{"payload":"{\"not\":\"compact\"}",`+
				`"headers":{"Content-Type":"application/json","X-Bunny-Signature":"`+s.Sender.header([]byte("{ \"not\": \"compact\" }")).Get("X-Bunny-Signature")+`"}}}`)

		s.Billing.log.limit = 400 // of bytes
		s.Sender.lose([]byte(strings.Repeat("x", 399)))
		wantData(t, s, `{ webhookEvents { nodes { id } } }`, `{"webhookEvents":{"nodes":[{"id":"7"}]}}`)
	})
}

// usher's own query for catch-up reads all, page by page.
func TestCatchUpReadsTheLog(t *testing.T) {
	s := inBubble()
	for i := range 230 {
		s.Sender.Send(t.Context(), State{Tenant: fmt.Sprint("t", i)}.Webhook())
	}
	seen, after := 0, any(nil)
	for more := true; more; {
		data, fault := answerTo(t, s, `query usherCatchUp($first: Int, $after: String) {
  webhookEvents(first: $first, after: $after, sort: "created_at DESC") {
    nodes { id createdAt payload url responseCode }
    pageInfo { endCursor hasNextPage } } }`, map[string]any{"first": 1000, "after": after})
		var got struct {
			WebhookEvents struct {
				Nodes    []struct{ ID, Payload string }
				PageInfo struct {
					EndCursor   string
					HasNextPage bool
				}
			}
		}
		if err := json.Unmarshal(data, &got); err != nil || fault != "" || len(got.WebhookEvents.Nodes) > maxPage {
			t.Fatal(err, fault)
		}
		for _, n := range got.WebhookEvents.Nodes {
			if want := fmt.Sprint(230 - seen); n.ID != want || !strings.Contains(n.Payload, `"code":"t`+fmt.Sprint(229-seen)+`"`) {
				t.Fatalf("entry %s, want %s: %s", n.ID, want, n.Payload)
			}
			seen++
		}
		after, more = got.WebhookEvents.PageInfo.EndCursor, got.WebhookEvents.PageInfo.HasNextPage
	}
	if seen != 230 {
		t.Errorf("%d of 230", seen)
	}
}

// pages asks for what the sandbox does not have, or does not know.
func TestPages(t *testing.T) {
	s := inBubble()
	for args, want := range map[string]int{
		"": 100, "(first: 7)": 7, "(first: 1000)": 100, "(first: 0)": 0, `(after: "Mjk5")`: 1, `(after: "OTk5")`: 0, "(last: 3)": 3, `(before: "Mw")`: 2,
		`(filter: "zephyr")`: 10, `(sort: "")`: 100, `(sort: "id DESC", first: 2)`: 2,
	} {
		data, fault := answerTo(t, s, "{ accounts"+args+" { nodes { id } } }", nil)
		if n := strings.Count(string(data), `"id"`); n != want || fault != "" {
			t.Errorf("%s: %d of %d accounts %s", args, n, want, fault)
		}
	}
	for query, want := range map[string]string{
		`accounts(first: -1)`: "must not be negative", `accounts(after: "?")`: "invalid cursor", `accounts(sort: "size")`: "cannot sort",
		`webhookEvents(filter: "x")`: "filters only accounts",
	} {
		if _, fault := answerTo(t, s, "{ "+query+" { nodes { id } } }", nil); !strings.Contains(fault, want) {
			t.Errorf("%s: %q", query, fault)
		}
	}
}

// Its failures are those that the service shows: the log alone, and JSON also at 500.
func TestLogFails(t *testing.T) {
	s := inBubble()
	if err := s.Fail(Failure{Part: "log", Status: 500}); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]int{"{ webhookEvents { totalCount } }": 500, "{ currentUser { scopes } }": 401} {
		w := ask(s.Billing, "none", string(encode(map[string]string{"query": query})))
		if w.Code != want || !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: %d %s, want %d", query, w.Code, w.Body, want)
		}
	}
}

// A checkout's answer is what the buyer reads.
func TestCheckoutCommand(t *testing.T) {
	s := inBubble()
	for _, tt := range []struct {
		fault Fault
		want  string
	}{
		{Fault{}, `{"status":200,"decision":"","allowed":true,"reads":[]}`},
		{Fault{Status: 403, Body: `["No.","Not now."]`}, `{"status":403,"decision":"","allowed":false,"reads":["No.","Not now."]}`},
		{Fault{Status: 500, Body: `{"errors":[]}`}, `{"status":500,"decision":"","allowed":false,"reads":null}`},
		{Fault{HangUp: true}, `{"status":0,"decision":"","allowed":false,"reads":null}`},
	} {
		s.Receiver.Fail(tt.fault)
		if w := post(s, "/sandbox/checkout", "", `{"tenant":"acme","features":{"users":7}}`); w.Code != 200 || strings.TrimSpace(w.Body.String()) != tt.want {
			t.Errorf("%+v: %d %s", tt.fault, w.Code, w.Body)
		}
	}
	if w := post(s, "/sandbox/checkout", "", `{}`); w.Code != http.StatusBadRequest {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A webhook that was lost is not sent later, and nor is the one before it sent again: it is no longer true.
func TestNothingOldAfterALostChange(t *testing.T) {
	s, rc := newPair(3)
	for range 3 {
		mustChange(t, s)
	}
	s.lose(State{Tenant: "acme"}.Webhook())
	e := s.Next(t.Context())
	if strings.Contains(e.Summary, "again") || e.N != 4 || len(rc.Deliveries()) != 4 {
		t.Errorf("%+v", e)
	}
}
