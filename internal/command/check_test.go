package command

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	receiver := httptest.NewServer(sandbox.NewReceiver())
	defer receiver.Close()
	stranger := httptest.NewTLSServer(sandbox.NewReceiver()) // with a certificate that nobody trusts
	defer stranger.Close()
	chat := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("something was posted") }))
	defer chat.Close()
	gone := "http://" + testkit.FreeAddress(t)
	for _, tc := range []struct {
		name  string
		extra []string
		code  int
		want  []string
	}{
		{"all well", []string{"USHER_WEBHOOK_FORWARD_URL=" + receiver.URL, "USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_0_SCOPE=standard:read"}, 0,
			[]string{"ok    settings", "ok    token for port main", "ok    graphql for port main", "ok    token for port 0", "ok    receiver"}},
		{"wrong secret", []string{"USHER_CLIENT_SECRET=wr0ng"}, 1, []string{"FAIL  token for port main", "invalid_client", "check USHER_CLIENT_ID and USHER_CLIENT_SECRET"}},
		{"wrong scope", []string{"USHER_SCOPE=standard:admin"}, 1, []string{"invalid_scope", "check USHER_SCOPE"}},
		{"wrong prefix", []string{"USHER_BASE_URL=" + s.URL + "/v2"}, 1, []string{"answered 404", "USHER_BASE_URL"}},
		{"unreachable", []string{"USHER_BASE_URL=" + gone}, 1, []string{"can't be reached", "USHER_BASE_URL"}},
		{"receiver whose certificate is not trusted", []string{"USHER_WEBHOOK_FORWARD_URL=" + stranger.URL}, 1, []string{"FAIL  receiver main: ", "certificate", "USHER_WEBHOOK_FORWARD_URL"}},
		{"receiver down", []string{"USHER_WEBHOOK_FORWARD_URL=" + gone}, 1, []string{"ok    graphql", "FAIL  receiver", "USHER_WEBHOOK_FORWARD_URL"}},
		{"notifications", []string{"USHER_NOTIFY_URL=" + chat.URL + "/wr0ng"}, 0, []string{"ok    notifications: the host accepts connections; nothing was posted"}},
		{"notifications that go nowhere", []string{"USHER_NOTIFY_URL=" + gone + "/wr0ng"}, 1, []string{"ok    graphql", "FAIL  notifications: the host does not accept a connection; the address is in USHER_NOTIFY_URL (not shown)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, s.Environ(tc.extra...), "check")
			<-p.Ended
			if p.Code != tc.code {
				t.Errorf("%d, want %d", p.Code, tc.code)
			}
			for _, want := range tc.want {
				if !strings.Contains(p.Stdout.String(), want) {
					t.Errorf("no %q in:\n%s", want, p.Stdout.String())
				}
			}
			if strings.Contains(p.Stdout.String(), "wr0ng") {
				t.Error("the secret shows")
			}
		})
	}
}

// A token alone is not enough: the API has to accept it. For each way in which it may not, usher check prints
// one line that says what to do.
func TestCheckOfTheAPI(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	for _, tc := range []struct {
		name  string
		fault sandbox.Fault
		code  int
		want  string
	}{
		{"refused", sandbox.Fault{Status: 401, Body: `[{"description":["expired"]}]`}, 1, "answered 401; the service rejects the token that it has just issued"},
		{"moved", sandbox.Fault{Status: 301}, 1, "answered 301; is USHER_BASE_URL right?"},
		{"broken", sandbox.Fault{Status: 500}, 1, "answered 500; this is an error of the service, try again later"},
		{"a web page", sandbox.Fault{Status: 200, Body: "<html>"}, 1, "is USHER_BASE_URL right?"},
		{"an error", sandbox.Fault{Status: 200, Body: `{"data":null,"errors":[{"message":"not for\nyou"}]}`}, 1, `answered with an error: not for\u000ayou; `},
		{"an error without a message", sandbox.Fault{Status: 200, Body: `{"errors":[1]}`}, 1, "answered with an error; "},
		{"an answer in spite of an error", sandbox.Fault{Status: 200, Body: `{"data":{"__typename":"Query"},"errors":[{"message":"deprecated"}]}`}, 0, "ok    graphql for port main"},
		{"a connection that breaks", sandbox.Fault{HangUp: true}, 1, "; the same address did answer with a token, so try again"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.FailGraphQL(tc.fault)
			p := start(t, s.Environ(), "check")
			<-p.Ended
			out := p.Stdout.String()
			if lines := strings.Count(out, "\n"); p.Code != tc.code || !strings.Contains(out, tc.want) || lines != 3 {
				t.Errorf("%d, want %d with %q, and 3 lines:\n%s", p.Code, tc.code, tc.want, out)
			}
		})
	}
}

// Some services revoke a client's token when they issue the next one: then two ushers that share an API
// client take each other's tokens away. usher check finds out, and says what to do.
func TestCheckOfRevocation(t *testing.T) {
	t.Parallel()
	readOnly := []string{"USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_0_SCOPE=standard:read"}
	twin := []string{"USHER_PORTS_0_LISTEN=127.0.0.1:0"} // shares the main port's token
	const (
		kept   = "ok    graphql for port main: {__typename} was answered; a second token did not revoke the first\n"
		single = "note  tokens for port main: each new token revokes the one before. "
		broken = "FAIL  tokens for ports main, 0: they use the same API client, and a new token for one port revokes the other's; "
	)
	for _, tc := range []struct {
		name     string
		oneToken bool
		extra    []string
		tokens   int64
		code     int
		want     string
		never    string
	}{
		{"stored", false, nil, 2, 0, kept, "revokes"},
		{"kept, with a second scope", false, readOnly, 2, 0, kept, "revokes"},
		{"revoked", true, nil, 3, 0, single, "FAIL"},
		{"revoked, and the ports share a token", true, twin, 4, 0, single, "FAIL"},
		{"revoked, and the ports have different scopes", true, readOnly, 4, 1, broken, "did not revoke"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := testkit.NewService(t)
			s.EditClient("app", func(c *sandbox.Client) { c.OneToken = tc.oneToken })
			p := start(t, s.Environ(tc.extra...), "check")
			<-p.Ended
			out := p.Stdout.String()
			if p.Code != tc.code || strings.Count(out, "\n"+tc.want) != 1 || strings.Contains(out, tc.never) || !strings.Contains(out, "ok    graphql for port main") {
				t.Errorf("%d, want %d with %q, once:\n%s", p.Code, tc.code, tc.want, out)
			}
			if tc.want == broken && !strings.Contains(out, "USHER_PORTS_0_CLIENT_ID") {
				t.Errorf("it does not say what to set:\n%s", out)
			}
			if n := int64(s.TokenRequests()); n != tc.tokens {
				t.Errorf("%d token requests, want %d", n, tc.tokens)
			}
		})
	}
}

// An error of the API may quote the token.
func TestCheckShowsNoToken(t *testing.T) {
	t.Parallel()
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/oauth/token" {
			io.WriteString(w, `{"access_token":"t0ken-of-the-test","expires_in":300}`)
			return
		}
		fmt.Fprintf(w, `{"errors":[{"message":"not good: %s"}]}`, r.Header.Get("Authorization"))
	}))
	defer echo.Close()
	p := start(t, with("USHER_BASE_URL="+echo.URL), "check")
	<-p.Ended
	if out := p.Stdout.String() + p.Stderr.String(); p.Code != 1 || strings.Contains(out, "t0ken-of-the-test") || !strings.Contains(out, "not good: Bearer [redacted]") {
		t.Errorf("%d:\n%s", p.Code, out)
	}
}
