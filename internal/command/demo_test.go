package command

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"usher/internal/sandbox"
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
	if _, status := get(t, p.url(t, "admin")+"/api/status"); !strings.Contains(status, `"platforms":["crm"]`) || !strings.Contains(status, `"platforms":["docs"]`) {
		t.Errorf("not two receivers: %s", status)
	}
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

// A delivery is told once, also where a later one was accepted before it.
func TestDeliveriesAreToldOnce(t *testing.T) {
	var out strings.Builder
	say := &narrator{out: &out}
	begin := time.Now()
	accepted := func(tenant string, after time.Duration) sandbox.Delivery {
		return sandbox.Delivery{Tenant: tenant, Until: begin.Add(after), Applied: true, Status: http.StatusOK}
	}
	all := []sandbox.Delivery{accepted("slow", 2*time.Second), accepted("quick", time.Second)}
	seen := say.deliveries("crm", all, begin)
	say.deliveries("crm", append(all, accepted("next", 3*time.Second)), seen)
	if got := strings.Count(out.String(), "has it"); got != 3 {
		t.Errorf("%d deliveries were told, want 3:\n%s", got, out.String())
	}
}
