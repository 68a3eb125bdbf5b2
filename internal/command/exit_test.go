package command

import (
	"net"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tc := range []struct {
		name    string
		environ []string
		args    []string
		code    int
		want    string
	}{
		{"port taken", s.Environ("USHER_LISTEN=" + taken.Addr().String()), nil, 1, "USHER_LISTEN: can't listen on " + taken.Addr().String()},
		{"admin port taken", s.Environ("USHER_ADMIN_LISTEN=" + taken.Addr().String()), nil, 1, "USHER_ADMIN_LISTEN"},
		{"bad settings", nil, nil, 2, "USHER_BASE_URL is not set"},
		{"bad settings of check", nil, []string{"check"}, 2, "USHER_BASE_URL is not set"},
		{"bad settings of exec", nil, []string{"exec", "--", "true"}, 2, "USHER_BASE_URL is not set"},
		{"unknown command", nil, []string{"sevre"}, 2, `unknown command "sevre"`},
		{"misspelt option", nil, []string{"--envfile", "x"}, 2, `unknown flag "--envfile" (did you mean --env-file?)`},
		{"misspelt option with its value", nil, []string{"--envfile=x", "check"}, 2, "(did you mean --env-file?)"},
		{"unknown option", nil, []string{"-x"}, 2, `unknown flag "-x": use --env-file, --help, --version.`},
		{"unknown command with arguments", nil, []string{"./report.sh", "--help"}, 2, "exec"},
		{"too much", nil, []string{"version", "x"}, 2, "takes no arguments"},
		{"exec of nothing", s.Environ(), []string{"exec", "--"}, 2, "needs a command"},
		{"help", nil, []string{"-h"}, 0, "usher exec -- CMD"},
		{"help of a command", nil, []string{"demo", "--help"}, 0, "Usage: usher demo"},
		{"version", nil, []string{"version"}, 0, "go1."},
		{"healthcheck of none", []string{"USHER_ADMIN_LISTEN=127.0.0.1:1"}, []string{"healthcheck"}, 1, "refused"},
		// 2 means nothing to Docker
		{"healthcheck without a port", []string{"USHER_ADMIN_LISTEN=off"}, []string{"healthcheck"}, 1, "off"},
		// 1 would be "may not use"
		{"entitlements without a port", []string{"USHER_ADMIN_LISTEN=off"}, []string{"entitlements", "acme", "sso"}, 2, "USHER_ADMIN_LISTEN is off"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, tc.environ, tc.args...)
			<-p.Ended
			if out := p.Stdout.String() + p.Stderr.String(); p.Code != tc.code || !strings.Contains(out, tc.want) {
				t.Errorf("%d, want %d with %q:\n%s", p.Code, tc.code, tc.want, out)
			}
		})
	}
}

func TestHealthcheck(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	s.FailTokens(sandbox.Fault{Status: 503})
	p := start(t, s.Environ())
	addr := strings.TrimPrefix(p.URL(t, "admin"), "http://")
	probe := func() int {
		h := start(t, []string{"USHER_ADMIN_LISTEN=" + addr}, "healthcheck")
		<-h.Ended
		return h.Code
	}
	if code := probe(); code != 1 {
		t.Errorf("before the first token: %d", code)
	}
	s.FailTokens(sandbox.Fault{})
	p.Ready(t)
	if code := probe(); code != 0 {
		t.Errorf("ready: %d", code)
	}
}
