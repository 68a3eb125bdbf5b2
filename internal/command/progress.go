package command

import (
	"fmt"
	"io"
	"time"

	"usher/internal/text"
)

// progress says on a terminal how far something is.
type progress struct {
	stderr  io.Writer
	printed time.Time
	open    bool // the line has no end yet
}

func (p *progress) show(format string, args ...any) {
	if time.Since(p.printed) > time.Second/2 && text.IsTerminal(p.stderr) {
		p.printed, p.open = time.Now(), true
		fmt.Fprintf(p.stderr, "\r"+format, args...)
	}
}

func (p *progress) end() {
	if p.open {
		fmt.Fprintln(p.stderr)
		p.open = false
	}
}
