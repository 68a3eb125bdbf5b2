package page

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Chart is a drawing of the last hour, with a column for each minute, and a table of the same
// values. The labels are HTML beside the SVG: the SVG is stretched to the width of the page, and
// would stretch letters, too.
type Chart struct {
	ID      string
	Title   string
	Summary string    // what it shows, in a sentence
	Scale   [3]string // labels of the vertical axis: top, middle, bottom
	Bars    []Bar
	Lines   []Line
	Strips  []Strip
	Columns []Column
	Series  []Series // for the legend and the table
	Empty   bool     // all values are zero
}

// The size of the SVG before it is stretched.
const (
	column = 10 // width of a minute
	height = 100
)

// Bar is one part of a column in a stacked chart.
type Bar struct {
	Class      string
	X, Y, W, H string
}

// Line is a path over the columns, with a break where there is no value.
type Line struct{ Class, Path string }

// Strip is a row below the drawing, with a mark in each minute in which something happened.
type Strip struct {
	Label, Class string
	Total        int
	Marks        []int // x of each mark
}

// Column is a minute: the area of its tooltip, and its row in the table.
type Column struct {
	X     int
	Label string
}

// Series is what one colour stands for, with a value for each minute.
type Series struct {
	Class, Label, Total string
	Values              []float64 // NaN: no value
	Cells               []string  // the values as text
}

// Add adds the value of the next minute, and its text.
func (s *Series) Add(value float64, cell string) {
	s.Values, s.Cells = append(s.Values, value), append(s.Cells, cell)
}

// NewBars returns a chart with stacked bars, the first series at the bottom.
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
			h = max(h, 1.5) // even one event among thousands is visible
			y -= h
			x, width := strconv.Itoa(i*column+1), strconv.Itoa(column-2)
			c.Bars = append(c.Bars, Bar{s.Class, x, number(max(y, 0)), width, number(h)})
		}
	}
	return c
}

// NewLines returns a chart with a line for each series.
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
			// Each minute is a step: a single point would be invisible.
			fmt.Fprintf(&path, "%s%d %sH%d", to, i*column, number(height-v/top*height), (i+1)*column)
		}
		c.Lines = append(c.Lines, Line{s.Class, path.String()})
	}
	return c
}

// newChart returns a chart without bars and lines, and the value at its top, a round number that is at
// least the largest value.
func newChart(
	id, title, summary string, starts []time.Time, series []Series, largest float64, unit func(float64) string,
) (c Chart, top float64) {
	top = ceiling(largest)
	c = Chart{
		ID:      id,
		Title:   title,
		Summary: summary,
		Series:  series,
		Empty:   largest == 0,
		Scale:   [3]string{unit(top), unit(top / 2), "0"},
	}
	for i, start := range starts {
		c.Columns = append(c.Columns, Column{i * column, start.UTC().Format("15:04")})
	}
	return c, top
}

// Mark adds a strip with a mark in each minute whose count is not zero.
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

// Hours returns the labels below the drawing: at its beginning, middle and end.
func (c Chart) Hours() [3]string {
	n := len(c.Columns)
	return [3]string{fmt.Sprintf("%d min ago", n), fmt.Sprintf("%d min", n/2), "now"}
}

// Width returns the width of the SVG before it is stretched.
func (c Chart) Width() int { return len(c.Columns) * column }

// ceiling returns the next round number from v on, close enough that the chart uses most of its height.
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

// number writes a coordinate of the SVG.
func number(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
