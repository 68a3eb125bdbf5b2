package logs

import (
	"log"
	"log/slog"
	"strings"
	"testing"
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

func TestForLibrary(t *testing.T) {
	var ours strings.Builder
	ForLibrary(slog.New(slog.NewTextHandler(&ours, nil)), slog.LevelInfo, "http server").Printf("http: odd thing %q", "jane@example.com")
	if got := ours.String(); !strings.Contains(got, `msg="http server"`) || !strings.Contains(got, "odd thing") || strings.Contains(got, "jane") {
		t.Errorf("our log: %s", got)
	}
}
