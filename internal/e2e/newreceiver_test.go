//go:build unix

package e2e

import (
	"strings"
	"testing"

	"usher/internal/testkit"
)

// A receiver that comes later is filled with the latest of each tenant of its platform, in one command: what
// was stored, and what another receiver has. The other receiver gets nothing.
func TestFillANewReceiver(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		old, added := newReceiver(t, 200), newReceiver(t, 200)
		env := gateAlone(old.url, inbox, "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0")
		u := run(t, env)
		for _, body := range []string{on("docs", "acme", 1), on("docs", "acme", 2), on("docs", "mill", 3), on("crm", "acme", 4)} {
			testkit.Post(t, hooks(t, u), body)
		}
		testkit.Eventually(t, "delivered to the first", func() bool { return old.count() == 4 && !strings.Contains(states(t, u), "waiting") })
		u.End()
		env[0] = "USHER_WEBHOOK_FORWARD_URL=" // nobody: what comes is stored
		u = run(t, env)
		testkit.Post(t, hooks(t, u), on("docs", "quay", 5))
		u.End()
		u = run(t, append(env, "USHER_WEBHOOK_FORWARD_URL="+old.url, "USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=docs", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL="+added.url)[1:])
		u.Ready(t)
		if code, out := inboxIn(t, u, "redeliver", "--platform", "docs", "--yes"); code != 0 || !strings.HasPrefix(out, "Redeliver 3 webhooks (without 1 older") {
			t.Fatalf("%d %s", code, out)
		}
		testkit.Eventually(t, "delivered to the new one", func() bool { return added.count() == 3 && !strings.Contains(states(t, u), "waiting") })
		got := strings.Join(added.bodies, "\n")
		for _, want := range []string{on("docs", "acme", 2), on("docs", "mill", 3), on("docs", "quay", 5)} {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in\n%s", want, got)
			}
		}
		if old.count() != 4 {
			t.Errorf("the other receiver got %d", old.count()-4)
		}
	})
}
