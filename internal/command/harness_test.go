package command

import (
	"context"
	"io"
	"strings"
	"testing"

	"usher/internal/testkit"
)

func TestMain(m *testing.M) { testkit.MainInMemory(m) }

// start runs usher in this process until the test ends.
func start(t *testing.T, environ []string, args ...string) *testkit.Usher {
	t.Helper()
	return testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int {
		return Main(ctx, Process{Args: args, Environ: environ, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr})
	})
}
