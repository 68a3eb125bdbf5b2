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
	"usher/internal/settings"
)

// caller returns a caller for a service that gives out the tokens token-1, token-2 and so on, and answers with answer.
func caller(t *testing.T, answer http.HandlerFunc) *outbound.Caller {
	t.Helper()
	asked := 0
	mux := http.NewServeMux()
	mux.HandleFunc("POST /oauth/token", func(w http.ResponseWriter, r *http.Request) {
		asked++
		if scope := r.FormValue("scope"); scope != "workflow:read" {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":"invalid_scope","error_description":"not %s"}`, scope)
			return
		}
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":7200}`, asked)
	})
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
			c := caller(t, func(w http.ResponseWriter, _ *http.Request) {
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

// A token that was revoked is replaced once.
func TestCallAgainAfter401(t *testing.T) {
	var calls []string
	c := caller(t, func(w http.ResponseWriter, r *http.Request) {
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
