package deploy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	known "usher/internal/admin/status"
	"usher/internal/testkit"
	"usher/internal/testkit/kept"
)

// runbooks is the prefix of all addresses of runbooks, which everybody replaces by their own.
const runbooks = "https://runbooks.example.com/"

// The alerts are ones that Prometheus reads, and fire when they should, and only then.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		testkit.Missing(t, "there is no promtool here: install Debian's package prometheus")
	}
	program, err := os.Stat(promtool)
	if err != nil {
		t.Fatal(err)
	}
	// What promtool says of the same files stays the same, and takes it seconds.
	of := []any{promtool, program.ModTime(), read(t, "prometheus_test.go")}
	for _, file := range []string{"alerts.yaml", "alerts_test.yaml", "alerts_days_test.yaml", "scrape.yaml"} {
		of = append(of, read(t, "prometheus/"+file))
	}
	_, err = kept.Folder(func(string) (failed error) {
		for _, args := range [][]string{
			{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml", "alerts_days_test.yaml"}, {"check", "config", "--syntax-only", "scrape.yaml"},
		} {
			run := exec.Command(promtool, args...)
			// Without GOGC it collects garbage for a third of its time.
			run.Dir, run.Env = "prometheus", append(os.Environ(), "GOGC=400")
			if out, err := run.CombinedOutput(); err != nil {
				failed = errors.Join(failed, fmt.Errorf("promtool %s: %w\n%s", strings.Join(args, " "), err, out))
			}
		}
		return failed
	}, of...)
	if err != nil {
		t.Error(err)
	}
}

