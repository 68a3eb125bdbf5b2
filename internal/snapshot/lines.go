package snapshot

import (
	"encoding/json"
	"strings"

	"usher/internal/text"
)

// Line is one line of the difference between two payloads.
type Line struct {
	Op   byte // ' ' in both, '-' only before, '+' only after, '@' instead of lines that are left out
	Text string
}

const (
	// maxLines is the longest payload that is compared: the work grows with the product of both
	// lengths.
	maxLines = 2000
	// around is how many lines are shown before and after a change.
	around = 3
)

// Lines indents two payloads and compares them line by line. It shows the changes that Between cannot
// describe. ok is false if one of the payloads is not JSON, or too long.
func Lines(previous, next []byte) (_ []Line, ok bool) {
	a, okA := indented(previous)
	b, okB := indented(next)
	if !okA || !okB || len(a) > maxLines || len(b) > maxLines {
		return nil, false
	}
	return condense(compare(a, b)), true
}

func indented(body []byte) ([]string, bool) {
	if !json.Valid(body) {
		return nil, false
	}
	shown, left := text.Payload(body)
	return strings.Split(shown, "\n"), left == 0
}

// compare finds the longest common subsequence. Lines that are equal at the end need no search: most
// payloads differ in few places. Each cell of common has the number of lines that the rest of a and
// the rest of b have in common.
func compare(a, b []string) (lines []Line) {
	end := 0
	for end < len(a) && end < len(b) && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	tail := a[len(a)-end:]
	a, b = a[:len(a)-end], b[:len(b)-end]
	width := len(b) + 1
	common := make([]uint16, (len(a)+1)*width)
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i*width+j] = common[(i+1)*width+j+1] + 1
			} else {
				common[i*width+j] = max(common[(i+1)*width+j], common[i*width+j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			lines = append(lines, Line{' ', a[i]})
			i++
			j++
		case j == len(b) || i < len(a) && common[(i+1)*width+j] >= common[i*width+j+1]:
			lines = append(lines, Line{'-', a[i]})
			i++
		default:
			lines = append(lines, Line{'+', b[j]})
			j++
		}
	}
	for _, line := range tail {
		lines = append(lines, Line{' ', line})
	}
	return lines
}

// condense leaves out the lines that are far from any change.
func condense(lines []Line) []Line {
	near := make([]bool, len(lines))
	for i, line := range lines {
		if line.Op != ' ' {
			for j := max(0, i-around); j < min(len(lines), i+around+1); j++ {
				near[j] = true
			}
		}
	}
	var out []Line
	for i, line := range lines {
		if near[i] {
			out = append(out, line)
		} else if len(out) == 0 || out[len(out)-1].Op != '@' {
			out = append(out, Line{'@', "…"})
		}
	}
	return out
}
