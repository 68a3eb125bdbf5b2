//go:build unix

package deploy_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"usher/internal/testkit"
)

// What systemd would do with the gate's unit, done without it: the unit's environment, a
// state directory, credentials, and a real socket on which usher says how it stands.
func TestGateUnit(t *testing.T) {
	var delivered testkit.Output
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = delivered.Write([]byte(r.Header.Get("webhook-signature") + "\n"))
	}))
	defer receiver.Close()
	gate, state := testkit.FreeAddress(t), t.TempDir()
	env := gateEnvironment(t, state, gate, receiver.URL)

	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	env = append(env, "NOTIFY_SOCKET="+manager.LocalAddr().String(), "WATCHDOG_USEC=2000")

	u := testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int { return usher(ctx, env, stdout, stderr) })
	told(t, manager, "READY=1")
	const webhook = `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"},"change":{"features":[],"subscriptions":[]}}}`
	resp, err := http.Post("http://"+gate+"/webhooks/t0psecret-t0psecret", "application/json", strings.NewReader(webhook))
	if err != nil {
		t.Fatal(err) // ready means that it listens
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the webhook was answered %s", resp.Status)
	}
	testkit.Eventually(t, "delivered and signed", func() bool { return strings.HasPrefix(delivered.String(), "v1,") })
	told(t, manager, "WATCHDOG=1")
	u.Stop()
	told(t, manager, "STOPPING=1")
	if <-u.Ended; u.Code != 0 {
		t.Errorf("exit code %d", u.Code)
	}
	if _, err := os.Stat(filepath.Join(state, "usher-gate", "inbox.db")); err != nil {
		t.Errorf("the inbox is not where the unit's StateDirectory is: %v", err)
	}
}

// gateEnvironment is the unit's, with what systemd would put in the place of %d.
func gateEnvironment(t *testing.T, state, gate, receiver string) []string {
	t.Helper()
	unit, err := os.ReadFile("systemd/usher-gate.service")
	if err != nil {
		t.Fatal(err)
	}
	credentials := t.TempDir()
	var loaded []string
	for line := range strings.Lines(string(unit)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "StateDirectory":
			if err := os.Mkdir(filepath.Join(state, value), 0o700); err != nil {
				t.Fatal(err)
			}
		case "LoadCredential":
			id, _, _ := strings.Cut(value, ":")
			loaded = append(loaded, id)
			content := "t0psecret-t0psecret\n"
			if id == "forward-signing-key" {
				content = "whsec_YSBrZXkgb2YgdGhlIHRlc3Q=\n"
			}
			if err := os.WriteFile(filepath.Join(credentials, id), []byte(content), 0o400); err != nil {
				t.Fatal(err)
			}
		}
	}
	env := unitEnvironment(t, "systemd/usher-gate.service", "systemd/gate.env")
	for i, kv := range env {
		env[i] = strings.NewReplacer("/var/lib", state, "%d", credentials, "127.0.0.1:8090", gate,
			"127.0.0.1:9095", "127.0.0.1:0", "http://127.0.0.1:3000", receiver).Replace(kv)
	}
	for _, line := range []string{"Type=notify", "StateDirectory=usher-gate", "WatchdogSec=30s"} {
		if !slices.Contains(strings.Split(string(unit), "\n"), line) {
			t.Errorf("the unit has no line %s", line)
		}
	}
	if len(loaded) != 3 {
		t.Errorf("credentials: %q", loaded)
	}
	return env
}

// told waits for a datagram; signs of life may come before it.
func told(t *testing.T, manager *net.UnixConn, want string) {
	t.Helper()
	if err := manager.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 4096); ; {
		n, err := manager.Read(b)
		if err != nil {
			t.Fatalf("never told %s: %v", want, err)
		}
		switch got := string(b[:n]); got {
		case want:
			return
		case "WATCHDOG=1":
		default:
			t.Fatalf("told %q, want %s", got, want)
		}
	}
}
