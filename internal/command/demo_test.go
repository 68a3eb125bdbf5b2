package command

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/trial"
)

func TestDemo(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:8080")
	if err == nil {
		defer taken.Close()
	} // else it is taken already
	p := start(t, []string{"USHER_BASE_URL=https://not.used", "USHER_KEYS=slip", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json"}, "demo")
	p.ready(t)
	wantCall(t, p.url(t, "main"), 200, "accounts")
	for _, want := range []string{"curl -s " + p.url(t, "main") + "/graphql", "127.0.0.1:8080 is taken", "Ctrl-C"} {
		if !strings.Contains(p.stdout.String(), want) {
			t.Errorf("no %q in:\n%s", want, p.stdout.String())
		}
	}
	trial.Eventually(t, "a webhook delivered", func() bool {
		return strings.Contains(p.stdout.String(), "queued") && strings.Contains(p.stdout.String(), "has it")
	})
	p.stop()
	<-p.ended
	if p.code != 0 {
		t.Errorf("exit code %d: %s", p.code, p.stderr.String())
	}
}

// The line to copy works on a socket too.
func TestDemoOnASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "demo.sock")
	p := start(t, []string{"USHER_LISTEN=unix:" + path, "USHER_ADMIN_LISTEN=off", "USHER_WEBHOOK_LISTEN=127.0.0.1:0"}, "demo")
	trial.Eventually(t, "welcome", func() bool { return strings.Contains(p.stdout.String(), "Ctrl-C") })
	for _, want := range []string{"local port       unix:" + path + "\n", "curl -s --unix-socket '" + path + "' http://localhost/graphql -H", "curl -s http://127.0.0.1:"} {
		if !strings.Contains(p.stdout.String(), want) {
			t.Errorf("no %q in:\n%s", want, p.stdout.String())
		}
	}
}
