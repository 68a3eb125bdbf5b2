package deploy_test

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"usher/internal/testkit"
)

// runbooks is the prefix of all addresses of runbooks, which everybody replaces by their own.
const runbooks = "https://runbooks.example.com/"

// The alerts are ones that Prometheus reads, and fire when they should, and only then.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		testkit.Missing(t, "there is no promtool here: install Debian's package prometheus")
	}
	for _, args := range [][]string{
		{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}, {"check", "config", "--syntax-only", "scrape.yaml"},
	} {
		run := exec.Command(promtool, args...)
		run.Dir = "prometheus"
		if out, err := run.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Whoever is woken up finds what to do: each alert links to a section of its own, and is tested.
func TestAlertsHaveARunbook(t *testing.T) {
	read := func(file string) string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	alerts, tests, manual := read("prometheus/alerts.yaml"), read("prometheus/alerts_test.yaml"), read("../docs/operations.md")
	rules := strings.Split(alerts, "\n      - alert: ")[1:]
	if len(rules) < 10 {
		t.Fatalf("only %d alerts were found", len(rules))
	}
	severities := regexp.MustCompile(`severity: (\w+)`)
	var seen []string
	for _, rule := range rules {
		name, _, _ := strings.Cut(rule, "\n")
		if !strings.Contains(rule, "runbook_url: docs/operations.md#"+strings.ToLower(name)+"\n") || !strings.Contains(manual, "\n### "+name+"\n") {
			t.Errorf("%s has no section in docs/operations.md, or no link to it", name)
		}
		if !strings.Contains(tests, `alertname="`+name+`"`) {
			t.Errorf("%s is not tested", name)
		}
		for _, part := range []string{"expr:", "for:", "summary:", "description:"} {
			if !strings.Contains(rule, " "+part) {
				t.Errorf("%s has no %s", name, part)
			}
		}
		if m := severities.FindStringSubmatch(rule); m == nil || !slices.Contains([]string{"critical", "warning"}, m[1]) {
			t.Errorf("%s has no severity", name)
		} else {
			seen = append(seen, m[1])
		}
	}
	if !slices.Contains(seen, "critical") || !slices.Contains(seen, "warning") {
		t.Errorf("all have the same severity: %q", seen)
	}
}
