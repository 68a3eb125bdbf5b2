// Package examples is programs to start your own from. They run here as they stand,
// against a real usher and the sandbox.
package examples

import (
	"context"
	"io"
	"os/exec"
	"path/filepath"
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

// quickJava has Java start a short program in half of its usual CPU time.
var quickJava = []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}

// compiled is a faster form of a command that runs several times. Java compiles a file that it is given each time,
// which takes longer than all else.
func compiled(t *testing.T, command []string) []string {
	t.Helper()
	if command[0] != "java" {
		return command
	}
	dir, file := t.TempDir(), command[len(command)-1]
	if out, err := exec.Command("javac", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-d", dir, file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return append(quickJava[:len(quickJava):len(quickJava)], "-cp", dir, strings.TrimSuffix(filepath.Base(file), ".java"))
}

// start runs usher in this process until the test ends.
func start(t *testing.T, environ []string, args ...string) *testkit.Usher {
	t.Helper()
	return testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int {
		return command.Main(ctx, command.Process{Args: args, Environ: environ, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr})
	})
}
