// Package logs makes usher's log: lines for a person at a terminal, JSON for programs.
package logs

import (
	"io"
	"log/slog"
	"time"

	"github.com/lmittmann/tint"

	"usher/internal/settings"
	"usher/internal/text"
)

// New returns the log that the settings ask for, on w, from this level on.
func New(w io.Writer, a *settings.Admin, level slog.Leveler) *slog.Logger {
	onScreen := text.IsTerminal(w)
	if a.LogFormat == "json" || a.LogFormat == "auto" && !onScreen {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: inSeconds}))
	}
	return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: "15:04:05.000", NoColor: !onScreen || a.NoColour}))
}

// inSeconds writes a duration as a number of seconds, which programs that read logs can
// compare and add up. JSON would have nanoseconds.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		// Divided once: Seconds adds, and writes 1.832 as 1.8319999999999999.
		a.Value = slog.Float64Value(float64(a.Value.Duration()) / float64(time.Second))
	}
	return a
}
