package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Each unit is one that systemd takes without a complaint, and that gives the service
// next to nothing.
func TestUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed: the units are not tried")
	}
	for _, name := range []string{"usher.service", "usher-gate.service", "usher-reconcile.service"} {
		t.Run(name, func(t *testing.T) { tryUnit(t, name) })
	}
}

// The units can be installed on one machine. With DynamicUser systemd makes a user that is called as the
// unit, and rejects to if there is a group of that name without that user. And usher is started again
// whatever ended it, however often: a crash of a Go program has the exit code of bad settings, 2, and with a
// socket systemd starts at once what is not to be started again.
func TestUnitsTogether(t *testing.T) {
	units, err := filepath.Glob("systemd/*.service")
	if err != nil || len(units) < 2 {
		t.Fatalf("%q: %v", units, err)
	}
	users, groups := make(map[string]string), make(map[string]string)
	for _, path := range units {
		unit := string(read(t, path))
		if strings.Contains(unit, "\nDynamicUser=yes\n") {
			users[strings.TrimSuffix(filepath.Base(path), ".service")] = path
		}
		for _, m := range regexp.MustCompile(`groupadd --system (\S+)`).FindAllStringSubmatch(unit, -1) {
			groups[m[1]] = path
		}
		if strings.Contains(unit, "\nType=oneshot\n") {
			continue // its timer starts it again
		}
		if !strings.Contains(unit, "\nRestart=on-failure\n") || !strings.Contains(unit, "\nStartLimitIntervalSec=0\n") || strings.Contains(unit, "\nRestartPreventExitStatus=") {
			t.Errorf("%s does not start usher again after each end", path)
		}
	}
	if len(users) < 2 || len(groups) < 2 {
		t.Errorf("users %q, groups %q", users, groups)
	}
	for group, path := range groups {
		if users[group] != "" {
			t.Errorf("%s makes the group %s, and %s can't start then", path, group, users[group])
		}
	}
}

// Each socket has its service's address, and belongs to it.
func TestSocketUnits(t *testing.T) {
	for _, tc := range []struct{ unit, settings, variable string }{
		{"usher", "usher.env", "USHER_LISTEN=unix:"},
		{"usher-gate", "gate.env", "USHER_WEBHOOK_LISTEN="},
	} {
		t.Run(tc.unit, func(t *testing.T) {
			socket := read(t, "systemd/"+tc.unit+".socket")
			_, address, _ := strings.Cut(string(socket), "\nListenStream=")
			address, _, _ = strings.Cut(address, "\n")
			if address == "" || !strings.Contains(string(read(t, "systemd/"+tc.settings)), "\n"+tc.variable+address+"\n") {
				t.Errorf("systemd listens on %q, and usher elsewhere", address)
			}
			verifyBeside(t, tc.unit, ".socket", socket)
		})
	}
}

// verifyBeside has systemd look at a unit that starts the service of its name.
func verifyBeside(t *testing.T, name, kind string, unit []byte) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skipf("systemd-analyze is not installed: %s%s is not tried", name, kind)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, name+kind), unit, 0o644)
	write(t, filepath.Join(dir, name+".service"), []byte("[Service]\nExecStart=/bin/true\n"), 0o644)
	out, err := exec.Command("systemd-analyze", "verify", filepath.Join(dir, name+kind)).CombinedOutput()
	if err != nil || strings.Contains(string(out), name) {
		t.Errorf("verify: %v\n%s", err, out)
	}
}

// The timer is one that systemd takes, and starts the unit of its name.
func TestTimerUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed: the timer is not tried")
	}
	timer := read(t, "systemd/usher-reconcile.timer")
	calendar := regexp.MustCompile(`\nOnCalendar=(.+)\n`).FindSubmatch(timer)
	if calendar == nil {
		t.Fatal("it never starts anything")
	}
	if out, err := exec.Command("systemd-analyze", "calendar", string(calendar[1])).CombinedOutput(); err != nil {
		t.Errorf("calendar: %v\n%s", err, out)
	}
	verifyBeside(t, "usher-reconcile", ".timer", timer)
}

func tryUnit(t *testing.T, name string) {
	unit, err := os.ReadFile("systemd/" + name)
	if err != nil {
		t.Fatal(err)
	}
	// It wants to find the program; any will do.
	const start = "\nExecStart=/usr/local/bin/usher "
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(unit), start) {
		t.Fatal("the unit does not start usher")
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(strings.Replace(string(unit), start, "\nExecStart="+self+" ", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if socket := strings.TrimSuffix(name, ".service") + ".socket"; strings.Contains(string(unit), "\nRequires="+socket+"\n") {
		write(t, filepath.Join(filepath.Dir(path), socket), read(t, "systemd/"+socket), 0o644)
	}
	out, err := exec.Command("systemd-analyze", "verify", path).CombinedOutput()
	if err != nil || strings.Contains(string(out), name) { // unknown keys are said, but no failure
		t.Errorf("verify: %v\n%s", err, out)
	}
	out, err = exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", path).CombinedOutput()
	level := regexp.MustCompile(`Overall exposure level for ` + regexp.QuoteMeta(name) + `: ([0-9.]+)`).FindSubmatch(out)
	if level == nil {
		t.Skipf("this systemd-analyze can't tell: %v\n%s", err, out)
	}
	if exposure, err := strconv.ParseFloat(string(level[1]), 64); err != nil || exposure > 1.5 {
		t.Errorf("exposure %s, want 1.5 at the most:\n%s", level[1], out)
	}
}
