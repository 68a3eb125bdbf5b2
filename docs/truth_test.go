package docs

import (
	"bytes"
	"fmt"
	"io/fs"
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

// files returns the files below the module's root, or below these folders, that have one of these endings.
func files(t *testing.T, endings []string, folders ...string) []string {
	t.Helper()
	if folders == nil {
		folders = []string{"."}
	}
	var all []string
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".git") {
				return fs.SkipDir
			}
			if err == nil && d.Type().IsRegular() && slices.Contains(endings, filepath.Ext(path)) {
				all = append(all, filepath.ToSlash(path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// found returns the first group of each match, each once.
func found(pattern, text string) []string {
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all[m[1]] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// code returns all code below these folders, without tests.
func code(t *testing.T, folders ...string) string {
	t.Helper()
	var all strings.Builder
	for _, path := range files(t, []string{".go"}, folders...) {
		if !strings.HasSuffix(path, "_test.go") {
			all.WriteString(read(t, path))
		}
	}
	return all.String()
}

// pages returns the text of every page for users, by its path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, path := range files(t, []string{".md"}) {
		all[strings.TrimPrefix(path, root)] = read(t, path)
	}
	if len(all) < 15 {
		t.Fatalf("only %d pages", len(all))
	}
	return all
}

// anchors returns the anchors of a page, as GitHub makes them of its headings.
func anchors(page string) map[string]bool {
	page = regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(page, "")
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(page, -1) {
		anchor := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		anchor = strings.ReplaceAll(anchor, " ", "-")
		for n := 1; all[anchor]; n++ {
			anchor = strings.TrimSuffix(anchor, fmt.Sprint("-", n-1)) + fmt.Sprint("-", n)
		}
		all[anchor] = true
	}
	return all
}

// No link leads nowhere: those between pages, and those to a page in code, deployments and alerts.
func TestLinks(t *testing.T) {
	all, have := pages(t), map[string]map[string]bool{}
	for name, page := range all {
		have[name] = anchors(page)
	}
	links := 0
	check := func(where, path, anchor string) {
		links++
		if _, err := os.Stat(root + path); err != nil {
			t.Errorf("%s: there is no %s", where, path)
		} else if anchor != "" && anchor != "ALERT" && !have[path][anchor] { // ALERT stands for any
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
	for _, path := range files(t, []string{".go", ".yaml", ".yml", ".json", ".html", ".sql", ".service", ".socket", ".timer", ".env", ".sh", ".tpl", ".txt", ".ps1"}) {
		if name := strings.TrimPrefix(path, root); name != "docs/truth_test.go" {
			for _, m := range inFile.FindAllStringSubmatch(read(t, path), -1) {
				check(name, m[1], m[2])
			}
		}
	}
	if links < 200 {
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
	if len(commands) < 11 {
		t.Fatalf("only %q", commands)
	}
	below, flags := map[string][]string{}, 0
	for _, name := range commands {
		if !strings.Contains(reference, "`usher "+name) {
			t.Errorf("reference.md does not name usher %s", name)
		}
		lines := [][]string{{name}}
		switch name {
		case "inbox":
			_, list, _ := strings.Cut(usher(t, name, "nosuch"), "use ")
			below[name] = found(`([a-z]+)[,.]`, strings.Split(list, " Run ")[0])
		case "sandbox":
			below[name] = []string{"send", "checkout", "revoke", "fail", "rehearse"}
		}
		for _, sub := range below[name] {
			lines = append(lines, []string{name, sub})
		}
		help := usher(t, "help", name)
		for _, line := range lines {
			if name == "entitlements" {
				continue // it has no flags, and would take this for a tenant
			}
			where, text := "reference.md", reference
			if name == "inbox" || name == "sandbox" {
				where, text = "'usher help "+name+"'", help
			}
			if len(line) == 2 && !regexp.MustCompile(`\b`+line[1]+`\b`).MatchString(text) {
				t.Errorf("%s does not name usher %s", where, strings.Join(line, " "))
			}
			_, list, ok := strings.Cut(usher(t, append(line, "--nosuch")...), "it has ")
			if !ok {
				continue
			}
			for _, flag := range found(`(--[a-z-]+)`, strings.Split(list, " Run ")[0]) {
				flags++
				if mentions := regexp.MustCompile(flag + `\b`); !mentions.MatchString(text) || !mentions.MatchString(help) {
					t.Errorf("%s, or 'usher help %s', does not name %s of usher %s", where, name, flag, strings.Join(line, " "))
				}
			}
		}
	}
	if flags < 30 || len(below["inbox"]) < 11 {
		t.Errorf("only %d flags; below inbox %q", flags, below["inbox"])
	}
	for page, text := range pages(t) {
		for _, m := range regexp.MustCompile("(?:`|/|'|\\$ |^)usher ([a-z]+)(?: ([a-z]+)\\b)?").FindAllStringSubmatch(text, -1) {
			if !slices.Contains(commands, m[1]) {
				t.Errorf("%s names usher %s, which is not a command", page, m[1])
			} else if m[1] == "inbox" && m[2] != "" && !slices.Contains(below["inbox"], m[2]) {
				t.Errorf("%s names usher inbox %s, which is not a command", page, m[2])
			}
		}
	}
}

// Every metric and every alert that a page names exists. (That each metric has its row, TestListsInDocsAreComplete checks.)
func TestNamesOfMetricsAndAlerts(t *testing.T) {
	metrics := found(`"(usher_\w+)"`, code(t, "internal/admin"))
	alerts := found(`(?m)^ *- alert: (\w+)`, read(t, root+"deploy/helm/usher/files/alerts.yaml"))
	if len(metrics) < 25 || len(alerts) != 3 {
		t.Fatalf("%d metrics, %d alerts", len(metrics), len(alerts))
	}
	for page, text := range pages(t) {
		for _, name := range found(`\b(usher_(?:proxy|token|webhook|inbox|reconcile|entitlement)_\w*\w)`, text) {
			if strings.Contains(text, name+"_…") || strings.Contains(text, name+".*") {
				continue // the beginning of several
			}
			base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")
			if !slices.Contains(metrics, name) && !slices.Contains(metrics, base) {
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
	source, listed, number := "", "", 0
	for page, folders := range map[string][]string{"reference.md": {"proxy"}, "entitlements.md": {"internal/entitlements"}} {
		text := read(t, page)
		for _, name := range found(`"([A-Z]{3,}(?:_[A-Z]+)+)"`, code(t, folders...)) {
			number++
			// CUT_OFF is a reason in a metric: no caller gets it
			if name != "CUT_OFF" && !strings.Contains(text, "`"+name+"`") {
				t.Errorf("%s does not have %s", page, name)
			}
		}
		source, listed = source+code(t, folders...), listed+text
	}
	if number < 15 {
		t.Errorf("only %d codes", number)
	}
	rows := regexp.MustCompile("(?m)^\\| [0-9 /]+ \\| (`[A-Z_]+`(?: / `[A-Z_]+`)*) \\|").FindAllStringSubmatch(listed, -1)
	if len(rows) < 15 {
		t.Errorf("only %d rows", len(rows))
	}
	for _, row := range rows {
		for _, name := range found("`([A-Z_]+)`", row[1]) {
			if !strings.Contains(source, `"`+name+`"`) {
				t.Errorf("%s is documented, and nobody answers with it", name)
			}
		}
	}
}

// What usher costs is named only as it was measured: each such figure is, rounded, in bench/RESULTS.md or evidence.md.
func TestFigures(t *testing.T) {
	number := regexp.MustCompile(`\d[\d,]*(?:\.\d+)?`)
	value := func(text string) float64 {
		f, err := strconv.ParseFloat(strings.ReplaceAll(strings.TrimRight(text, ","), ",", ""), 64)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	var measured []float64
	for _, text := range number.FindAllString(read(t, root+"bench/RESULTS.md")+read(t, "evidence.md"), -1) {
		measured = append(measured, value(text))
	}
	is := func(text string, bound bool) bool {
		f, step := value(text), 1.0
		if _, decimals, ok := strings.Cut(text, "."); ok {
			step = math.Pow10(-len(decimals))
		} else {
			for n := f; n >= 10 && math.Mod(n, 10) == 0; n /= 10 {
				step *= 10
			}
		}
		return slices.ContainsFunc(measured, func(m float64) bool {
			return math.Abs(m-f) <= step/2 || bound && m <= f && m > 0.8*f
		})
	}
	figures := 0
	check := func(page, before, figure string) {
		figures++
		if bound := regexp.MustCompile(`(less than|up to|below) $`).MatchString(before); !is(figure, bound) {
			t.Errorf("%s: …%s%s is in neither bench/RESULTS.md nor evidence.md", page, before, figure)
		}
	}
	for page, text := range pages(t) {
		if page == "bench/RESULTS.md" || page == "docs/evidence.md" {
			continue
		}
		for _, m := range regexp.MustCompile(`([^\n]{0,20}?)(\d[\d,.]*)(?: (?:µs|MB|times (?:as fast|nginx|ReverseProxy)\S*)|/s)\b`).FindAllStringSubmatch(text, -1) {
			check(page, m[1], strings.TrimRight(m[2], ",."))
		}
		_, costs, _ := strings.Cut(text, "\n## What it costs\n")
		costs, _, _ = strings.Cut(costs, "\n## ")
		for _, row := range regexp.MustCompile(`(?m)^\| [^|]+ \| ([^|]+) \|$`).FindAllStringSubmatch(costs, -1) {
			for _, at := range number.FindAllStringIndex(row[1], -1) {
				check(page, row[1][max(0, at[0]-20):at[0]], strings.TrimRight(row[1][at[0]:at[1]], ","))
			}
		}
	}
	if figures < 12 {
		t.Errorf("only %d figures", figures)
	}
}
