//go:build unix

package command

import (
	"os"
	"strings"
	"testing"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

func TestCheckLooksAtTheInbox(t *testing.T) {
	t.Parallel()
	service := testkit.NewService(t)
	_, receiver := testkit.NewLedger(t)
	for address, want := range map[string]string{
		pgtest.Schema(t): "ok    inbox: can be written",
		"postgres://u:hush@" + testkit.FreeAddress(t) + "/usher": "FAIL  inbox: ",
	} {
		p := start(t, service.Environ("USHER_WEBHOOK_FORWARD_URL="+receiver, "USHER_WEBHOOK_INBOX="+address), "check")
		<-p.Ended
		out := p.Stdout.String()
		for line := range strings.Lines(out) { // pgx has a line for each address that it tried
			if !strings.HasPrefix(line, "ok    ") && !strings.HasPrefix(line, "FAIL  ") && !strings.HasPrefix(line, "note  ") {
				t.Errorf("a line that is none of its own: %s", line)
			}
		}
		if !strings.Contains(out, want) || strings.Contains(out, "hush") || strings.Count(out, "dial error") > 1 {
			t.Errorf("%s\n%s", out, p.Stderr.String())
		}
	}
}

// usher check says whether usher could use an inbox file, and creates no file.
func TestCheckLooksAtTheFile(t *testing.T) {
	t.Parallel()
	service := testkit.NewService(t)
	_, receiver := testkit.NewLedger(t)
	dir := t.TempDir()
	look := func(path, want string) {
		t.Helper()
		p := start(t, service.Environ("USHER_WEBHOOK_FORWARD_URL="+receiver, "USHER_WEBHOOK_INBOX=file:"+path), "check")
		<-p.Ended
		if out := p.Stdout.String(); !strings.Contains(out, want) {
			t.Errorf("%s: %s", path, out)
		}
	}
	look(dir+"/none/inbox.db", "FAIL  inbox: USHER_WEBHOOK_INBOX: ")
	look(dir+"/inbox.db", "ok    inbox: can be written")
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("left behind: %v %v", files, err)
	}
	p := start(t, service.Environ("USHER_WEBHOOK_FORWARD_URL="+receiver, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_INBOX=file:"+dir+"/inbox.db"))
	p.Ready(t)
	look(dir+"/inbox.db", "ok    inbox: a running usher has it open")
	p.Stop()
	<-p.Ended
	look(dir+"/inbox.db", "ok    inbox: can be written")
}
