// Package logs makes usher's log: lines for people at a terminal, JSON for programs. Lines that
// net/http and other libraries print through the standard library's log package go into it, too.
package logs

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"strings"
	"time"

	"github.com/lmittmann/tint"

	"usher/internal/text"
)

// New returns a log that writes to w, from this level on. The format is text, json, or auto: JSON
// unless w is a terminal. Colours are for terminals only.
func New(w io.Writer, format string, colours bool, level slog.Leveler) *slog.Logger {
	onScreen := text.IsTerminal(w)
	if format == "json" || format == "auto" && !onScreen {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: inSeconds}))
	}
	return slog.New(forPeople(w, onScreen && colours, level))
}

func forPeople(w io.Writer, colours bool, level slog.Leveler) slog.Handler {
	return tint.NewTextHandler(w, &tint.Options{
		Level: level, TimeFormat: "15:04:05.000", NoColor: !colours, ReplaceAttr: visible,
	})
}

// visible makes every character of a value visible: tint hands escape sequences on to the terminal.
func visible(_ []string, a slog.Attr) slog.Attr {
	shown := ""
	switch a.Value.Kind() {
	case slog.KindString:
		shown = a.Value.String()
	case slog.KindAny:
		if _, ours := a.Value.Any().(slog.Level); ours {
			return a
		}
		shown = fmt.Sprint(a.Value.Any())
	default:
		return a
	}
	// tint even makes an escape of these four characters, which %q writes for one.
	a.Value = slog.StringValue(strings.ReplaceAll(text.Visible(shown), `\x1b`, `\u001b`))
	return a
}

// inSeconds writes a duration in seconds. (slog's JSON would have nanoseconds.)
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		// Not Duration.Seconds, which adds two parts, and turns 1.832 into 1.8319999999999999.
		a.Value = slog.Float64Value(float64(a.Value.Duration()) / float64(time.Second))
	}
	return a
}

// ForLibrary returns a logger for a library. Each of its lines becomes a record of dst with this
// message, and with the line as the attribute "detail". Libraries may quote what came over the network,
// which is customers' data, or even a token: net/http prints bytes that a server sends unasked. So
// quotations are removed from the line.
func ForLibrary(dst *slog.Logger, level slog.Level, message string) *log.Logger {
	return slog.NewLogLogger(library{dst.Handler(), message}, level)
}

// TakeOver does the same for libraries that print through the functions of package log, until restore
// is called.
func TakeOver(dst *slog.Logger) (restore func()) {
	flags, prefix, out := log.Flags(), log.Prefix(), log.Writer()
	log.SetFlags(0)
	log.SetPrefix("")
	log.SetOutput(ForLibrary(dst, slog.LevelWarn, "printed by a library").Writer())
	return func() {
		log.SetOutput(out)
		log.SetPrefix(prefix)
		log.SetFlags(flags)
	}
}

type library struct {
	slog.Handler
	message string
}

func (l library) Handle(ctx context.Context, r slog.Record) error {
	level := r.Level
	if strings.HasPrefix(r.Message, "http: TLS handshake error") { // any stranger can make these
		level = slog.LevelInfo
	}
	line := slog.NewRecord(r.Time, level, l.message, r.PC)
	line.AddAttrs(slog.String("detail", text.Unquoted(r.Message)))
	return l.Handler.Handle(ctx, line)
}
