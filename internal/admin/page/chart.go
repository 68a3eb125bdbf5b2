package page

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Chart is a drawing of the last hour, a column for each minute. Its labels are text
// beside the SVG and not in it: that is stretched to the width there is, and letters
// must not be.
type Chart struct {
	ID      string
	Title   string
	Summary string    // what it shows, in a sentence
	Scale   [3]string // labels of the vertical axis: top, middle, bottom
	Bars    []Bar
	Lines   []Line
	Strips  []Strip
	Columns []Column
	Series  []Series // the colours are explained, and the columns of the table are named, by them
	Empty   bool     // there is nothing to draw
}

// The drawing is so large, before it is stretched.
const (
	column = 10
	height = 100
)

// Bar is a part of a column.
type Bar struct {
	Class      string
	X, Y, W, H string
}

// Line is a path over the columns; it has gaps where there is no figure.
type Line struct{ Class, Path string }

// Strip is a row below the drawing, with a mark in the minutes when something happened.
type Strip struct {
	Label, Class string
	Total        int
	Marks        []int // x of each
}

// Column is a minute: a place for a pointer to rest, and a row of the table.
type Column struct {
	X     int
	Label string
}

// Series is what one colour stands for: a figure for each minute.
type Series struct {
	Class, Label, Total string
	Values              []float64 // NaN: none
	Cells               []string  // the same in words
}

// Add adds the figure of a minute, and the same in words.
func (s *Series) Add(value float64, cell string) {
	s.Values, s.Cells = append(s.Values, value), append(s.Cells, cell)
}

// NewBars stacks the series, the first at the bottom.
func NewBars(id, title, summary string, starts []time.Time, series []Series, unit func(float64) string) Chart {
	top := 0.0
	for i := range starts {
		sum := 0.0
		for _, s := range series {
			sum += s.Values[i]
		}
		top = max(top, sum)
	}
	c, top := newChart(id, title, summary, starts, series, top, unit)
	for i := range starts {
		y := float64(height)
		for _, s := range series {
			h := s.Values[i] / top * height
			if h <= 0 {
				continue
			}
			h = max(h, 1.5) // one among thousands is still to be seen
			y -= h
			c.Bars = append(c.Bars, Bar{s.Class, strconv.Itoa(i*column + 1), number(max(y, 0)), strconv.Itoa(column - 2), number(h)})
		}
	}
	return c
}

// NewLines draws a line for each series.
func NewLines(id, title, summary string, starts []time.Time, series []Series, unit func(float64) string) Chart {
	top := 0.0
	for _, s := range series {
		for _, v := range s.Values {
			if !math.IsNaN(v) {
				top = max(top, v)
			}
		}
	}
	c, top := newChart(id, title, summary, starts, series, top, unit)
	for _, s := range series {
		var path strings.Builder
		for i, v := range s.Values {
			if math.IsNaN(v) {
				continue
			}
			to := "L"
			if i == 0 || math.IsNaN(s.Values[i-1]) {
				to = "M"
			}
			// Each minute is a step: a point alone would not be seen.
			fmt.Fprintf(&path, "%s%d %sH%d", to, i*column, number(height-v/top*height), (i+1)*column)
		}
		c.Lines = append(c.Lines, Line{s.Class, path.String()})
	}
	return c
}

// newChart returns a chart without its drawing, and the figure at the top of it, which is not below the largest.
func newChart(id, title, summary string, starts []time.Time, series []Series, largest float64, unit func(float64) string) (c Chart, top float64) {
	top = ceiling(largest)
	c = Chart{ID: id, Title: title, Summary: summary, Series: series, Empty: largest == 0, Scale: [3]string{unit(top), unit(top / 2), "0"}}
	for i, start := range starts {
		c.Columns = append(c.Columns, Column{i * column, start.UTC().Format("15:04")})
	}
	return c, top
}

// Mark adds a strip.
func (c *Chart) Mark(label, class string, counts []int) {
	s := Strip{Label: label, Class: class}
	for i, n := range counts {
		s.Total += n
		if n > 0 {
			s.Marks = append(s.Marks, i*column+2)
		}
	}
	c.Strips = append(c.Strips, s)
}

// Hours are the labels below the drawing: its beginning, middle and end.
func (c Chart) Hours() [3]string {
	n := len(c.Columns)
	return [3]string{fmt.Sprintf("%d min ago", n), fmt.Sprintf("%d min", n/2), "now"}
}

// Recent is how many minutes of an hour a chart should have, when the first so many were silent: one that has just begun
// need not show an hour of nothing.
func Recent(minutes, silent int) int {
	for _, n := range []int{10, 20, 30} {
		if minutes-silent <= n && n < minutes {
			return n
		}
	}
	return minutes
}

// Width of the drawing.
func (c Chart) Width() int { return len(c.Columns) * column }

// ceiling is the next round figure above v, and so near that most of the drawing is used.
func ceiling(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 1.2, 1.6, 2, 3, 4, 5, 6, 8} {
		if v <= step*power {
			return step * power
		}
	}
	return 10 * power
}

// number writes v for an SVG.
func number(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
