// Package examples is programs to start your own from. They run here as they stand,
// against a real usher and the sandbox.
package examples

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"usher/internal/command"
	"usher/internal/testkit"
)

var long = flag.Bool("long", false, "also what only a change of an example itself can break, in languages that start slowly")

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

// quickJava has Java start a short program in half of its usual CPU time.
var quickJava = []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}

// classes are the examples in Java, compiled: Java compiles a file that it is given each time, which takes longer than all else.
var classes = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(shared, "classes")
	files, _ := filepath.Glob("*/*.java")
	if out, err := exec.Command("javac", append([]string{"-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-d", dir}, files...)...).CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return dir, nil
})

// compiled is a faster form of a command.
func compiled(t *testing.T, command []string) []string {
	t.Helper()
	if command[0] != "java" {
		return command
	}
	dir, err := classes()
	if err != nil {
		t.Fatal(err)
	}
	return append(quickJava[:len(quickJava):len(quickJava)], "-cp", dir, strings.TrimSuffix(filepath.Base(command[len(command)-1]), ".java"))
}

// slow says whether a language takes half a second to start.
func slow(command []string) bool { return command[0] == "java" || command[0] == "node" }

// packages is a folder with the packages from npm that the tests use.
var packages = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(shared, "npm")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	for _, file := range []string{"package.json", "features.mjs"} {
		content, err := os.ReadFile(filepath.Join("openfeature-node", file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), content, 0o600)
		}
		if err != nil {
			return "", err
		}
	}
	install := exec.Command("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "graphql-request@7", "graphql@16")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return dir, nil
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
