package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// section is what a part has found out, and the circumstances: parts may be measured at
// different times.
type section struct {
	name   string
	facts  []string
	began  time.Time
	tables []*table
}

// table is a table with a title, and what one has to know to read it.
type table struct {
	title  string
	header []string
	rows   [][]string
	notes  []string
	aside  bool // for the terminal alone: what was aimed at
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }
func (t *table) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}
func number(f float64) string       { return fmt.Sprintf("%.0f", f) }
func times(f float64) string        { return fmt.Sprintf("%.2f", f) }
func millis(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()*1e3) }

// plural counts things.
func plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

func tenths(f float64) string { return fmt.Sprintf("%.1f", f) }

// markdown is the section, for a terminal and for a file. Tables that are aside are for the terminal.
func (s *section) markdown(aside bool) string {
	var w strings.Builder
	began, took := s.began.UTC().Format("2006-01-02 15:04 MST"), time.Since(s.began).Round(time.Second)
	fmt.Fprintf(&w, "%s%s\n\n%s, %s: %s.\n", heading, s.name, began, took, strings.Join(s.facts, "; "))
	for _, t := range s.tables {
		if t.aside && !aside {
			continue
		}
		fmt.Fprintf(&w, "\n### %s\n\n", t.title)
		widths := t.widths()
		rule := []string{strings.Repeat("-", widths[0])}
		for _, n := range widths[1:] {
			rule = append(rule, strings.Repeat("-", n-1)+":")
		}
		for _, row := range slices.Concat([][]string{t.header, rule}, t.rows) {
			fmt.Fprintln(&w, "| "+strings.Join(padded(row, widths), " | ")+" |")
		}
		for _, note := range t.notes {
			fmt.Fprintln(&w, "\n"+note)
		}
	}
	return w.String()
}

const (
	title = "# Results\n\n`go run ./bench` measures each part; bench/doc.go says how. " +
		"Figures are medians of several rounds. Ratios do not follow from the figures beside them: " +
		"each is measured in pairs. Where the load average before it was beyond the number of cores, " +
		"times and rates say little; ratios, memory and CPU time do count. " +
		"CPU time is user and system time of the process itself: other load changes it " +
		"little, through caches.\n"
	heading = "## " // of a section
)

// writeTo puts the section into a file, in the place of the one that has its name there.
func (s *section) writeTo(file string) error {
	old, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.WriteFile(file, []byte(merged(string(old), s.name, s.markdown(false))), 0o644)
}

// merged is a file of results with one section replaced. Sections that no part writes any
// more go.
func merged(old, name, fresh string) string {
	sections := map[string]string{name: fresh}
	for _, text := range strings.Split("\n"+old, "\n"+heading)[1:] {
		if line, _, _ := strings.Cut(text, "\n"); line != name {
			sections[line] = heading + strings.TrimRight(text, "\n") + "\n"
		}
	}
	out := title
	for _, p := range parts {
		if text := sections[p.name]; text != "" {
			out += "\n" + text
		}
	}
	return out
}

func (t *table) widths() []int {
	widths := make([]int, len(t.header))
	for _, row := range append(t.rows, t.header) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 2)
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

func self(f float64) float64 { return f }

// medianMillis is the median of times, in milliseconds.
func medianMillis[T any](all []T, get func(T) time.Duration) string {
	return millis(time.Duration(median(all, func(one T) float64 { return float64(get(one)) })))
}

// quantile is the value that a share q of sorted is below.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
