//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// A replica stands still while webhooks wait in its sockets. Those of senders that have gone are not taken in
// when it goes on: the other one has taken in newer ones meanwhile. They are missed, unless it has the same
// or a later state. Who still waits is heard.
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
		if status, _, answer := testkit.Post(t, "http://"+u.gate+"/webhooks", testkit.Snapshot(tenant, n)); status != 200 {
			t.Fatalf("%s %d: %d %s", tenant, n, status, answer)
		}
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
	tenants := map[string][]int{"a": {1, 2}, "resent": {1}, "lost": {5}, "earlier": {5, 6}, "waits": {1}, "late": {7, 8}, "hasty": {9}}
	take(frozen, "lost", 5)
	take(frozen, "earlier", 5)
	take(frozen, "late", 7)
	write("hasty", 9).Close() // a sender that never reads an answer, while usher runs
	testkit.Eventually(t, "taken in", func() bool { return ledger.Count("hasty") == 1 })
	testkit.Eventually(t, "it writes nothing", func() bool { // which would be in the way of the other one
		code, out := inboxIn(t, frozen.Usher, "ls", "--state", "waiting")
		return code == 0 && out == ""
	})
	frozen.Signal(t, syscall.SIGSTOP)
	take(other, "earlier", 6)
	for _, tenant := range []string{"a", "resent", "lost", "earlier"} {
		write(tenant, 1).Close()
	}
	overtaken := write("late", 1)
	defer overtaken.Close()
	waits := write("waits", 1)
	defer waits.Close()
	take(other, "a", 1)
	take(other, "a", 2)
	take(other, "resent", 1)
	testkit.Eventually(t, "delivered", func() bool { return ledger.Count("a") == 2 && ledger.Count("resent") == 1 })
	time.Sleep(3 * time.Second) // less than two is no standstill
	take(other, "late", 8)
	frozen.Signal(t, syscall.SIGCONT)
	if answer, err := io.ReadAll(io.LimitReader(waits, 12)); err != nil || string(answer) != "HTTP/1.1 200" {
		t.Errorf("who waits gets %q, %v", answer, err)
	}
	if answer, err := io.ReadAll(io.LimitReader(overtaken, 12)); err != nil || string(answer) != "HTTP/1.1 503" {
		t.Errorf("who waits while another sends a later state gets %q, %v", answer, err)
	}
	missed := func() string {
		_, out := inboxIn(t, other.Usher, "tenants", "--trouble")
		return out
	}
	testkit.Eventually(t, "missed", func() bool {
		all := missed()
		return strings.Contains(all, "crm/lost ") && strings.Contains(all, "crm/earlier ")
	})
	if all := missed(); strings.Count(all, "\n") != 2 {
		t.Errorf("more are missed:\n%s", all)
	}
	for tenant, want := range tenants {
		testkit.Eventually(t, tenant+" delivered", func() bool { return ledger.Count(tenant) >= len(want) })
	}
	take(frozen, "resent", 2) // whatever was left in its sockets is decided
	take(frozen, "resent", 3)
	tenants["resent"] = []int{1, 2, 3}
	testkit.Eventually(t, "delivered", func() bool { return ledger.Count("resent") >= 3 })
	for tenant, want := range tenants {
		if got := ledger.All(tenant); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: delivered %v, want %v", tenant, got, want)
		}
		last := fmt.Sprintf(`"limit":%d,`, want[len(want)-1])
		if r := frozen.may(t, tenant); !strings.Contains(r.body, last) {
			t.Errorf("%s: %s, want %s", tenant, r.body, last)
		}
	}
	if !strings.Contains(frozen.Stderr.String(), "usher stood still") {
		t.Error("it is not in the log")
	}
}
