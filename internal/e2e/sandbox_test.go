//go:build unix

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"usher/internal/testkit"
)

// usherSandbox is 'usher sandbox', as it is built, on free ports.
type usherSandbox struct {
	*testkit.Usher
	url     string
	environ []string // what it says is to be set
}

func startSandbox(t *testing.T, args ...string) *usherSandbox {
	t.Helper()
	if !slices.Contains(args, "--receiver-listen") {
		args = append(args, "--receiver-listen", "127.0.0.1:0")
	}
	s := &usherSandbox{Usher: startProcess(t, nil, append([]string{"sandbox", "--listen", "127.0.0.1:0"}, args...)...)}
	testkit.Eventually(t, "what to set", func() bool { return strings.HasSuffix(s.Stdout.String(), "\n") })
	for line := range strings.Lines(s.Stdout.String()) {
		switch set, ok := strings.CutPrefix(strings.TrimSpace(line), "export "); {
		case ok:
			s.environ = append(s.environ, set)
		case !strings.HasPrefix(line, "#"):
			t.Errorf("neither to be set nor a comment: %s", line)
		}
	}
	s.url = s.value(t, "USHER_BASE_URL")
	return s
}

// value is what is to be set for a name.
func (s *usherSandbox) value(t *testing.T, name string) string {
	t.Helper()
	i := slices.IndexFunc(s.environ, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	if i < 0 {
		t.Fatalf("%s is not to be set: %q", name, s.environ)
	}
	return s.environ[i][len(name)+1:]
}

// run gives a command to the sandbox and returns what it printed and its exit code.
func (s *usherSandbox) run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	code, stdout, stderr := ended(t, nil, append([]string{"sandbox"}, append(args, "--at", s.url)...)...)
	return stdout + stderr, code
}

func (s *usherSandbox) want(t *testing.T, code int, want string, args ...string) {
	t.Helper()
	if out, got := s.run(t, args...); got != code || !strings.Contains(out, want) {
		t.Errorf("usher sandbox %s: exit code %d, want %d with %q:\n%s", strings.Join(args, " "), got, code, want, out)
	}
}