// Each query of the dashboard is one that Prometheus reads, and is about the chosen namespace.
func TestDashboardQueries(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		testkit.Missing(t, "there is no promtool here: install Debian's package prometheus")
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, "grafana/usher.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	type rule struct{ Record, Expr string }
	var rules []rule
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			if !strings.Contains(target.Expr, `namespace=~"$namespace"`) {
				t.Errorf("%s is about all namespaces: %s", p.Title, target.Expr)
			}
			rules = append(rules, rule{fmt.Sprint("query", len(rules)), strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")})
		}
	}
	file, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil || len(rules) < 20 {
		t.Fatalf("%d queries: %v", len(rules), err)
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write(t, path, file, 0o644)
	if out, err := exec.Command(promtool, "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Whoever is woken up finds what to do: each alert links to a section of its own, whose address is complete
// once the prefix is set. And each is tested in both directions: a test of alerts_test.yaml, or of
// alerts_days_test.yaml, is called after what it shows.
func TestAlertsHaveARunbook(t *testing.T) {
	var alerts struct {
		Groups []struct {
			Rules []struct {
				Alert, Record, Expr, For string
				Labels, Annotations      map[string]string
			}
		}
	}
	type testFile struct {
		Tests []struct {
			Name   string
			Series []any `yaml:"input_series"`
			Asked  []struct {
				Samples []struct{ Labels string } `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	var tests, days testFile
	if err := errors.Join(yaml.Unmarshal(read(t, "prometheus/alerts.yaml"), &alerts), yaml.Unmarshal(read(t, "prometheus/alerts_test.yaml"), &tests),
		yaml.Unmarshal(read(t, "prometheus/alerts_days_test.yaml"), &days)); err != nil {
		t.Fatal(err)
	}
	tests.Tests = append(tests.Tests, days.Tests...)
	manual := string(read(t, "../docs/operations.md"))
	figures, severities := make(map[string]bool), make(map[string]int)
	for _, rule := range alerts.Groups[0].Rules {
		name := rule.Alert
		if rule.Record != "" {
			figures[rule.Record] = false
			continue
		}
		for figure := range figures {
			if strings.Contains(rule.Expr, figure) {
				figures[figure] = true
			}
		}
		if rule.Annotations["runbook_url"] != runbooks+"docs/operations.md#"+strings.ToLower(name) || !strings.Contains(manual, "\n### "+name+"\n") {
			t.Errorf("%s has no section in docs/operations.md, or no link to it", name)
		}
		if rule.For == "" || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
			t.Errorf("%s: %+v", name, rule)
		}
		severities[rule.Labels["severity"]]++
		fires, silent := false, false
		for _, test := range tests.Tests {
			shown := false
			for _, asked := range test.Asked {
				for _, sample := range asked.Samples {
					shown = shown || strings.Contains(sample.Labels, `alertname="`+name+`", severity="`+rule.Labels["severity"]+`"`)
				}
			}
			fires = fires || shown && strings.HasPrefix(test.Name, name+" fires: ")
			silent = silent || !shown && len(test.Series) > 1 && strings.HasPrefix(test.Name, name+" is silent: ")
		}
		if !fires || !silent {
			t.Errorf("%s: a test in which it fires: %v, one in which it is silent: %v", name, fires, silent)
		}
	}
	for figure, used := range figures {
		if !used || !strings.Contains(manual, "`"+figure+"`") {
			t.Errorf("%s has no alert, or no word in docs/operations.md", figure)
		}
	}
	if len(figures) != 3 || len(severities) != 2 || severities["critical"] == 0 || severities["warning"] == 0 {
		t.Errorf("figures %v, severities %v", figures, severities)
	}
}

// What is over goes: an alert that counts something looks at a window that is shorter than its for, or a
// moment would wake somebody up when it is over.
func TestAlertsEnd(t *testing.T) {
	var alerts struct {
		Groups []struct {
			Rules []struct{ Alert, Expr, For string }
		}
	}
	if err := yaml.Unmarshal(read(t, "prometheus/alerts.yaml"), &alerts); err != nil {
		t.Fatal(err)
	}
	window, counting := regexp.MustCompile(`(?:increase|rate)\([^\[]*\[(\w+)\]`), 0
	for _, rule := range alerts.Groups[0].Rules {
		all := window.FindAllStringSubmatch(rule.Expr, -1)
		if rule.Alert == "" || len(all) == 0 {
			continue
		}
		counting++
		lasts, err := time.ParseDuration(rule.For)
		ends := false
		for _, found := range all {
			of, wrong := time.ParseDuration(found[1])
			ends, err = ends || of < lasts, errors.Join(err, wrong)
		}
		if !ends || err != nil {
			t.Errorf("%s, for: %s, looks back for longer: %s (%v)", rule.Alert, rule.For, rule.Expr, err)
		}
	}
	if counting < 7 {
		t.Errorf("%d alerts count something", counting)
	}
}

// An alert says what the page says: of each kind of trouble that has one, what it means for customers and
// what to do, in the same words. An alert that stands for several kinds sends to 'usher status'.
func TestAlertsSayTheSame(t *testing.T) {
	var alerts struct {
		Groups []struct {
			Rules []struct {
				Alert               string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(read(t, "prometheus/alerts.yaml"), &alerts); err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string][]*known.Kind)
	for _, k := range known.Kinds {
		kinds[k.Alert] = append(kinds[k.Alert], k)
	}
	said := make(map[string]bool)
	for _, rule := range alerts.Groups[0].Rules {
		all := kinds[rule.Alert]
		if rule.Alert == "" || len(all) == 0 {
			continue
		}
		one, severe := true, false
		for _, k := range all {
			one, severe = one && k.Means == all[0].Means && k.Do == all[0].Do, severe || k.Severity == rule.Labels["severity"]
		}
		said[rule.Alert] = true
		switch words := rule.Annotations["description"]; {
		case one && (words != all[0].Means+" "+all[0].Do || !severe):
			t.Errorf("%s, %s: %q, want %q", rule.Alert, rule.Labels["severity"], words, all[0].Means+" "+all[0].Do)
		case !one && !strings.Contains(words, "usher status"):
			t.Errorf("%s stands for %d kinds, and does not name usher status: %q", rule.Alert, len(all), words)
		}
	}
	for name := range kinds {
		if name != "" && !said[name] {
			t.Errorf("there is no alert %s", name)
		}
	}
}
