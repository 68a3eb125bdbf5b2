//go:build unix

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/testkit"
)

// usher puts a copy of itself where an init container wants it, also over one that runs.
func TestInstall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "usher")
	output := func(program string, args ...string) (string, int) {
		cmd := exec.Command(program, args...)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	version, _ := output(testkit.Binary(t), "version")
	for _, from := range []string{testkit.Binary(t), file} {
		if out, code := output(from, "install", file); code != 0 || out != "" {
			t.Fatalf("%s: %d %s", from, code, out)
		}
		if out, code := output(file, "version"); code != 0 || out != version {
			t.Errorf("the copy of %s: %d %s, want %s", from, code, out, version)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("it left %v: %v", left, err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(os.DevNull, link); err != nil {
		t.Fatal(err)
	}
	if out, code := output(file, "install", link); code != 1 || !strings.Contains(out, "not a regular file") {
		t.Errorf("in the place of a link: %d %s", code, out)
	}
	for want, args := range map[int][]string{1: {"install", dir}, 2: {"install"}} {
		if out, code := output(file, args...); code != want {
			t.Errorf("%q: %d %s", args, code, out)
		}
	}
	if _, code := output(file, "install", filepath.Join(dir, "missing", "usher")); code != 1 {
		t.Errorf("into a folder that does not exist: exit code %d", code)
	}
}
