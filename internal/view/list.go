package view

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"usher/internal/text"
)

// A Column is one of a list's: its heading, and what it says of each thing.
type Column[T any] struct {
	Head string
	Name string // its class on the page
	Cut  bool   // on a terminal it is cut first, so that there is room for the last column
	Cell func(*T) Cell
}

// A Cell is what a list says of a thing in one column.
type Cell struct {
	Words string
	At    time.Time // instead of Words: how long ago it was
	Link  string    // address of the page about it; empty: there is none
	Tone  string    // its colour; empty: that of all text
	Notes []Note    // what is said beside it

	Name string // that of its column; set by NewTable
}

// A Note is said beside something.
type Note struct{ Words, Link string }

// Text is the cell on one line.
func (c Cell) Text() string {
	words := c.Words
	if !c.At.IsZero() {
		words = Age(c.At)
	}
	for _, n := range c.Notes {
		if words != "" {
			words += "; "
		}
		words += n.Words
	}
	if words == "" {
		return Nothing
	}
	return words
}

// A Table is a list as the page draws it.
type Table struct {
	Heads []Cell
	Rows  []Row
}

// A Row is one thing in a table.
type Row struct {
	ID    string // of the element
	Cells []Cell
}

// NewTable returns the table of a list. id returns the id of an element for a thing; nil: it has none.
func NewTable[T any](columns []Column[T], things []T, id func(*T) string) (t Table) {
	for _, c := range columns {
		t.Heads = append(t.Heads, Cell{Words: c.Head, Name: c.Name})
	}
	for i := range things {
		row := Row{}
		if id != nil {
			row.ID = id(&things[i])
		}
		for _, c := range columns {
			cell := c.Cell(&things[i])
			cell.Name = c.Name
			row.Cells = append(row.Cells, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// A Printer prints a list in lines, page by page. The first page decides how wide the columns are.
type Printer[T any] struct {
	Columns []Column[T]
	Width   int // of the terminal, which has headings and cuts lines; 0: it is none

	widths []int
}

// maxWidth is how wide a column may be. A longer cell makes its own line longer: senders choose how long they are.
const maxWidth = 36

// Print prints a page of things.
func (p *Printer[T]) Print(out io.Writer, things []T) error {
	var rows [][]string
	first := p.widths == nil
	if first && p.Width > 0 {
		row := []string{}
		for _, c := range p.Columns {
			row = append(row, strings.ToUpper(c.Head))
		}
		rows = append(rows, row)
	}
	for i := range things {
		row := []string{}
		for _, c := range p.Columns {
			words := text.Visible(c.Cell(&things[i]).Text())
			if c.Cut && p.Width > 0 {
				words = text.Shorten(words, max(12, p.Width/4))
			}
			row = append(row, words)
		}
		rows = append(rows, row)
	}
	if first {
		p.widths = columnWidths(rows)
	}
	var lines strings.Builder
	for _, row := range rows {
		line := joinRow(row, p.widths)
		if p.Width > 0 {
			line = text.Shorten(line, p.Width)
		}
		lines.WriteString(line + "\n")
	}
	_, err := io.WriteString(out, lines.String())
	return err
}

// Rows returns rows of text as lines, with their cells below each other.
func Rows(rows [][]string) (lines []string) {
	widths := columnWidths(rows)
	for _, row := range rows {
		lines = append(lines, joinRow(row, widths))
	}
	return lines
}

func columnWidths(rows [][]string) []int {
	widths := []int{}
	for _, row := range rows {
		widths = append(widths, make([]int, max(0, len(row)-1-len(widths)))...) // the last one needs none
		for i := range widths {
			widths[i] = max(widths[i], min(utf8.RuneCountInString(row[i]), maxWidth))
		}
	}
	return widths
}

func joinRow(row []string, widths []int) string {
	var line strings.Builder
	for i, width := range widths {
		fmt.Fprintf(&line, "%-*s  ", width, row[i])
	}
	return line.String() + row[len(widths)]
}
