package outbound_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"usher/internal/outbound"
	"usher/internal/sandbox"
	"usher/internal/settings"
)

// numbered gives out the tokens token-1, token-2 and so on.
func numbered() http.HandlerFunc {
	asked := 0
	return func(w http.ResponseWriter, r *http.Request) {
		asked++
		if scope := r.FormValue("scope"); scope != "workflow:read" {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":"invalid_scope","error_description":"not %s"}`, scope)
			return
		}
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":7200}`, asked)
	}
}

// caller returns a caller for a service that answers so.
func caller(t *testing.T, token, answer http.HandlerFunc) *outbound.Caller {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /oauth/token", token)
	mux.HandleFunc("POST /graphql", answer)
	service := httptest.NewServer(mux)
	t.Cleanup(service.Close)
	read, err := settings.Read([]string{
		"USHER_BASE_URL=" + service.URL, "USHER_CLIENT_ID=demo", "USHER_CLIENT_SECRET=t0psecret",
		"USHER_LISTEN=off", // its own calls need no port
	})
	if err != nil {
		t.Fatal(err)
	}
	read.Outbound.Log = slog.New(slog.DiscardHandler)
	o := outbound.New(read.Outbound.Config)
	return o.NewCaller("workflow:read")
}

// The service has several ways to say no. None may pass for an empty list.
func TestCallAnswers(t *testing.T) {
	type things struct{ Things struct{ Nodes []int } }
	for _, test := range []struct {
		name    string
		status  int
		answer  string
		refused bool
		why     string // empty: it is answered
	}{
		{"data", 200, `{"data":{"things":{"nodes":[1,2]}}}`, false, ""},
		{"an error of the schema", 200, `{"errors":[{"message":"no field things"}]}`, true, "no field things"},
		{"a validation", 200, `{"data":null,"errors":[{"message":"not so","path":["things"]}]}`, true, "not so"},
		{"errors beside data", 200, `{"data":{"things":{"nodes":[1]}},"errors":[{"message":"half"}]}`, true, "half"},
		{"a scope", 200, `{"data":{"things":{"errors":["Missing required permission: workflow:read"]}}}`, true, "Missing required permission"},
		{"a scope, in an object", 200, `{"data":{"things":{"errors":[{"message":"Missing permission"}]}}}`, true, "Missing permission"},
		{"403", 403, `{}`, true, "403"},
		{"401, with any token", 401, `[{"description":["no"]}]`, true, "401"},
		{"500 with JSON", 500, `{"data":{"things":{"nodes":[1]}}}`, false, "500"},
		{"429", 429, ``, false, "429"},
		{"a page", 200, `<html>`, false, "GraphQL"},
		{"nothing", 200, `{}`, false, "no data"},
		{"null", 200, `{"data":null}`, false, "no data"},
		{"another form", 200, `{"data":{"things":{"nodes":"many"}}}`, false, "another form"},
		{"a token that it repeats", 200, `{"errors":[{"message":"token-1 may not"}]}`, true, "may not"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := caller(t, numbered(), func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.status)
				fmt.Fprint(w, test.answer)
			})
			var got things
			_, err := c.Call(t.Context(), "{ things }", nil, &got)
			_, refused := errors.AsType[outbound.CallRefusedError](err)
			switch {
			case test.why == "" && (err != nil || len(got.Things.Nodes) != 2):
				t.Errorf("%v, %v", got, err)
			case test.why != "" && (err == nil || !strings.Contains(err.Error(), test.why)):
				t.Errorf("%v, want %s", err, test.why)
			case refused != test.refused:
				t.Errorf("refused: %v, %v", refused, err)
			case err != nil && strings.Contains(err.Error(), "token-"):
				t.Errorf("it shows the token: %v", err)
			}
		})
	}
}

// The sandbox refuses in each of the service's ways, and usher's own calls notice each: catch-up and 'usher check' use
// no other.
func TestRefusalsOfTheSandbox(t *testing.T) {
	box, err := sandbox.Open(sandbox.Config{Listen: "127.0.0.1:0", ReceiverListen: "off"})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	box.EditClient(sandbox.ClientID, func(c *sandbox.Client) { c.Secret, c.Scopes = "t0psecret", []string{"workflow:read"} })
	c := caller(t, box.ServeHTTP, box.ServeHTTP)
	for query, want := range map[string]string{
		"{ webhookEvents(first: 1) { nodes { id } } }":                                                      "",
		"{ webhookEvents { nodes { secrets } } }":                                                           "secrets",       // an error of the schema
		`{ webhookEvents(sort: "x") { nodes { id } } }`:                                                     "cannot sort",   // a validation: data is null
		"{ tenants { nodes { id } } }":                                                                      "product:read",  // a scope: the errors are in the data
		"{ accounts { nodes { id } } }":                                                                     "standard:read", // so are those of a list that is never null
		`{ currentUser { scopes } webhookEvent(id: "1") { bad } }`:                                          "bad",           // nothing is answered by halves
		`{ currentUser { scopes } tenants { nodes { id } } }`:                                               "product:read",  // errors beside data
		`{ currentUser { scopes } ...F } fragment F on Query { webhookEvents(first: -1) { nodes { id } } }`: "negative",
	} {
		var data map[string]any
		if _, err := c.Call(t.Context(), query, nil, &data); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", query, data, err, want)
		} else if _, refused := errors.AsType[outbound.CallRefusedError](err); refused != (want != "") {
			t.Errorf("%s: refused: %v, %v", query, refused, err)
		}
	}
	for _, failure := range []struct {
		part    string
		status  int
		want    string
		refused bool
	}{
		{"graphql", 200, "made by usher sandbox", true},
		{"log", 200, "Missing required permission: workflow:read", true},
		{"graphql", 403, "403", true},
		{"graphql", 500, "500", false}, // an outage is no refusal
	} {
		if err := errors.Join(box.Fail(sandbox.Failure{Part: "off"}), box.Fail(sandbox.Failure{Part: failure.part, Status: failure.status})); err != nil {
			t.Fatal(err)
		}
		_, err := c.Call(t.Context(), "{ webhookEvents { nodes { id } } }", nil, new(map[string]any))
		if _, refused := errors.AsType[outbound.CallRefusedError](err); err == nil || !strings.Contains(err.Error(), failure.want) || refused != failure.refused {
			t.Errorf("%+v: %v, refused: %v", failure, err, refused)
		}
	}
}

// A token that was revoked is replaced once.
func TestCallAgainAfter401(t *testing.T) {
	var calls []string
	c := caller(t, numbered(), func(w http.ResponseWriter, r *http.Request) {
		if calls = append(calls, r.Header.Get("Authorization")); len(calls) == 2 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"data":{}}`)
	})
	for range 2 {
		if _, err := c.Call(t.Context(), "{ things }", nil, new(struct{})); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(calls, ", "); got != "Bearer token-1, Bearer token-1, Bearer token-2" {
		t.Error(got)
	}
}
