package deploy_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"usher/internal/testkit"
)

// The alerts are ones that Prometheus reads, and fire when they should, and only then.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		testkit.Missing(t, "there is no promtool here: install Debian's package prometheus")
	}
	for _, args := range [][]string{
		{"check", "rules", "../helm/usher/files/alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}, {"check", "config", "--syntax-only", "scrape.yaml"},
	} {
		run := exec.Command(promtool, args...)
		run.Dir = "prometheus"
		if out, err := run.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
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
	if err != nil || len(rules) < 10 {
		t.Fatalf("%d queries: %v", len(rules), err)
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write(t, path, file, 0o644)
	if out, err := exec.Command(promtool, "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
