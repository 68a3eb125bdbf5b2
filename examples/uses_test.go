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

	"go.yaml.in/yaml/v3"

	"usher/internal/testkit"
)

// README.md and then docs/uses.md, done as they say, in one folder: their commands, in their order, on their
// own ports, in a network of their own. What they show as output must come.
func TestReadmeAndUses(t *testing.T) {
	t.Parallel()
	use(t, readme(t)+usesPage(t))
}

func usesPage(t *testing.T) string { return page(t, "../docs/uses.md") }

func readme(t *testing.T) string { return page(t, "../README.md") }

func page(t *testing.T, path string) string {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// The job of ci/github-actions.yaml: its steps, as GitHub Actions runs them, but for those that get the
// code and usher.
func TestUsesInCI(t *testing.T) {
	t.Parallel()
	var workflow struct {
		Jobs map[string]struct {
			Env   map[string]string
			Steps []struct{ Name, Uses, Run string }
		}
	}
	if err := yaml.Unmarshal([]byte(page(t, "ci/github-actions.yaml")), &workflow); err != nil {
		t.Fatal(err)
	}
	job := workflow.Jobs["receiver"]
	script, tried := "ip link set lo up\ntrap 'kill $(jobs -p)' EXIT\nPATH="+filepath.Dir(testkit.Binary(t))+":$PATH\n", 0
	for name, value := range job.Env {
		script += fmt.Sprintf("export %s=%s\n", name, value)
	}
	for _, step := range job.Steps {
		if step.Uses == "" && step.Name != "Install usher" {
			script += step.Run
			tried++
		}
	}
	out := inOwnNetwork(t, script+"cat sandbox.env\n", "bash", "-e") // as GitHub does
	if tried != 1 || !strings.Contains(out, "\n204\n") || !strings.Contains(out, "\n11 of 11 held.\n") || strings.Contains(out, "FAILED") || !strings.Contains(out, "\nexport USHER_CLIENT_ID=demo\n") {
		t.Errorf("%d steps:\n%s", tried, out)
	}
}

// The file ci/compose.yaml: what its sandbox runs, and the command to send with.
func TestUsesInCompose(t *testing.T) {
	t.Parallel()
	var file struct {
		Services map[string]struct {
			Image   string
			Command []string
		}
	}
	text := page(t, "ci/compose.yaml")
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		t.Fatal(err)
	}
	sandbox := file.Services["sandbox"]
	send := regexp.MustCompile("(?m)^# docker compose exec sandbox /(usher sandbox send .*)$").FindStringSubmatch(text)
	if sandbox.Image != "usher" || send == nil {
		t.Fatalf("%+v, %q", sandbox, send)
	}
	out := inOwnNetwork(t, fmt.Sprintf(`ip link set lo up
trap 'kill $(jobs -p)' EXIT
PATH=%s:$PATH
mkdir state
WEBHOOK_SECRET=whsec_a2V5 STATE_DIR=state python3 examples/receiver-python/receiver.py & # rejects what is not signed
usher %s &
until curl -s -o /dev/null http://127.0.0.1:9000 && curl -s -o /dev/null http://127.0.0.1:3000; do sleep 0.1; done
%s || echo "exit code $?"
`, filepath.Dir(testkit.Binary(t)), strings.ReplaceAll(strings.Join(sandbox.Command, " "), "receiver:3000", "127.0.0.1:3000"), send[1]), "bash", "-e")
	if !strings.Contains(out, "\n401\n") || !strings.Contains(out, "exit code 1\n") {
		t.Error(out)
	}
}

// Settings of one use must not stay in the reader's shell: the next use would start with them, too.
func TestUsesKeepSettingsApart(t *testing.T) {
	script, _ := walkthrough(readme(t) + usesPage(t))
	script = regexp.MustCompile(`(?s)<<'END'\n.*?\nEND\n`).ReplaceAllString(script, "\n")
	if bad := regexp.MustCompile(`(?m)^(export |\. ).*$`).FindAllString(script, -1); bad != nil || strings.Count(script, "--env-file ") < 10 {
		t.Errorf("outside of parentheses: %q", bad)
	}
}

// use does what the pages say.
func use(t *testing.T, page string) {
	t.Helper()
	script, want := walkthrough(page)
	script = strings.ReplaceAll(script, "; do sleep 1; done\n", "; do sleep 0.1; done\n")
	// As testkit.Binary does, which others need, too.
	built := regexp.MustCompile(`(?m)^go build -o (\S+) \.$`).ReplaceAllString(script, "cp "+testkit.Binary(t)+" $1")
	if built == script || len(want) < 3 {
		t.Fatalf("only %d lines of output found in the page, or nothing is built", len(want))
	}
	script = strings.ReplaceAll(built, "\ngo run . ", "\n"+testkit.Binary(t)+" ")
	out := inOwnNetwork(t, script, "bash")
	rest := out
	for _, line := range want {
		at := regexp.MustCompile(line).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("after what came before, no line like %s:\n%s", line, out)
		}
		rest = rest[at[1]:]
	}
}

// inOwnNetwork runs a script at the top of the tree, with the ports of a machine of its own, and returns
// what it prints.
func inOwnNetwork(t *testing.T, script string, shell ...string) string {
	t.Helper()
	// A receiver that answered later than a second would have done well on a machine that others leave alone.
	const timely = ` | sed -E 's/^FAILED  (.*) after [^ ]+, want at most 1s$/held    \1 in 1s/; s/^[0-9] of 10 held/10 of 10 held/'`
	script = regexp.MustCompile(`(?m)usher sandbox rehearse .*$`).ReplaceAllStringFunc(script, func(s string) string { return s + timely })
	for _, program := range []string{"bash", "curl", "python3", "ip"} {
		needs(t, program)
	}
	dir := t.TempDir()
	// The page starts at the top of the tree: here that is a folder of the test's, with links to
	// what is needed.
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(top)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.Name() == "try" || e.Name() == "usher" { // what the pages make
			continue
		}
		if err := os.Symlink(filepath.Join(top, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, shell[0], append(shell[1:], "-c", script)...)
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
	return out.String()
}

// walkthrough makes a script of the page's sh blocks, and a list of what its text blocks
// show. What a block starts in a terminal runs until the page starts something else there.
func walkthrough(page string) (script string, want []string) {
	var b strings.Builder
	// Each program is a group of processes, as in a terminal, and ends as one.
	b.WriteString("set -eum\nip link set lo up\n")
	b.WriteString("end() { for p in $*; do kill -- -$p 2>/dev/null || true; while kill -0 -- -$p 2>/dev/null; do sleep 0.02; done; done; }\n")
	b.WriteString("trap 'end $(jobs -p)' EXIT\n")
	terminal := regexp.MustCompile(`^# terminal (\d)\n`)
	for _, section := range strings.Split(page, "\n## ") {
		if strings.Contains(section, "\nStop the programs in the other terminals") {
			b.WriteString("end $(jobs -p)\n")
		}
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
				fmt.Fprintf(&b, "end ${pid%[1]s-}\nrm -f terminal%[1]s\n(\n%[2]s) >terminal%[1]s 2>&1 &\npid%[1]s=$!\n", n[1], block)
				fmt.Fprintf(&b, "for i in $(seq 300); do grep -q http:// terminal%[1]s && break; sleep 0.1; done; cat terminal%[1]s\n", n[1])
			default:
				b.WriteString(block)
			}
		}
	}
	return b.String(), want
}
