package command

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"usher/internal/content"
	"usher/internal/inbox"
	"usher/internal/testkit/inboxtest"
	"usher/webhookgate"
)

// nastyTenants are codes that mean something to a shell, to a terminal, or to usher's own flags.
var nastyTenants = []string{
	"x;id>&2;#", "$(id)", "`id`", "it's", `'\'';id;'`, `\';id;#`, `back\`, `"q"`, "a b", "~", "*", "!!", "-n", "--yes", "#", "a&b|c<d>e",
	"two\nlines", "ends\n", "\x1b[2J", "\u202ex", "a/b%c", "Zoë", "ÿ;id",
}

// typed returns the arguments of usher if somebody pastes this line into a shell.
func typed(t *testing.T, line string) []string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `set -eu; usher() { printf '%s\0' "$@"; }; `+line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// A command line that usher prints calls it as the user has called it.
func TestPrintedCommandsCallThisProgram(t *testing.T) {
	for called, want := range map[string]string{
		"": "usher", "usher": "usher", "/usr/bin/usher": "usher", "./usher": "./usher", "./my tools/usher": "'./my tools/usher'",
		"/tmp/go-build12/b001/exe/usher": "go run .", "/home/me/.cache/go-build/12/34-d/usher": "go run .",
	} {
		p := &Process{Called: called, envFiles: []string{"gate.env"}}
		if got, want := p.commandLines("see 'usher inbox ls' and 'usher help inbox'"), "see '"+want+" --env-file gate.env inbox ls' and '"+want+" help inbox'"; got != want {
			t.Errorf("%q: %q, want %q", called, got, want)
		}
	}
	var out, hint strings.Builder
	ctx, stop := context.WithCancel(t.Context())
	stop()
	at := []string{"sandbox", "--listen", "127.0.0.1:0", "--receiver-listen", "off"}
	Main(ctx, Process{Called: "./usher", Args: at, Stdout: &out, Stderr: &hint})
	Main(ctx, Process{Called: "./usher", Args: []string{"sandbox", "--no-such"}, Stdout: &out, Stderr: &hint})
	if !strings.Contains(out.String(), "# Send a webhook: ./usher sandbox send ") || !strings.Contains(hint.String(), "Run './usher sandbox -h' for help.") {
		t.Errorf("%s%s", out.String(), hint.String())
	}
}

// after returns the rest of the line after the last mark.
func after(t *testing.T, out, mark string) string {
	t.Helper()
	i := strings.LastIndex(out, mark)
	if i < 0 {
		t.Fatalf("no %q in %s", mark, out)
	}
	line, _, _ := strings.Cut(out[i+len(mark):], "\n")
	return line
}

// Whatever a tenant or a file is called: a command that usher prints does what it says if
// somebody pastes it into a shell.
func TestPrintedCommandsAreQuoted(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip(err)
	}
	s := newInboxServer(t, "")
	dir := t.TempDir() + "/it's; here"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	env := envFile(t, dir, "my gate.env", "USHER_ADMIN_LISTEN="+s.addr)
	run := func(args ...string) string {
		p := start(t, nil, args...)
		<-p.Ended
		return p.Stdout.String() + p.Stderr.String()
	}
	equal := func(tenant, line string, want ...string) {
		t.Helper()
		if got := typed(t, line); !slices.Equal(got, want) {
			t.Errorf("%q: %q, of %s", tenant, got, line)
		}
	}
	for _, tenant := range nastyTenants {
		name := inbox.ShowTenant("", tenant)
		s.Take("", tenant, formerBody)
		resume := []string{"--env-file", env, "inbox", "resume", "--tenant", name}
		equal(tenant, after(t, run("--env-file", env, "inbox", "pause", "--tenant", name), "to resume: "), resume...)
		equal(tenant, after(t, run("--env-file", env, "inbox", "ls", "--limit", "1"), "To resume: "), resume...)
		if out := run(resume...); !strings.HasPrefix(out, "resumed: ") {
			t.Errorf("%q: %s", tenant, out)
		}
		s.Take("p;q", tenant, formerBody) // now two tenants have this code
		out := run("--env-file", env, "inbox", "resume", "--tenant", strings.TrimPrefix(name, "/"))
		equal(tenant, "usher "+after(t, out, ": write "), name, "or", inbox.ShowTenant("p;q", tenant))
	}
	s.Take("", "some;thing", formerBody)
	const listed = `{"tenant":{"code":"it's; new"},"change":{"features":[{"code":"sso"}]}}`
	equal("it's; new", after(t, run("--env-file", env, "reconcile", "--", "echo", listed), "is new:\n"),
		"--env-file", env, "reconcile", "--apply", "--", "echo", listed)
}

// So does the advice of 'usher entitlements'.
func TestPrintedAdviceIsQuoted(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip(err)
	}
	for _, tenant := range nastyTenants {
		b := inboxtest.Open(t)
		if err := b.Pause(inbox.Pause{Tenant: tenant}); err != nil {
			t.Fatal(err)
		}
		b.Queue(&webhookgate.Webhook{Type: content.TenantProvisioningChange, Snapshot: true, Lane: webhookgate.LaneName{Tenant: tenant}, Body: []byte(inboxtest.Snapshot("", "x", "sso"))})
		out, code := runEntitlements(t, b, inbox.ShowTenant("", tenant))
		want := []string{"--env-file", "ENV", "inbox", "resume", "--tenant", inbox.ShowTenant("", tenant)}
		if got := typed(t, after(t, out, "Resume the deliveries:\n")); code != 0 || !slices.Equal(got, want) {
			t.Errorf("%q: %d, %q, of %s", tenant, code, got, out)
		}
	}
}
