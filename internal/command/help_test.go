package command

import (
	"strings"
	"testing"
	"unicode/utf8"

	"usher/internal/settings"
)

func printed(t *testing.T, code int, args ...string) string {
	t.Helper()
	p := start(t, nil, args...)
	<-p.Ended
	if p.Code != code {
		t.Errorf("usher %s: exit code %d, want %d: %s", strings.Join(args, " "), p.Code, code, p.Stderr.String())
	}
	return p.Stdout.String() + p.Stderr.String()
}

// Each of the three ways to get the help of a command works, and the help fits a terminal.
func TestHelp(t *testing.T) {
	commands := []string{"demo", "sandbox", "exec", "reconcile", "check", "healthcheck", "status", "inbox", "entitlements", "version", "help"}
	if len(commands) != len(commandHelp) {
		t.Errorf("help on %d commands, but there are %d", len(commandHelp), len(commands))
	}
	overview := printed(t, 0, "help")
	for _, name := range commands {
		help := printed(t, 0, "help", name)
		if !strings.Contains(help, "usher "+name) {
			t.Errorf("help on %s: %s", name, help)
		}
		for _, flag := range []string{"-h", "-help", "--help"} {
			if got := printed(t, 0, name, flag); got != help {
				t.Errorf("usher %s %s differs from usher help %s: %s", name, flag, name, got)
			}
		}
		if !strings.Contains(overview, "usher "+name) {
			t.Errorf("usher help does not list %s", name)
		}
		fits(t, help)
	}
	fits(t, overview)
	for args, want := range map[string]string{
		"help inbx": "did you mean inbox?", "help setings": "did you mean settings?", "help a b": "unknown command",
	} {
		if got := printed(t, 2, strings.Fields(args)...); !strings.Contains(got, want) || !strings.HasSuffix(got, "Run 'usher help -h' for help.\n") {
			t.Errorf("usher %s: %s", args, got)
		}
	}
}

func TestHelpOnSettings(t *testing.T) {
	all := printed(t, 0, "help", "settings")
	fits(t, all)
	for _, v := range settings.Variables() {
		entry := "\n  " + v.Name + "  (default: "
		if v.Default() != "" {
			entry += v.Default() + ")\n"
		}
		if !strings.Contains(all, entry) {
			t.Errorf("no %q", entry)
		}
	}
}

// fits checks that no line is longer than 80 columns.
func fits(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 80 {
			t.Errorf("too long: %s", line)
		}
	}
}
