package logs

import (
	"errors"
	"log"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode"
)

func TestTakeOver(t *testing.T) {
	var before, ours strings.Builder
	out := log.Writer()
	defer log.SetOutput(out)
	log.SetOutput(&before)
	restore := TakeOver(slog.New(slog.NewJSONHandler(&ours, nil)))
	// As net/http does with what a server sends unasked.
	log.Printf("Unsolicited response received on idle HTTP channel starting with %q; err=%v", `{"email":"jane@example.com"}`, nil)
	restore()
	log.Print("afterwards")
	if got := ours.String(); !strings.Contains(got, "Unsolicited response received") || !strings.Contains(got, "err=") ||
		strings.Contains(got, "jane") || strings.Contains(got, "email") || strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "{") {
		t.Errorf("our log: %s", got)
	}
	if got := before.String(); !strings.HasSuffix(got, "afterwards\n") || strings.Contains(got, "Unsolicited") {
		t.Errorf("elsewhere: %q", got)
	}
}

// The codes of a tenant come with a webhook, and the texts of errors from other programs. None of them can
// control the terminal on which somebody reads the log.
func TestOnATerminal(t *testing.T) {
	for _, colours := range []bool{true, false} {
		var screen strings.Builder
		log := slog.New(forPeople(&screen, colours, slog.LevelInfo)).With("port", "a\x1b[31mb")
		evil := `a b\x1b]0;literally` + "x\x1b]0;owned\a\x1b[31m\u009b31m\r\n12:00:00 ERR a line of its own"
		log.Warn("odd\x1b[31m", "tenant", evil, "err", errors.New(evil), "all", []string{evil}, slog.Group("g", "in", evil), "took", time.Second)
		got := screen.String()
		for _, ours := range []string{"\x1b[0m", "\x1b[2m", "\x1b[22m", "\x1b[91m", "\x1b[93m"} {
			got = strings.ReplaceAll(got, ours, "")
		}
		if strings.ContainsFunc(strings.TrimSuffix(got, "\n"), func(c rune) bool { return !unicode.IsPrint(c) }) || !strings.Contains(got, "owned") ||
			!strings.Contains(got, "WRN") || !strings.Contains(got, "took=1s") {
			t.Errorf("colours %v: %q", colours, got)
		}
	}
}

func TestForLibrary(t *testing.T) {
	var ours strings.Builder
	ForLibrary(slog.New(slog.NewTextHandler(&ours, nil)), slog.LevelInfo, "http server").Printf("http: odd thing %q", "jane@example.com")
	if got := ours.String(); !strings.Contains(got, `msg="http server"`) || !strings.Contains(got, "odd thing") || strings.Contains(got, "jane") {
		t.Errorf("our log: %s", got)
	}
}
