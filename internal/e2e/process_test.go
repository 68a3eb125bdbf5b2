//go:build unix

package e2e

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

func TestSignals(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			p := startProcess(t, testkit.NewService(t).Environ())
			p.Ready(t)
			p.Signal(t, sig)
			if <-p.Ended; p.Code != 0 {
				t.Errorf("exit code %d: %s", p.Code, p.Stderr.String())
			}
		})
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	p := startProcess(t, s.Environ("USHER_SHUTDOWN_GRACE=10m"))
	p.Ready(t)
	entered := make(chan struct{})
	s.OnCall = func(*http.Request, []byte) { close(entered) }
	s.FailGraphQL(sandbox.Fault{Hang: true})
	go http.Post(p.URL(t, "main")+"/graphql", "application/json", strings.NewReader(testkit.Query))
	<-entered
	p.Signal(t, syscall.SIGTERM)
	testkit.Eventually(t, "shutting down", func() bool { return strings.Contains(p.Stderr.String(), "shutting down") })
	p.Signal(t, syscall.SIGTERM)
	if <-p.Ended; p.Code != 1 {
		t.Errorf("exit code %d: %s", p.Code, p.Stderr.String())
	}
}
