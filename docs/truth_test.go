package docs

import (
	"bytes"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"usher/internal/command"
)

// found returns the first group of each match, each once.
func found(pattern, text string) []string {
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all[m[1]] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// anchors returns the anchors of a page, as GitHub makes them of its headings.
func anchors(page string) map[string]bool {
	page = regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(page, "")
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(page, -1) {
		anchor := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all[strings.ReplaceAll(anchor, " ", "-")] = true
	}
	return all
}

// No link leads nowhere: those between pages, and those to a page in code, deployments and alerts.
func TestLinks(t *testing.T) {
	all, links := pages(t), 0
	check := func(where, path, anchor string) {
		links++
		if _, err := os.Stat(root + path); err != nil {
			t.Errorf("%s: there is no %s", where, path)
		} else if anchor != "" && anchor != "ALERT" && !anchors(all[path])[anchor] { // ALERT stands for any
			t.Errorf("%s: %s has no #%s", where, path, anchor)
		}
	}
	onPage := regexp.MustCompile(`\]\(([^()\s]+)\)|(?:src|href)="([^"]+)"`)
	inFile := regexp.MustCompile(`\b((?:docs|bench|examples|deploy)/[\w./-]+\.md)(?:#([\w-]+))?`)
	for name, page := range all {
		for _, m := range onPage.FindAllStringSubmatch(page, -1) {
			target := m[1] + m[2]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path, anchor, _ := strings.Cut(target, "#")
			if path == "" {
				path = name
			} else {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(name), path))
			}
			check(name, path, anchor)
		}
	}
	for _, path := range files(t, []string{".go", ".yaml", ".yml", ".json", ".html", ".sql", ".service", ".socket", ".timer", ".env", ".sh", ".tpl", ".txt"}, ".") {
		if name := strings.TrimPrefix(path, root); name != "docs/truth_test.go" {
			for _, m := range inFile.FindAllStringSubmatch(read(t, path), -1) {
				check(name, m[1], m[2])
			}
		}
	}
	if links < 150 {
		t.Errorf("only %d links", links)
	}
}

// usher runs a command line, and returns what it prints.
func usher(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	command.Main(t.Context(), command.Process{Args: args, Environ: []string{"USHER_ADMIN_LISTEN=127.0.0.1:1"}, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out})
	return out.String()
}

// The reference names every command and every flag; for 'usher inbox' and 'usher sandbox' that is their help.
// And no page names another command.
func TestCommandsAreDocumented(t *testing.T) {
	reference := read(t, "reference.md")
	commands := found(`(?m)^  usher ([a-z]+)\b`, usher(t, "help"))
	_, list, _ := strings.Cut(usher(t, "inbox", "nosuch"), "use ")
	below := map[string][]string{
		"inbox":   found(`([a-z]+)[,.]`, strings.Split(list, " Run ")[0]),
		"sandbox": {"send", "checkout", "revoke", "fail", "rehearse"},
	}
	flags := 0
	for _, name := range commands {
		if !strings.Contains(reference, "`usher "+name) {
			t.Errorf("reference.md does not name usher %s", name)
		}
		if name == "entitlements" {
			continue // it has no flags, and would take this for a tenant
		}
		help := usher(t, "help", name)
		text := reference
		if below[name] != nil {
			text = help
		}
		lines := [][]string{{name}}
		for _, sub := range below[name] {
			lines = append(lines, []string{name, sub})
		}
		for _, line := range lines {
			if len(line) == 2 && !regexp.MustCompile(`\b`+line[1]+`\b`).MatchString(text) {
				t.Errorf("'usher help %s' does not name %s", name, line[1])
			}
			_, list, ok := strings.Cut(usher(t, append(line, "--nosuch")...), "it has ")
			if !ok {
				continue
			}
			for _, flag := range found(`(--[a-z-]+)`, strings.Split(list, " Run ")[0]) {
				flags++
				if mentions := regexp.MustCompile(flag + `\b`); !mentions.MatchString(text) || !mentions.MatchString(help) {
					t.Errorf("reference.md, or 'usher help %s', does not name %s of usher %s", name, flag, strings.Join(line, " "))
				}
			}
		}
	}
	if len(commands) < 11 || flags < 30 || len(below["inbox"]) < 11 {
		t.Errorf("only %q, %d flags; below inbox %q", commands, flags, below["inbox"])
	}
	for page, text := range pages(t) {
		for _, m := range regexp.MustCompile("(?:`|/|'|\\$ |^)usher ([a-z]+)(?: ([a-z]+)\\b)?").FindAllStringSubmatch(text, -1) {
			if !slices.Contains(commands, m[1]) || m[1] == "inbox" && m[2] != "" && !slices.Contains(below["inbox"], m[2]) {
				t.Errorf("%s names usher %s %s, which is not a command", page, m[1], m[2])
			}
		}
	}
}

