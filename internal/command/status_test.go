package command

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"usher/internal/admin/status"
	"usher/internal/inbox"
)

// usher status --since also says what is over, the last first: from when to when, and on which replica.
func TestStatusSince(t *testing.T) {
	s := newInboxServer(t, "")
	began := s.Now().UTC().Truncate(time.Second).Add(-3 * time.Hour)
	was := func(about, replica string, began, ended time.Time, what string) inbox.Trouble {
		return inbox.Trouble{About: about, Replica: replica, Began: began, Noticed: began, Seen: ended, Ended: ended,
			TroubleWords: inbox.TroubleWords{Severity: status.Critical, What: what}}
	}
	if _, _, err := s.Found([]inbox.Trouble{
		was("a", "", began, began.Add(90*time.Minute), "The receiver answers 500 to everything"),
		was("b", "gate-2", began.Add(time.Hour), began.Add(2*time.Hour), "Every webhook failed the check of its sender\x1b"),
		was("c", "", began.Add(-48*time.Hour), began.Add(-47*time.Hour), "too old"),
		was("d", "", began, time.Time{}, "not over"),
	}, nil, false, false); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (int, string) {
		p := start(t, []string{"USHER_ADMIN_LISTEN=" + s.addr}, append([]string{"status"}, args...)...)
		<-p.Ended
		return p.Code, p.Stdout.String() + p.Stderr.String()
	}
	code, out := run("--since", "12h")
	_, over, found := strings.Cut(out, "\nOver since ")
	_, over, _ = strings.Cut(over, "\n")
	between := func(from, to time.Time) string {
		last := to.Format(time.DateTime)
		if from.Format(time.DateOnly) == to.Format(time.DateOnly) {
			last = to.Format(time.TimeOnly)
		}
		return "\n  from " + from.Format(time.DateTime) + " to " + last + " UTC, for "
	}
	want := "\nover: on gate-2: Every webhook failed the check of its sender\\u001b" + between(began.Add(time.Hour), began.Add(2*time.Hour)) + "1h\n" +
		"\nover: The receiver answers 500 to everything" + between(began, began.Add(90*time.Minute)) + "1h 30m\n"
	if over != want {
		t.Errorf("%q\nwant\n%q", over, want)
	}
	if code != 1 || !found || !strings.Contains(out, "critical: 2 webhooks") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if _, out := run("--since", "30m"); !strings.Contains(out, "\nNothing else was wrong since ") {
		t.Error(out)
	}
	for _, since := range []string{"yesterday", "", "2126-01-31"} {
		if code, out := run("--since", since); code != 2 || !strings.Contains(out, `invalid value "`+since+`" for flag -since: `) {
			t.Errorf("--since %q: exit code %d\n%s", since, code, out)
		}
	}
}

// usher status says what is wrong, with commands that reach the same usher, and exits with
// 1; --json is the API's answer.
func TestStatus(t *testing.T) {
	s := newInboxServer(t, "")
	run := func(args ...string) (int, string, string) {
		p := start(t, []string{"USHER_ADMIN_LISTEN=" + s.addr}, args...)
		<-p.Ended
		return p.Code, p.Stdout.String(), p.Stderr.String()
	}
	code, out, _ := run("status")
	for _, want := range []string{"critical: 2 webhooks of ", " are parked; the receiver answered: 422: no such account\n  since 20", "\n  usher inbox ls --state parked\n",
		"warning: Paused: receiver crm\n", "\n  usher inbox resume --receiver crm\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if code != 1 || strings.Contains(out, "All is well") || strings.ContainsAny(out, "\x1b\u00a0\u202f") {
		t.Errorf("exit code %d\n%q", code, out)
	}
	code, out, _ = run("status", "--json")
	var now status.Status
	if err := json.Unmarshal([]byte(out), &now); err != nil || code != 1 || len(now.Troubles) != 2 || now.Troubles[0].Kind != "parked" {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	for _, args := range [][]string{{"status", "now"}, {"status", "--yaml"}} {
		if code, _, stderr := run(args...); code != 2 || !strings.Contains(stderr, "json") {
			t.Errorf("%q: exit code %d, %s", args, code, stderr)
		}
	}
	env := t.TempDir() + "/gate.env"
	if err := os.WriteFile(env, []byte("USHER_ADMIN_LISTEN="+s.addr+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, "--env-file", env, "status")
	if <-p.Ended; !strings.Contains(p.Stdout.String(), "\n  usher --env-file "+env+" inbox ls --state parked\n") || !strings.Contains(p.Stdout.String(), "'usher --env-file "+env+" inbox redeliver") {
		t.Errorf("%s", p.Stdout.String())
	}
}
