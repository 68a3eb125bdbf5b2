// Package examples is programs to start your own from. They run here as they stand,
// against a real usher and the sandbox.
package examples

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"usher/internal/command"
	"usher/internal/testkit"
	"usher/internal/testkit/kept"
)

var shared string // a folder for what several tests use

func TestMain(m *testing.M) {
	var err error
	if shared, err = os.MkdirTemp("", "usher-examples-"); err != nil {
		panic(err)
	}
	// A python3 that looks for the version to run (pyenv's) takes as long for that as Python to start.
	if python, err := exec.Command("python3", "-c", "import sys; print(sys.executable, end='')").Output(); err == nil {
		if os.Symlink(string(python), filepath.Join(shared, "python3")) == nil {
			os.Setenv("PATH", shared+string(os.PathListSeparator)+os.Getenv("PATH"))
		}
	}
	testkit.Main(m, func() { os.RemoveAll(shared) })
}

// needs is for a test that takes a program which may not be installed.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		testkit.Missing(t, "%s is not installed: its example is not tried", program)
	}
}

// classes are the examples in Java, compiled: Java compiles a file that it is given each time.
var classes = sync.OnceValues(func() (string, error) {
	files, _ := filepath.Glob("*/*.java")
	javac, err := exec.LookPath("javac")
	if err != nil {
		return "", err
	}
	version, err := filepath.EvalSymlinks(javac) // its path says it
	if err != nil {
		return "", err
	}
	of := []any{version}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		of = append(of, source)
	}
	return kept.Folder(func(dir string) error {
		return output(javac, append([]string{"-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-d", dir}, files...)...)
	}, of...)
})

// output runs a command, and returns what it printed if it fails.
func output(command string, args ...string) error {
	if out, err := exec.Command(command, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// compiled is a command with Java's classes, and in half of Java's usual CPU time for a short program.
func compiled(t *testing.T, command []string) []string {
	t.Helper()
	if command[0] != "java" {
		return command
	}
	dir, err := classes()
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", dir}, command[1:]...)
}

// packages is a folder with an example in Node, and the packages from npm that the tests use.
var packages = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(shared, "npm")
	if err := os.CopyFS(dir, os.DirFS("openfeature-node")); err != nil {
		return "", err
	}
	needed, err := os.ReadFile("openfeature-node/package.json")
	if err != nil {
		return "", err
	}
	install := []string{"install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"}
	installed, err := kept.Folder(func(folder string) error {
		return cmp.Or(os.WriteFile(filepath.Join(folder, "package.json"), needed, 0o600), output("npm", append([]string{"--prefix", folder}, install...)...))
	}, install, needed)
	if err != nil {
		return "", err
	}
	return dir, os.Symlink(filepath.Join(installed, "node_modules"), filepath.Join(dir, "node_modules"))
})

// npm is that folder, to run a script in.
func npm(t *testing.T, name, script string) (dir string) {
	t.Helper()
	needs(t, "npm")
	dir, err := packages()
	if err != nil {
		testkit.Missing(t, "npm can't install what is tried with it: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// start runs usher in this process until the test ends.
func start(t *testing.T, environ []string, args ...string) *testkit.Usher {
	t.Helper()
	return testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int {
		return command.Main(ctx, command.Process{Args: args, Environ: environ, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr})
	})
}
