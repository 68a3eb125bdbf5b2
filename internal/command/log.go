package command

import (
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
)

// newLog returns the log that the settings ask for, on w.
func newLog(w io.Writer, a *Admin) *slog.Logger { return newLogAt(w, a, a.level) }

// newLogAt is newLog with a level that may change.
func newLogAt(w io.Writer, a *Admin, level slog.Leveler) *slog.Logger {
	terminal := isTerminal(w)
	if a.LogFormat == "json" || a.LogFormat == "auto" && !terminal {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: inSeconds}))
	}
	return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: "15:04:05.000", NoColor: !terminal || a.noColour}))
}

// inSeconds writes a duration as a number of seconds, which programs that read logs can
// compare and add up. JSON would have nanoseconds.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	}
	return a
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
