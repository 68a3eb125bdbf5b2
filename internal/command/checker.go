package command

import (
	"fmt"
	"io"
	"strings"

	"usher/internal/outbound"
	"usher/internal/text"
)

type checker struct {
	out      io.Writer
	outbound *outbound.Outbound // nil if outbound is off
	failed   bool
}

func (c *checker) ok(format string, args ...any) {
	fmt.Fprintf(c.out, "ok    "+format+"\n", args...)
}

func (c *checker) fail(format string, args ...any) {
	c.failed = true
	fmt.Fprintf(c.out, "FAIL  %s\n", text.Visible(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")))
}

func (c *checker) note(format string, args ...any) {
	fmt.Fprintf(c.out, "note  %s\n", text.Visible(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")))
}
