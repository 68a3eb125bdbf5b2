package command

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"usher/internal/admin/status"
)

// usher status says what is wrong, with commands that reach the same usher, and exits with 1; --json is the API's answer.
func TestStatus(t *testing.T) {
	s := newInboxServer(t, "")
	run := func(args ...string) (int, string, string) {
		p := start(t, []string{"USHER_ADMIN_LISTEN=" + s.addr}, args...)
		<-p.Ended
		return p.Code, p.Stdout.String(), p.Stderr.String()
	}
	code, out, _ := run("status")
	for _, want := range []string{"critical: 2 webhooks of ", " are parked; the receiver answered: 422: no such account\n  since 20", "\n  usher inbox ls --state parked\n",
		"warning: Paused: receiver crm\n", "\n  usher inbox resume --receiver crm\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if code != 1 || strings.Contains(out, "All is well") || strings.ContainsAny(out, "\x1b\u00a0\u202f") {
		t.Errorf("exit code %d\n%q", code, out)
	}
	code, out, _ = run("status", "--json")
	var now status.Status
	if err := json.Unmarshal([]byte(out), &now); err != nil || code != 1 || len(now.Troubles) != 2 || now.Troubles[0].Alert != "UsherWebhooksParked" {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	for _, args := range [][]string{{"status", "now"}, {"status", "--yaml"}} {
		if code, _, stderr := run(args...); code != 2 || !strings.Contains(stderr, "json") {
			t.Errorf("%q: exit code %d, %s", args, code, stderr)
		}
	}
	env := t.TempDir() + "/gate.env"
	if err := os.WriteFile(env, []byte("USHER_ADMIN_LISTEN="+s.addr+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, "--env-file", env, "status")
	if <-p.Ended; !strings.Contains(p.Stdout.String(), "\n  usher --env-file "+env+" inbox ls --state parked\n") || !strings.Contains(p.Stdout.String(), "'usher --env-file "+env+" inbox redeliver") {
		t.Errorf("%s", p.Stdout.String())
	}
}
