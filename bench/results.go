package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// results are all that a run has found out.
type results struct {
	machine, usher, command string
	load                    string // of the machine, before the run
	date                    time.Time
	took                    time.Duration
	sections                []section
}

type section struct {
	name   string
	tables []*table
}

// table is a table with a title, and what one has to know to read it.
type table struct {
	title  string
	header []string
	rows   [][]string
	notes  []string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }
func (t *table) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}
func number(f float64) string        { return fmt.Sprintf("%.0f", f) }
func percent(f float64) string       { return fmt.Sprintf("%.0f%%", 100*f) }
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
func millis(d time.Duration) string  { return fmt.Sprintf("%.1f ms", d.Seconds()*1e3) }
func mebibytes(n int64) string       { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// text writes the results for a terminal.
func (r *results) text(w io.Writer) {
	for _, line := range r.preamble() {
		fmt.Fprintln(w, line)
	}
	for _, s := range r.sections {
		fmt.Fprintf(w, "\n%s\n%s\n", s.name, strings.Repeat("=", len(s.name)))
		for _, t := range s.tables {
			fmt.Fprintf(w, "\n%s\n", t.title)
			widths := t.widths()
			for _, row := range slices.Concat([][]string{t.header}, t.rows) {
				fmt.Fprintln(w, "  "+strings.Join(padded(row, widths), "  "))
			}
			for _, note := range t.notes {
				fmt.Fprintln(w, "  "+note)
			}
		}
	}
}

// markdown writes the results for the repository.
func (r *results) markdown(w io.Writer) {
	fmt.Fprintf(w, "# Results\n\n")
	for _, line := range r.preamble() {
		fmt.Fprintln(w, "- "+line)
	}
	for _, s := range r.sections {
		fmt.Fprintf(w, "\n## %s\n", s.name)
		for _, t := range s.tables {
			fmt.Fprintf(w, "\n### %s\n\n", t.title)
			widths := t.widths()
			rule := []string{strings.Repeat("-", widths[0])}
			for _, n := range widths[1:] {
				rule = append(rule, strings.Repeat("-", n-1)+":")
			}
			for _, row := range slices.Concat([][]string{t.header, rule}, t.rows) {
				fmt.Fprintln(w, "| "+strings.Join(padded(row, widths), " | ")+" |")
			}
			for _, note := range t.notes {
				fmt.Fprintln(w, "\n"+note)
			}
		}
	}
}

func (r *results) preamble() []string {
	return []string{
		"machine: " + r.machine,
		"usher: " + r.usher,
		"command: " + strings.TrimSpace(r.command),
		fmt.Sprintf("load average before the run: %s (0 on a quiet machine; beyond its cores, only the ratios say something)", r.load),
		fmt.Sprintf("date: %s, %s long", r.date.UTC().Format("2006-01-02 15:04 MST"), r.took.Round(time.Second)),
	}
}

func (t *table) widths() []int {
	widths := make([]int, len(t.header))
	for _, row := range append(t.rows, t.header) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// padded fills a row's cells: words to the left, figures to the right.
func padded(row []string, widths []int) []string {
	cells := make([]string, len(row))
	for i, cell := range row {
		space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
		if cells[i] = space + cell; i == 0 {
			cells[i] = cell + space
		}
	}
	return cells
}

// median is the middle of what get says of each, or the mean of the two in the middle.
func median[T any](all []T, get func(T) float64) float64 {
	var values []float64
	for _, one := range all {
		values = append(values, get(one))
	}
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// quantile is the value that a share q of sorted is below.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
