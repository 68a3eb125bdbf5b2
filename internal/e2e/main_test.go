//go:build unix

package e2e

import (
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"usher/internal/testkit"
)

// callAndExit makes this test's own binary a script for usher exec: there is no
// telling which other HTTP client a machine has.
const callAndExit = "CALL_AND_EXIT"

func TestMain(m *testing.M) {
	if os.Getenv(callAndExit) != "" {
		resp, err := http.Post(os.Getenv("USHER_URL"), "application/json", strings.NewReader(testkit.Query))
		if err != nil {
			log.Fatal(err)
		}
		_, _ = io.Copy(os.Stdout, resp.Body)
		os.Exit(0)
	}
	testkit.TrustTestServers()
	testkit.Main(m)
}

// startProcess runs the built usher.
func startProcess(t *testing.T, environ []string, args ...string) *testkit.Usher {
	t.Helper()
	return startCommand(t, environ, exec.Command(testkit.Binary(t), args...))
}

// startCommand runs a command that runs the built usher.
func startCommand(t *testing.T, environ []string, cmd *exec.Cmd) *testkit.Usher {
	t.Helper()
	cmd.Env = append(environ[:len(environ):len(environ)], "PATH="+os.Getenv("PATH"))
	return testkit.Start(t, cmd)
}

// startBuilt runs usher in a process of its own.
func startBuilt(t *testing.T, environ []string) *usher {
	t.Helper()
	return find(t, startProcess(t, environ))
}
