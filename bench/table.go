package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A section is what a part has found, and the circumstances: parts may be measured at different times.
type section struct {
	name   string
	facts  []string
	began  time.Time
	tables []*table
}

type table struct {
	title  string
	header []string
	rows   [][]string
	note   string // what one has to know to read it
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (s *section) markdown() string {
	var w strings.Builder
	fmt.Fprintf(&w, "%s%s\n\n%s: %s.\n", heading, s.name, s.began.UTC().Format("2006-01-02"), strings.Join(s.facts, "; "))
	for _, t := range s.tables {
		fmt.Fprintf(&w, "\n### %s\n\n", t.title)
		widths := make([]int, len(t.header))
		for _, row := range append(t.rows, t.header) {
			for i, cell := range row {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell), 2)
			}
		}
		rule := make([]string, len(widths))
		for i, n := range widths { // words to the left, figures to the right
			rule[i] = strings.Repeat("-", n-min(i, 1)) + strings.Repeat(":", min(i, 1))
		}
		for _, row := range slices.Concat([][]string{t.header, rule}, t.rows) {
			for i, cell := range row {
				fill := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
				if i == 0 {
					fmt.Fprint(&w, "| ", cell, fill)
				} else {
					fmt.Fprint(&w, " | ", fill, cell)
				}
			}
			fmt.Fprintln(&w, " |")
		}
		fmt.Fprintln(&w, "\n"+t.note)
	}
	return w.String()
}

const (
	heading = "## " // of a section
	title   = "# Results\n\n`go run ./bench` measures these; bench/main.go says how. Each section names the commit and the " +
		"machine that its figures are from. A figure is the median of several rounds. A ratio is the median of " +
		"pairs, measured one right after the other, so it does not follow from the figures beside it. CPU time is " +
		"that of the process itself.\n"
)

// writeTo writes the section into a file, in place of the one that has its name there.
func (s *section) writeTo(file string) error {
	old, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	sections := map[string]string{s.name: s.markdown()}
	for _, text := range strings.Split("\n"+string(old), "\n"+heading)[1:] {
		name, _, _ := strings.Cut(text, "\n")
		sections[name] = cmp.Or(sections[name], heading+strings.TrimRight(text, "\n")+"\n")
	}
	out := title
	for _, p := range parts {
		if text := sections[p.name]; text != "" {
			out += "\n" + text
		}
	}
	return os.WriteFile(file, []byte(out), 0o644)
}

func number(f float64) string       { return fmt.Sprintf("%.0f", f) }
func tenths(f float64) string       { return fmt.Sprintf("%.1f", f) }
func times(f float64) string        { return fmt.Sprintf("%.2f", f) }
func megabytes(bytes int64) string  { return tenths(float64(bytes) / 1e6) }
func millis(d time.Duration) string { return tenths(d.Seconds() * 1e3) }

// median is the middle of what get says of each, or the mean of the two in the middle.
func median[T any](all []T, get func(T) float64) float64 {
	var values []float64
	for _, one := range all {
		values = append(values, get(one))
	}
	slices.Sort(values)
	if n := len(values); n > 0 {
		return (values[(n-1)/2] + values[n/2]) / 2
	}
	return 0
}

// quantile is the value that a share q of sorted is below.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
