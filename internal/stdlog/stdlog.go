// Package stdlog gives what net/http and other libraries want to say through the
// standard library's log package a place in our own log: a constant message, the text
// beside it.
//
// What libraries print may quote what came over the wire, which is customers' data, or
// even a token: net/http shows the bytes that a server sends unasked. So nothing that
// stands in quotes passes.
package stdlog

import (
	"context"
	"log"
	"log/slog"
	"strings"

	"usher/internal/secret"
)

// New returns a logger whose lines become records of dst with this message.
func New(dst *slog.Logger, level slog.Level, message string) *log.Logger {
	return log.New(lines(dst, level, message), "", 0)
}

// TakeOver has what libraries print by themselves, through log's own functions, become
// records of dst, until restore is called.
func TakeOver(dst *slog.Logger) (restore func()) {
	flags, prefix, out := log.Flags(), log.Prefix(), log.Writer()
	log.SetFlags(0)
	log.SetPrefix("")
	log.SetOutput(lines(dst, slog.LevelWarn, "printed by a library"))
	return func() {
		log.SetOutput(out)
		log.SetPrefix(prefix)
		log.SetFlags(flags)
	}
}

func lines(dst *slog.Logger, level slog.Level, message string) writer {
	return func(line string) {
		dst.Log(context.Background(), level, message, "detail", secret.Unquoted(line))
	}
}

type writer func(line string)

func (w writer) Write(p []byte) (int, error) {
	w(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}
