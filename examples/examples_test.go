// Package examples is programs to start your own from. They run here as they stand,
// against a real usher and the sandbox.
package examples

import (
	"context"
	"io"
	"os/exec"
	"strings"
	"testing"

	"usher/internal/command"
	"usher/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// needs is for a test that takes a program which may not be installed.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		testkit.Missing(t, "%s is not installed: its example is not tried", program)
	}
}

// start runs usher in this process until the test ends.
func start(t *testing.T, environ []string) *testkit.Usher {
	t.Helper()
	return testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int {
		return command.Main(ctx, command.Process{Environ: environ, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr})
	})
}
