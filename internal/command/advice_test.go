package command

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// with returns an environment in which outbound is on, together with these variables.
func with(extra ...string) []string {
	return append([]string{"USHER_BASE_URL=https://billing.example.com", "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=t0psecret"}, extra...)
}

// The usual mistakes of new users: usher says each time what is wrong, and what to do.
func TestAdvice(t *testing.T) {
	s := testkit.NewService(t)
	overTLS := httptest.NewTLSServer(sandbox.NewBilling())
	defer overTLS.Close()
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }))
	defer failing.Close()
	gone := "http://" + testkit.FreeAddress(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	none := filepath.Join(t.TempDir(), "none")
	host := strings.TrimPrefix(s.URL, "http://")
	for _, tc := range []struct {
		name  string
		args  []string
		extra []string
		code  int
		want  []string
	}{
		{"wrong secret", []string{"exec", "--", "true"}, []string{"USHER_CLIENT_SECRET=wr0ng"}, 1, []string{"invalid_client", "authentication method; check USHER_CLIENT_ID and USHER_CLIENT_SECRET"}},
		{"wrong scope", []string{"exec", "--", "true"}, []string{"USHER_SCOPE=admin"}, 1, []string{"invalid_scope", "check USHER_SCOPE"}},
		{"wrong scope of a further port", []string{"check"}, []string{"USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_0_SCOPE=admin"}, 1, []string{"ok    token for port main", "check USHER_PORTS_0_SCOPE"}},
		{"base address with a typo in its path", []string{"check"}, []string{"USHER_BASE_URL=" + s.URL + "/apo"}, 1, []string{"answered 404", "check USHER_BASE_URL: usher tried " + s.URL + "/apo/oauth/token"}},
		{"base address of the endpoint", []string{"check"}, []string{"USHER_BASE_URL=" + s.URL + "/graphql"}, 1, []string{"remove /graphql or /oauth/token from USHER_BASE_URL"}},
		{"a service that fails", []string{"check"}, []string{"USHER_BASE_URL=" + failing.URL}, 1, []string{"answered 503; find out why " + failing.URL + "/oauth/token fails"}},
		{"nobody there", []string{"check"}, []string{"USHER_BASE_URL=" + gone}, 1, []string{"connection refused", "check USHER_BASE_URL"}},
		{"https where there is none", []string{"check"}, []string{"USHER_BASE_URL=https://" + host}, 1, []string{"the server there does not use https", "USHER_BASE_URL"}},
		{"http where there is https", []string{"check"}, []string{"USHER_BASE_URL=" + strings.Replace(overTLS.URL, "https", "http", 1)}, 1, []string{"answered 400", "should it start with https?"}},
		{"http beyond this machine", []string{"check"}, []string{"USHER_BASE_URL=http://billing.example.com"}, 2, []string{"should hold an https address", "USHER_ALLOW_PLAIN_HTTP"}},
		{"a CA of one's own", []string{"check"}, []string{"USHER_BASE_URL=" + overTLS.URL}, 1, []string{"unknown authority", "SSL_CERT_FILE"}},
		{"a proxy that is not there", []string{"check"}, []string{"USHER_BASE_URL=https://billing.example.com", "HTTPS_PROXY=" + gone}, 1, []string{"proxyconnect", "check HTTPS_PROXY"}},
		{"receiver down", []string{"check"}, []string{"USHER_WEBHOOK_FORWARD_URL=" + gone}, 1, []string{"is it running? Its address is in USHER_WEBHOOK_FORWARD_URL"}},
		{"port taken", nil, []string{"USHER_LISTEN=" + taken.Addr().String()}, 1, []string{"USHER_LISTEN: can't listen on ", "address already in use"}},
		{"inbox without a folder", nil, []string{"USHER_WEBHOOK_FORWARD_URL=" + gone, "USHER_WEBHOOK_INBOX=file:" + none + "/x"}, 1, []string{"USHER_WEBHOOK_INBOX: ", "no such file or directory"}},
		{"secret without a file", nil, []string{"USHER_CLIENT_SECRET=", "USHER_CLIENT_SECRET_FILE=" + none}, 2, []string{"USHER_CLIENT_SECRET_FILE is", "no such file"}},
		{"nothing set", nil, []string{"USHER_BASE_URL=", "USHER_CLIENT_ID=", "USHER_CLIENT_SECRET="}, 2, []string{"USHER_BASE_URL is not set", "run 'usher demo'"}},
		{"exec without --", []string{"exec", "-x"}, nil, 2, []string{"write -- before the command"}},
		{"misspelt command", []string{"chekc"}, nil, 2, []string{"did you mean check?"}},
		{"nobody to ask", []string{"healthcheck"}, []string{"USHER_ADMIN_LISTEN=127.0.0.1:1"}, 1, []string{"cannot reach usher at 127.0.0.1:1: ", "refused. Is it running? Its address is in USHER_ADMIN_LISTEN, "}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, s.Environ(tc.extra...), tc.args...)
			<-p.Ended
			out := p.Stdout.String() + p.Stderr.String()
			if p.Code != tc.code {
				t.Errorf("%d, want %d", p.Code, tc.code)
			}
			for _, want := range tc.want {
				if !strings.Contains(out, want) {
					t.Errorf("%q is missing in:\n%s", want, out)
				}
			}
			if strings.Contains(out, "wr0ng") {
				t.Error("the secret shows")
			}
		})
	}
}
