// Package stdlog gives what net/http wants to say through the standard library's
// log package a place in our own log: a constant message, the text beside it.
package stdlog

import (
	"context"
	"log"
	"log/slog"
	"strings"
)

// New returns a logger whose lines become records of dst with this message.
func New(dst *slog.Logger, level slog.Level, message string) *log.Logger {
	return log.New(writer(func(line string) {
		dst.Log(context.Background(), level, message, "detail", line)
	}), "", 0)
}

type writer func(line string)

func (w writer) Write(p []byte) (int, error) {
	w(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}
