// Package stdlog puts what net/http and other libraries print through the standard
// library's log package into our own log: a constant message, and the text beside it.
//
// What libraries print may quote what came over the wire, which is customers' data, or
// even a token: net/http shows the bytes that a server sends unasked. So usher logs no text
// that stands in quotes.
package stdlog

import (
	"context"
	"log"
	"log/slog"

	"usher/internal/text"
)

// New returns a logger whose lines become records of dst with this message.
func New(dst *slog.Logger, level slog.Level, message string) *log.Logger {
	return slog.NewLogLogger(handler{dst.Handler(), message}, level)
}

// TakeOver does the same with what libraries print through log's own functions, until
// restore is called.
func TakeOver(dst *slog.Logger) (restore func()) {
	flags, prefix, out := log.Flags(), log.Prefix(), log.Writer()
	log.SetFlags(0)
	log.SetPrefix("")
	log.SetOutput(New(dst, slog.LevelWarn, "printed by a library").Writer())
	return func() {
		log.SetOutput(out)
		log.SetPrefix(prefix)
		log.SetFlags(flags)
	}
}

type handler struct {
	slog.Handler
	message string
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	line := slog.NewRecord(r.Time, r.Level, h.message, r.PC)
	line.AddAttrs(slog.String("detail", text.Unquoted(r.Message)))
	return h.Handler.Handle(ctx, line)
}
