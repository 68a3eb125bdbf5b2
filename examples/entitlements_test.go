package examples

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/testkit"
)

// theKey is demanded on the port of entitled.
const theKey = "entitlements-key-0123"

// entitlementsPort is that of an usher which knows the tenants acme (reports, users: 25,
// tier: gold), brücke & söhne (reports) and small (nothing), all on the platform eu.
type entitlementsPort struct {
	url   string
	gate  string
	usher *testkit.Usher
}

func entitled(t *testing.T) *entitlementsPort {
	t.Helper()
	return entitledIn(t, "file:"+filepath.Join(t.TempDir(), "inbox.db"))
}

func entitledIn(t *testing.T, inbox string) *entitlementsPort {
	t.Helper()
	u := start(t, []string{
		"USHER_WEBHOOK_INBOX=" + inbox, "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_ENTITLEMENTS_KEY=" + theKey,
		"USHER_ADMIN_LISTEN=off", "USHER_LOG_FORMAT=json",
	})
	p := &entitlementsPort{url: u.URL(t, "entitlements"), gate: u.URL(t, "webhooks"), usher: u}
	p.webhook(t, "eu", "acme", `{"code":"reports"},{"code":"users","quantity":25},{"code":"tier","value":"gold"}`)
	p.webhook(t, "eu", "brücke & söhne", `{"code":"reports"}`)
	p.webhook(t, "eu", "small", ``)
	return p
}

// webhook has a tenant's features replaced.
func (p *entitlementsPort) webhook(t *testing.T, platform, tenant, features string) {
	t.Helper()
	body := fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":%q,"platform":{"code":%q}},"change":{"features":[%s]}}}`, tenant, platform, features)
	resp, err := http.Post(p.gate+"/webhooks", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", resp.StatusCode, answer)
	}
}

// Each language asks the same, and tells a no from what nobody knows.
func TestMay(t *testing.T) {
	t.Parallel()
	port := entitled(t)
	questions := []struct {
		url, key, tenant, feature string
		exit                      int
		out                       string
	}{
		{port.url, theKey, "brücke & söhne", "reports", 0, "yes\n"},
		{port.url, theKey, "small", "reports", 1, "no\n"},
		{port.url, theKey, "nobody", "reports", 2, "TENANT_UNKNOWN"},
		{port.url, "wrong", "acme", "reports", 2, "KEY_REQUIRED"},
		{"http://127.0.0.1:1", theKey, "acme", "reports", 2, "127.0.0.1"},
	}
	for _, tc := range []struct {
		name, needs string
		command     []string
	}{
		{"curl", "curl", []string{"./entitlements/may.sh"}},
		{"Python", "python3", []string{"python3", "entitlements/may.py"}},
		{"PHP", "php", []string{"php", "entitlements/may.php"}},
		{"Perl", "perl", []string{"perl", "entitlements/may.pl"}},
		{"Java", "java", []string{"java", "May"}},
		{"Node", "node", []string{"node", "entitlements/may.mjs"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			needs(t, tc.needs)
			command := compiled(t, tc.command)
			for _, q := range questions {
				env := []string{"ENTITLEMENTS_URL=" + q.url, "ENTITLEMENTS_KEY=" + q.key}
				out, err := run(env, "", append(command, q.tenant, q.feature)...)
				if got := exitCode(err); got != q.exit || q.exit < 2 && out != q.out || !strings.Contains(out, q.out) {
					t.Errorf("may %s %s: exit %d, want %d: %s", q.tenant, q.feature, got, q.exit, out)
				}
			}
		})
	}
}

func exitCode(err error) int {
	var ended *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended):
		return ended.ExitCode()
	default:
		return -1
	}
}

// serve runs a program in the foreground until stop is called, or the test ends.
func serve(t *testing.T, command ...string) (out *testkit.Output, stop func()) {
	t.Helper()
	out = new(testkit.Output)
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { cancel(); _ = cmd.Wait() })
	t.Cleanup(stop)
	return out, stop
}
