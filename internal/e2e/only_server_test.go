//go:build unix

package e2e

import (
	"syscall"
	"testing"

	"usher/internal/testkit"
)

// A single server is killed again and again under load, also before anybody has missed it, and hangs.
func TestOnlyServerUnderFire(t *testing.T) {
	t.Parallel()
	f := newFleetOn(t, 1)
	l := f.load(8)
	for range 8 {
		l.progress()
		f.kill(0)
		f.cluster.start(0)
	}
	l.progress()
	hang := func(s syscall.Signal) {
		if err := f.nodes[0].cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	hang(syscall.SIGSTOP)
	ready := f.ushers[0].URL(t, "admin") + "/readyz"
	testkit.Eventually(t, "missed", func() bool { status, _ := testkit.Get(t, ready); return status != 200 })
	hang(syscall.SIGCONT)
	l.progress()
	l.end()
	l.judge()
}
