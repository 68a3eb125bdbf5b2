//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"testing"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// A replica stands still while webhooks wait in its sockets, and the other one takes in newer ones. Those of senders that
// have gone are not taken in when it goes on. Who still waits is heard.
func TestStandstill(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the built usher")
	}
	inbox := pgtest.Schema(t)
	ledger, receiver := testkit.NewLedger(t)
	var ushers [2]*replica
	for i := range ushers {
		u := &replica{gate: testkit.FreeAddress(t), rights: testkit.FreeAddress(t)}
		u.env = gateAlone(receiver, "USHER_WEBHOOK_LISTEN="+u.gate, "USHER_ENTITLEMENTS_LISTEN="+u.rights, "USHER_WEBHOOK_INBOX="+inbox)
		u.start(t)
		u.Ready(t)
		ushers[i] = u
	}
	frozen, other := ushers[0], ushers[1]
	take := func(u *replica, tenant string, n int) {
		t.Helper()
		// A replica that stands still within a transaction holds others for a moment: they answer 503, and the sender tries again.
		testkit.Eventually(t, fmt.Sprint(tenant, " ", n, " is taken in"), func() bool {
			status, _, answer := testkit.Post(t, "http://"+u.gate+"/webhooks", testkit.Snapshot(tenant, n))
			if status != 200 && status != 503 {
				t.Fatalf("%s %d: %d %s", tenant, n, status, answer)
			}
			return status == 200
		})
	}
	// write sends a webhook, and does not wait for the answer.
	write := func(tenant string, n int) net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", frozen.gate)
		if err != nil {
			t.Fatal(err)
		}
		body := testkit.Snapshot(tenant, n)
		fmt.Fprintf(conn, "POST /webhooks HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", frozen.gate, len(body), body)
		return conn
	}
	take(frozen, "a", 0)
	testkit.Eventually(t, "it writes nothing", func() bool { // which would be in the way of the other one
		code, out := inboxIn(t, frozen.Usher, "ls", "--state", "waiting")
		return code == 0 && out == ""
	})
	frozen.Signal(t, syscall.SIGSTOP)
	write("a", 1).Close()
	waits := write("waits", 1)
	defer waits.Close()
	take(other, "a", 1)
	take(other, "a", 2)
	frozen.Signal(t, syscall.SIGCONT)
	switch answer, err := io.ReadAll(io.LimitReader(waits, 12)); {
	case err == nil && string(answer) == "HTTP/1.1 503": // the standstill took longer than usher answers within
		take(frozen, "waits", 1)
	case err != nil || string(answer) != "HTTP/1.1 200":
		t.Errorf("who waits gets %q, %v", answer, err)
	}
	take(frozen, "a", 3) // whatever was left in its sockets is decided
	testkit.Eventually(t, "delivered", func() bool { return ledger.Last("a") == 3 && ledger.Count("waits") > 0 })
	if got := slices.Compact(ledger.All("a")); !slices.Equal(got, []int{0, 1, 2, 3}) { // one may come twice
		t.Errorf("delivered %v", got)
	}
}
