package sandbox

import (
	"net/http"
	"strings"
	"testing"
)

type result struct {
	Data   *struct{ Accounts []struct{ ID, Name string } }
	Errors []struct {
		Message         string
		Locations, Path any
	}
}

func (r result) errorText() string {
	var texts []string
	for _, e := range r.Errors {
		texts = append(texts, e.Message)
	}
	return strings.Join(texts, "; ")
}

func TestAccounts(t *testing.T) {
	all := len(accounts())
	const q = `"query":"query A($filter: String, $limit: Int) { accounts(filter: $filter, limit: $limit) { id name } }"`
	tests := []struct {
		name, body string
		count      int
		first      string
	}{
		{"all", `{` + q + `}`, all, "Acme GmbH"},
		{"variables null", `{` + q + `,"variables":null}`, all, "Acme GmbH"},
		{"empty filter", `{` + q + `,"variables":{"filter":"","limit":7}}`, 7, "Acme GmbH"},
		{"filter", `{` + q + `,"variables":{"filter":"zephyr"},"operationName":"A"}`, 10, "Zephyr GmbH"},
		{"filter and limit", `{` + q + `,"variables":{"filter":"älv","limit":2}}`, 2, "Älvdal GmbH"},
		{"limit beyond all", `{` + q + `,"variables":{"limit":100000}}`, all, "Acme GmbH"},
		{"limit 0", `{` + q + `,"variables":{"limit":0}}`, 0, ""},
		{"no match", `{` + q + `,"variables":{"filter":"nobody"}}`, 0, ""},
		{"inline", `{"query":"{ accounts(limit: 1) { name } }"}`, 1, "Acme GmbH"},
	}
	b := NewBilling(testClient())
	tok := getToken(t, b).AccessToken
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := ask(b, tok, tt.body)
			got := decode[result](t, w)
			if w.Code != http.StatusOK || got.Errors != nil || got.Data == nil || len(got.Data.Accounts) != tt.count {
				t.Fatalf("%d %+v, want %d accounts", w.Code, got, tt.count)
			}
			if tt.count > 0 && got.Data.Accounts[0].Name != tt.first {
				t.Errorf("first is %q, want %q", got.Data.Accounts[0].Name, tt.first)
			}
		})
	}
}

func TestBadCalls(t *testing.T) {
	b := NewBilling(testClient())
	tok := getToken(t, b).AccessToken
	for _, tt := range []struct {
		name, contentType, body string
		status                  int
		message                 string
	}{
		{"unknown field", "application/json", `{"query":"{ accounts { secrets } }"}`, 200, "secrets"},
		{"wrong variable", "application/json", `{"query":"query($l: Int) { accounts(limit: $l) { id } }","variables":{"l":"many"}}`, 200, "l"},
		{"syntax", "application/json", `{"query":"{ accounts("}`, 200, "syntax error"},
		{"no query", "application/json", `{}`, 200, "operation"},
		{"mutation", "application/json", `{"query":"mutation { accounts { id } }"}`, 200, "mutation"},
		{"negative limit", "application/json", `{"query":"{ accounts(limit: -1) { id } }"}`, 200, "negative"},
		{"not JSON", "application/json", `query`, 400, "not a GraphQL request"},
		{"two values", "application/json", typename + typename, 400, "not a GraphQL request"},
		{"form", formType, typename, 415, "Content-Type"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := post(b, "/graphql", tt.contentType, tt.body, "Authorization", "Bearer "+tok)
			got := decode[result](t, w)
			if w.Code != tt.status || !strings.Contains(got.errorText(), tt.message) {
				t.Errorf("%d %q, want %d with %q", w.Code, got.errorText(), tt.status, tt.message)
			}
		})
	}
}

// Each query needs its scope. A token without it may introspect, and ask which scopes it has.
func TestScopes(t *testing.T) {
	every := testClient()
	every.Scopes = []string{"standard:read", "standard:write", "billing:read", "product:read", "workflow:read"}
	b := NewBilling(every)
	for query, scope := range map[string]string{
		"accounts { nodes { id } }":         "standard:read",
		"accounts { id }":                   "standard:read", // as the documents show it
		"subscriptions { nodes { id } }":    "billing:read",
		"platforms { nodes { id } }":        "product:read",
		"tenants { nodes { id } }":          "product:read",
		`tenant(code: \"a\") { id }`:        "product:read",
		"webhookEvents { nodes { id } }":    "workflow:read",
		`webhookEvent(id: \"1\") { id }`:    "workflow:read",
		"currentUser { scopes } __typename": "",
	} {
		for _, scopes := range []string{"standard:write", strings.TrimSpace("standard:write " + scope)} {
			tok := getToken(t, b, "scope", scopes).AccessToken
			w := ask(b, tok, `{"query":"{ `+query+` }"}`)
			refused := strings.Contains(w.Body.String(), `":{"errors":["Missing required permission: `+scope+", can't access query ")
			if may := strings.Contains(scopes, scope); w.Code != 200 || refused == may || may && strings.Contains(w.Body.String(), "errors") {
				t.Errorf("%s with %s: %d %s", query, scopes, w.Code, w.Body)
			}
		}
	}
	w := ask(b, getToken(t, b, "scope", "workflow:read standard:read").AccessToken, `{"query":"{ currentUser { scopes } }"}`)
	if !strings.Contains(w.Body.String(), `{"currentUser":{"scopes":["workflow:read","standard:read"]}}`) {
		t.Errorf("%s", w.Body)
	}
}
