//go:build unix

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"usher/internal/testkit"
)

// usher is ready when every local port has had a token, not when the first has.
func TestReadyWithEveryPort(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	u := run(t, s.Environ("USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_0_NAME=second", "USHER_PORTS_0_CLIENT_SECRET=wr0ng"))
	admin := u.URL(t, "admin")
	testkit.Eventually(t, "the first port has a token", func() bool { resp, _ := testkit.Call(t, u.URL(t, "main")); return resp.StatusCode == 200 })
	for _, path := range []string{"/readyz", "/readyz/outbound"} {
		if status, body := testkit.Get(t, admin+path); status != 503 || !strings.Contains(body, "port second has had no token yet") || strings.Contains(body, "port main") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

var pending = regexp.MustCompile(`(?m)^usher_inbox_pending (\d+)$`)

// Replicas that share an inbox report each what it delivers itself: the sum is the whole. Its server
// does not grant the room that the default asks for: usher takes what it grants, and says so.
func TestFiguresOfReplicasAddUp(t *testing.T) {
	t.Parallel()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, JetStreamMaxStore: 256 << 20, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the NATS server does not start")
	}
	rc := newReceiver(t, 503)
	env := gateAlone(rc.url, "USHER_WEBHOOK_INBOX="+s.ClientURL()+"?replicas=1")
	ushers := []*testkit.Usher{run(t, env), run(t, env)}
	const all = 40
	for i := range all {
		if status, _, answer := testkit.Post(t, hooks(t, ushers[i%2]), testkit.Snapshot(fmt.Sprint("t", i), 1)); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	var each []int
	testkit.Eventually(t, "all of it is counted once, some by each", func() bool {
		each = nil
		for _, u := range ushers {
			_, metrics := testkit.Get(t, u.URL(t, "admin")+"/metrics")
			if m := pending.FindStringSubmatch(metrics); m != nil {
				n, _ := strconv.Atoi(m[1])
				each = append(each, n)
			}
		}
		return len(each) == 2 && each[0]+each[1] == all && each[0] > 0 && each[1] > 0
	})
	if log := ushers[0].Stderr.String() + ushers[1].Stderr.String(); !strings.Contains(log, "inbox servers grant less room than asked for") {
		t.Error("the log does not say that there is less room")
	}
	rc.set(200)
	testkit.Eventually(t, "delivered", func() bool {
		for _, u := range ushers {
			_, metrics := testkit.Get(t, u.URL(t, "admin")+"/metrics")
			if !strings.Contains(metrics, "\nusher_inbox_pending 0\n") {
				return false
			}
		}
		return true
	})
}
