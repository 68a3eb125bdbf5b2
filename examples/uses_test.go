//go:build linux

package examples

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"usher/internal/testkit"
)

// docs/uses.md, done as it says: its commands, in their order, on its own ports, in a
// network of their own. What it shows as output must come.
func TestUses(t *testing.T) {
	t.Parallel()
	use(t, strings.NewReplacer())
}

// The same by a person, who reads before each step: meanwhile dozens of webhooks have come.
func TestUsesAtHumanSpeed(t *testing.T) {
	t.Parallel()
	use(t, strings.NewReplacer(" -every 1s\n", " -every 30ms\n", "\nuntil ./usher inbox", "\nsleep 2\nuntil ./usher inbox",
		"go build -o try/usher .\n", "cp "+testkit.Binary(t)+" try/usher\n")) // that it can be built the other test shows
}

// use does docs/uses.md, with changes to its script.
func use(t *testing.T, changed *strings.Replacer) {
	t.Helper()
	for _, program := range []string{"bash", "curl", "python3", "php", "ip"} {
		needs(t, program)
	}
	page, err := os.ReadFile("../docs/uses.md")
	if err != nil {
		t.Fatal(err)
	}
	script, want := walkthrough(string(page))
	script = changed.Replace(script)
	if len(want) < 10 {
		t.Fatalf("only %d lines of output found in the page", len(want))
	}
	dir := t.TempDir()
	// The page starts at the top of the tree, and leaves everything in try/: here
	// that is a folder of the test's, with links to what is needed.
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(top)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.Name() == "try" {
			continue
		}
		if err := os.Symlink(filepath.Join(top, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = dir
	mine := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "USHER_") })
	cmd.Env = append(mine, "LC_ALL=C.UTF-8", "PWD="+dir, "GOFLAGS=-buildvcs=false", "NO_PROXY=*", "no_proxy=*")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		testkit.Missing(t, "cannot make a network of its own: docs/uses.md is not tried: %v", err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v:\n%s", err, out.String())
	}
	rest := out.String()
	for _, line := range want {
		at := regexp.MustCompile(line).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("after what came before, no line like %s:\n%s", line, out.String())
		}
		rest = rest[at[1]:]
	}
}

// walkthrough makes a script of the page's sh blocks, and a list of what its text blocks
// show. What a block starts in a terminal runs until the page starts something else there.
func walkthrough(page string) (script string, want []string) {
	var b strings.Builder
	b.WriteString("set -eu\nip link set lo up\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n")
	terminal := regexp.MustCompile(`^# terminal (\d)\n`)
	sections := strings.Split(page, "\n## ")
	for _, section := range sections {
		for _, m := range regexp.MustCompile("(?s)\n```(sh|text)\n(.*?)```\n").FindAllStringSubmatch(section, -1) {
			kind, block := m[1], m[2]
			n := terminal.FindStringSubmatch(block)
			switch {
			case kind == "text":
				for line := range strings.Lines(block) {
					pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(line)), "…", ".*")
					want = append(want, strings.ReplaceAll(pattern, "  ", ` +`))
				}
			case n != nil:
				// One program at a time in a terminal. All of them print an address when they are ready.
				fmt.Fprintf(&b, "if [ -n \"${pid%[1]s-}\" ]; then kill $pid%[1]s 2>/dev/null && wait $pid%[1]s || true; fi\n", n[1])
				fmt.Fprintf(&b, "rm -f terminal%[1]s\n(\n%[2]s) >terminal%[1]s 2>&1 &\npid%[1]s=$!\n", n[1], block)
				fmt.Fprintf(&b, "for i in $(seq 300); do grep -q http:// terminal%s && break; sleep 0.1; done\n", n[1])
			default:
				b.WriteString(block)
			}
		}
		if strings.HasPrefix(section, "2.") || strings.HasPrefix(section, "3.") {
			b.WriteString("kill $(jobs -p); wait\n") // "End what runs in the other terminals"
		}
	}
	return b.String(), want
}