// The settings that it prints are those of an usher between the two: calls, webhooks to its
// receiver, tokens that are revoked, parts that fail.
func TestSandboxBesideUsher(t *testing.T) {
	t.Parallel()
	gate := testkit.FreeAddress(t)
	s := startSandbox(t, "--webhooks-to", "http://"+gate+"/webhooks", "--token", webhookToken)
	environ := append(s.environ, "USHER_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_LISTEN="+gate,
		"USHER_LOG_FORMAT=json", "USHER_WEBHOOK_TRIES=1")
	if p := startProcess(t, environ, "check"); true {
		if <-p.Ended; p.Code != 0 || strings.Count(p.Stdout.String(), "ok ") != 6 {
			t.Errorf("usher check: %d %s", p.Code, p.Stdout.String())
		}
	}
	u := startBuilt(t, environ).ready(t)
	call := func(status int) { t.Helper(); testkit.WantCall(t, "http://"+u.local, status, "") }
	call(200)

	s.want(t, 0, "200 forwarded\n200 duplicate\n", "send", "acme", "users=25", "sso", "--times", "2")
	s.want(t, 0, "200 forwarded\n", "send", "--platform", "docs", "acme", "users=0")
	for _, line := range []string{"acme (crm/acme): sso, users ≤ 25: 200\n", "acme (docs/acme): users ≤ 0: 200\n"} {
		testkit.Eventually(t, "received: "+line, func() bool { return strings.Contains(s.Stderr.String(), "receiver: "+line) })
		if n := strings.Count(s.Stderr.String(), "receiver: "+line); n != 1 {
			t.Errorf("%d times: %s", n, line)
		}
	}
	s.want(t, 0, "changed, and its webhook was lost: nothing was sent\n", "send", "acme", "users=31", "--lost")
	testkit.Eventually(t, "the loss in the log", func() bool { return strings.Contains(s.Stderr.String(), "nothing is sent: acme users=31\n") })
	if out := s.Stderr.String(); strings.Contains(out, "≤ 31") {
		t.Errorf("a lost webhook was received:\n%s", out)
	}
	file := filepath.Join(t.TempDir(), "webhook.json")
	if err := os.WriteFile(file, []byte(`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":7}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.want(t, 1, "422 rejected\n", "send", "--raw", file)

	s.want(t, 0, "tokens revoked: 4\n", "revoke") // those of check, too
	call(200)
	s.want(t, 0, "", "fail", "graphql", "401", "--for", "1h")
	call(401)
	s.want(t, 0, "", "fail", "off")
	call(200)
	s.want(t, 0, "", "fail", "token", "401")
	s.want(t, 0, "tokens revoked", "revoke")
	call(502)
	s.want(t, 0, "", "fail", "receiver", "503")
	s.want(t, 1, "502 failed\n", "send", "acme", "users=26")
	s.want(t, 0, "", "fail", "off")
	s.want(t, 0, "200 forwarded\n", "send", "acme", "users=26")
	if code, _, stderr := ended(t, nil, "sandbox", "send", "acme", "--at", "http://"+gate); code != 1 || !strings.Contains(stderr, "is that a sandbox?") {
		t.Errorf("asked a gate: %d %s", code, stderr)
	}

	s.Stop()
	if <-s.Ended; s.Code != 0 {
		t.Errorf("Ctrl-C: exit code %d", s.Code)
	}
	if strings.Contains(s.Stderr.String(), webhookToken) {
		t.Error("its log has the token")
	}
}

// The settings that it prints are for an usher in front of the receiver that its webhooks are for: yours, if they go
// there, or else its own.
func TestSandboxSettingsForAReceiver(t *testing.T) {
	t.Parallel()
	const mine, gate = "http://127.0.0.1:3000/provisioning", "http://127.0.0.1:8090/webhooks"
	for args, own := range map[string]bool{
		"--webhooks-to " + mine: false, "--webhooks-to " + mine + " --receiver-listen off": false,
		"--webhooks-to " + gate: true, "--webhooks-to " + gate + " --webhooks-to " + mine: true, "": true,
	} {
		s := startSandbox(t, strings.Fields(args)...)
		if got := s.value(t, "USHER_WEBHOOK_FORWARD_URL"); own == (got == mine) || !strings.HasSuffix(got, "/provisioning") {
			t.Errorf("%s: %s", args, got)
		}
		s.Kill()
	}
}

// What cannot be meant is exit code 2, what goes wrong is 1.
func TestSandboxUsage(t *testing.T) {
	t.Parallel()
	used := taken(t)
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"snd acme":                                       {2, `unknown command "snd" (did you mean send?)`},
		"--webhooks-to here":                             {2, "write an address"},
		"--receiver-listen off --every 1ms":              {2, "--every needs --webhooks-to"},
		"send acme sso sso":                              {2, "each code once"},
		"send --raw /nowhere/x":                          {1, "/nowhere/x"},
		"send acme --at 127.0.0.1:9000":                  {2, "--at: write the address of a sandbox, such as http://127.0.0.1:9000"},
		"send acme --at http://127.0.0.1:1":              {1, "cannot reach a sandbox at http://127.0.0.1:1."},
		"fail token now":                                 {2, "fail token 503"},
		"rehearse":                                       {2, "the address of your receiver"},
		"rehearse http://127.0.0.1:1":                    {1, "usher: cannot reach the receiver at 127.0.0.1:1. Is it running? dial tcp"},
		"--listen " + used:                               {1, "--listen"},
		"--listen 127.0.0.1:0 --receiver-listen " + used: {1, "--receiver-listen"},
	} {
		code, stdout, stderr := ended(t, nil, append([]string{"sandbox"}, strings.Fields(args)...)...)
		if out := stdout + stderr; code != want.code || !strings.Contains(out, want.text) {
			t.Errorf("usher sandbox %s: %d, want %d with %q:\n%s", args, code, want.code, want.text, out)
		}
	}
}