// The reference has every metric. And every metric and every alert that a page names exists.
func TestNamesOfMetricsAndAlerts(t *testing.T) {
	metrics := found(`[^)]"(usher_\w+)",`, code(t, "internal/admin"))
	alerts := found(`(?m)^ *- alert: (\w+)`, read(t, root+"deploy/helm/usher/files/alerts.yaml"))
	if len(metrics) < 25 || len(alerts) != 3 {
		t.Fatalf("%d metrics, %d alerts", len(metrics), len(alerts))
	}
	for _, name := range metrics {
		if !regexp.MustCompile("`" + name + "\\b").MatchString(read(t, "reference.md")) {
			t.Errorf("reference.md does not have %s", name)
		}
	}
	for page, text := range pages(t) {
		for _, name := range found(`\b(usher_(?:proxy|token|webhook|inbox|reconcile|entitlement|changes|notifications)_\w*\w)\b`, text) {
			beginning := strings.Contains(text, name+"_…") || strings.Contains(text, name+".*")
			if !beginning && !slices.Contains(metrics, regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")) {
				t.Errorf("%s names %s, which is not a metric", page, name)
			}
		}
		for _, name := range found(`\b(Usher[A-Z]\w+)`, text) {
			if !slices.Contains(alerts, name) {
				t.Errorf("%s names %s, which is not an alert", page, name)
			}
		}
	}
}

// Each code of an error is in the reference or in entitlements.md, as its port is, and no row has another one.
func TestCodesAreDocumented(t *testing.T) {
	for page, folder := range map[string]string{"reference.md": "proxy", "entitlements.md": "internal/entitlements"} {
		text, source := read(t, page), code(t, folder)
		codes := found(`"([A-Z]{3,}(?:_[A-Z]+)+)"`, source)
		for _, name := range codes {
			// CUT_OFF is a reason in a metric: no caller gets it
			if name != "CUT_OFF" && !strings.Contains(text, "`"+name+"`") {
				t.Errorf("%s does not have %s", page, name)
			}
		}
		rows := found("(?m)^\\| [0-9 /]+ \\| (`[A-Z_]+`(?: / `[A-Z_]+`)*) \\|", text)
		for _, name := range found("`([A-Z_]+)`", strings.Join(rows, " ")) {
			if !strings.Contains(source+code(t, "proxy"), `"`+name+`"`) {
				t.Errorf("%s has %s, and nobody answers with it", page, name)
			}
		}
		if len(codes) < 5 || len(rows) < 5 {
			t.Errorf("%s: only %d codes, %d rows", page, len(codes), len(rows))
		}
	}
}

// The function that docs/receivers.md shows is the one of the example, which tests run.
func TestShownReceiver(t *testing.T) {
	_, block, _ := strings.Cut(read(t, "receivers.md"), "```python\n")
	block, _, _ = strings.Cut(block, "```")
	example := read(t, root+"examples/receiver-python/receiver.py")
	for line := range strings.Lines(block) {
		if !strings.Contains(example, line) {
			t.Errorf("examples/receiver-python does not have: %s", line)
		}
	}
	if strings.Count(block, "\n") < 5 {
		t.Error("receivers.md shows no function")
	}
}

// What usher costs is named only as it was measured: each such figure is, rounded, in bench/RESULTS.md.
func TestFigures(t *testing.T) {
	number := regexp.MustCompile(`\d[\d,]*(?:\.\d+)?`)
	numbers := func(text string) (all []string) {
		for _, n := range number.FindAllString(text, -1) {
			all = append(all, strings.ReplaceAll(n, ",", ""))
		}
		return all
	}
	measured := numbers(read(t, root+"bench/RESULTS.md"))
	isMeasured := func(figure string) bool {
		value, _ := strconv.ParseFloat(figure, 64)
		step := 1.0 // of the last digit that is not a zero
		if _, decimals, ok := strings.Cut(figure, "."); ok {
			step = math.Pow10(-len(decimals))
		}
		for n := value; n >= 10 && math.Mod(n, 10) == 0; n /= 10 {
			step *= 10
		}
		return slices.ContainsFunc(measured, func(m string) bool {
			f, _ := strconv.ParseFloat(m, 64)
			return math.Abs(f-value) <= step/2
		})
	}
	for page, heading := range map[string]string{"README.md": "\n## What it costs\n", "docs/operations.md": "\n## File or PostgreSQL\n"} {
		_, section, _ := strings.Cut(read(t, root+page), heading)
		section, _, _ = strings.Cut(section, "\n#")
		rows := regexp.MustCompile(`(?m)^\| (?:a call|CPU time|memory|webhooks a second).*$`).FindAllString(section, -1)
		for _, figure := range numbers(strings.Join(rows, "")) {
			if !isMeasured(figure) {
				t.Errorf("%s: %s is not in bench/RESULTS.md", page, figure)
			}
		}
		if len(rows) < 2 {
			t.Errorf("%s: only %q", page, rows)
		}
	}
}
