package serve_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"usher/internal/command"
	"usher/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.TrustTestServers()
	testkit.Main(m)
}

// What the tests of this package use of testkit, by shorter names.
var (
	newService = testkit.NewService
	snapshot   = testkit.Snapshot
	get        = testkit.Get
	post       = testkit.Post
	call       = testkit.Call
	wantCall   = testkit.WantCall
	whole      = testkit.Whole
)

const query = testkit.Query

// start runs usher in this process until the test ends.
func start(t *testing.T, environ []string, args ...string) *testkit.Usher {
	t.Helper()
	return testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int {
		return command.Main(ctx, command.Process{Args: args, Environ: environ, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr})
	})
}
