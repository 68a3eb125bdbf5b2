package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"usher/internal/admin/status"
	"usher/internal/inbox"
	"usher/internal/testkit/inboxtest"
)

// A night is a chat, and recorders that look at the same troubles: replicas that share an inbox, or one without.
type night struct {
	t       *testing.T
	box     *inbox.Inbox
	wrong   []string // the kinds that are wrong now
	says    []string // the lines that the chat has got
	posts   int      // how many messages
	refuses bool
	results []string
	all     []*Recorder
}

// inNights runs a test with two recorders on an inbox, and with one whose records are in memory.
func inNights(t *testing.T, test func(n *night)) {
	for _, name := range []string{"inbox", "memory"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &night{t: t}
				if name == "inbox" {
					n.box = inboxtest.Open(t).Inbox
					n.start("gate-1")
				}
				n.start("gate-2")
				test(n)
			})
		})
	}
}

func (n *night) start(name string) *Recorder {
	r := New(Config{
		Status: func(context.Context) *status.Status {
			s := new(status.Status)
			for _, kind := range n.wrong {
				s.Troubles = append(s.Troubles, status.Trouble{TroubleWords: inbox.TroubleWords{Kind: kind, What: kind + " is wrong", Severity: status.Critical, Means: "It hurts.", Do: "Mend it."}})
			}
			return s
		},
		Stopping: func() bool { return false },
		Inbox:    n.box,
		Host:     name,
		URL:      func() string { return "https://chat.example/s3cr3t" },
		Sent:     func(result string) { n.results = append(n.results, result) },
		Log:      slog.New(slog.DiscardHandler),
	})
	r.says.roundTrip = func(req *http.Request) (*http.Response, error) {
		var body map[string]string
		raw, _ := io.ReadAll(req.Body)
		if err := json.Unmarshal(raw, &body); err != nil || len(body) != 1 || req.Method != http.MethodPost {
			n.t.Errorf("%s %s", req.Method, raw)
		}
		if n.refuses {
			return &http.Response{StatusCode: 500, Body: http.NoBody}, nil
		}
		n.posts++
		for line := range strings.Lines(body["text"]) {
			if word, rest, _ := strings.Cut(line, ": "); strings.HasPrefix(word, "CRITICAL") || strings.HasPrefix(word, "OVER") {
				kind, _, _ := strings.Cut(rest, " ")
				n.says = append(n.says, strings.Fields(word)[0]+" "+kind)
			}
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
	}
	r.name = name
	n.all = append(n.all, r)
	return r
}

// pass lets so much time pass.
func (n *night) pass(d time.Duration) {
	for range d / lookEvery {
		time.Sleep(lookEvery)
		for _, r := range n.all {
			r.look(n.t.Context())
		}
	}
}

// said checks what was said since the last time.
func (n *night) said(want ...string) {
	n.t.Helper()
	if slices.Sort(n.says); !slices.Equal(n.says, want) {
		n.t.Errorf("%v: it said %q, want %q", time.Now().UTC().Format(time.TimeOnly), n.says, want)
	}
	n.says = nil
}

// history checks what is over: the kinds, what ended last first.
func (n *night) history(want ...string) {
	n.t.Helper()
	var got []string
	over, old := n.all[0].Since(n.t.Context(), time.Now().Add(-inbox.HistoryAge))
	for _, t := range over {
		got = append(got, t.Kind)
		if !t.Ended.After(t.Began) {
			n.t.Errorf("%+v", t)
		}
	}
	if !slices.Equal(got, want) || old {
		n.t.Errorf("%v: over are %q (%v), want %q", time.Now().UTC().Format(time.TimeOnly), got, old, want)
	}
}

// What has lasted a minute is said once, by one of all; and that it is over, after a minute. It is in the history half a
// minute after nobody finds it any more.
func TestATroubleIsSaidOnce(t *testing.T) {
	inNights(t, func(n *night) {
		n.pass(2 * time.Minute)
		n.wrong = []string{"parked"}
		n.pass(time.Minute)
		n.said()
		n.pass(10 * time.Second)
		n.said("CRITICAL parked")
		n.pass(10 * time.Minute)
		n.said()
		n.wrong = nil
		n.pass(30 * time.Second)
		n.history()
		n.pass(10 * time.Second)
		n.history("parked")
		n.said()
		n.pass(30 * time.Second)
		n.said("OVER parked")
		n.pass(10 * time.Minute)
		n.said()
		n.wrong = []string{"parked"} // again
		n.pass(70 * time.Second)
		n.said("CRITICAL parked")
	})
}

// A moment is in the history, and is not said.
func TestAMomentIsNotSaid(t *testing.T) {
	inNights(t, func(n *night) {
		n.pass(2 * time.Minute)
		n.wrong = []string{"calls-fail"}
		n.pass(30 * time.Second)
		n.wrong = nil
		n.pass(10 * time.Minute)
		n.said()
		n.history("calls-fail")
	})
}

// What comes and goes is one trouble, not a message for each time.
func TestAFlappingTroubleIsSaidOnce(t *testing.T) {
	inNights(t, func(n *night) {
		n.pass(2 * time.Minute)
		for range 20 {
			n.wrong = []string{"calls-fail"}
			n.pass(15 * time.Second)
			n.wrong = nil
			n.pass(50 * time.Second)
		}
		n.said("CRITICAL calls-fail")
		n.history("calls-fail")
		n.pass(5 * time.Minute)
		n.said("OVER calls-fail")
		n.history("calls-fail")
	})
}

// There is at most one message a minute, whatever happens: what is due later waits for the next.
func TestOneMessageAMinute(t *testing.T) {
	inNights(t, func(n *night) {
		n.pass(2 * time.Minute)
		for i := range 120 {
			n.wrong = append(n.wrong, fmt.Sprint("kind-", i))
			n.pass(5 * time.Second)
		}
		n.pass(2 * time.Minute)
		if n.posts < 8 || n.posts > 12 {
			t.Errorf("%d messages in 12 minutes", n.posts)
		}
	})
}

// A chat that refuses is asked again each minute, as long as it is true; meanwhile that is a trouble.
func TestARefusedMessageIsSentAgain(t *testing.T) {
	inNights(t, func(n *night) {
		n.pass(2 * time.Minute)
		n.refuses, n.wrong = true, []string{"parked", "moment"}
		n.pass(3 * time.Minute)
		if tries := len(n.results); tries < 2 || tries > 3 || n.results[0] != "status" {
			t.Errorf("%q", n.results)
		}
		s := new(status.Status)
		for _, r := range n.all {
			if r.Facts(s); s.Notifications.Error != "" {
				break
			}
		}
		if s.Notifications.Error != "the other side answered 500" || s.Notifications.Since.IsZero() {
			t.Errorf("%+v", s.Notifications)
		}
		n.wrong = []string{"parked"}
		n.pass(40 * time.Second)
		n.refuses = false
		n.pass(70 * time.Second)
		n.said("CRITICAL parked")
		for _, r := range n.all { // one has failed, the other has not tried, or it went out
			r.Facts(s)
		}
		n.pass(4 * time.Minute)
		for _, r := range n.all {
			if r.Facts(s); s.Notifications.Error != "" {
				t.Errorf("nothing is to be said, and that cannot be said: %+v", s.Notifications)
			}
		}
	})
}

// After a restart nothing is said again, also if what is wrong is found only after a while; and nobody forgets to say
// that it is over. Killed before it could say it, another one says it.
func TestARestartSaysNothingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &night{t: t, box: inboxtest.Open(t).Inbox}
		n.start("gate-1")
		n.pass(2 * time.Minute)
		n.wrong = []string{"parked"}
		n.pass(2 * time.Minute)
		n.said("CRITICAL parked")
		for _, away := range []time.Duration{time.Second, 10 * time.Minute} {
			n.all, n.wrong = nil, nil
			time.Sleep(away)
			n.start("gate-1")
			n.pass(40 * time.Second)
			n.wrong = []string{"parked"}
			n.pass(5 * time.Minute)
			n.said()
		}
		n.all = nil
		n.start("gate-1")
		n.wrong = nil
		n.pass(3 * time.Minute)
		n.said("OVER parked")

		n.wrong = []string{"invalid"}
		n.pass(55 * time.Second)
		if _, due, err := n.box.Found(nil, nil, false, true); err != nil || len(due) != 0 {
			t.Fatalf("%+v %v", due, err)
		}
		time.Sleep(10 * time.Second)
		if _, due, err := n.box.Found(nil, nil, false, true); err != nil || len(due) != 1 { // and it is killed
			t.Fatalf("%+v %v", due, err)
		}
		n.pass(50 * time.Second)
		n.said()
		n.pass(30 * time.Second)
		n.said("CRITICAL invalid")
	})
}

// What is found while the inbox cannot be written is in memory, is said by each, and is handed to the inbox when it is
// back. What was said before is not said again.
func TestWhileTheInboxIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := inboxtest.Open(t)
		n := &night{t: t, box: b.Inbox}
		r := n.start("gate-1")
		n.pass(2 * time.Minute)
		n.wrong = []string{"parked"}
		n.pass(2 * time.Minute)
		n.said("CRITICAL parked")
		b.Fail(errors.New("it is away"))
		n.wrong = []string{"inbox-fails", "parked"}
		n.pass(2 * time.Minute)
		n.said("CRITICAL inbox-fails")
		if _, old := r.Since(t.Context(), time.Time{}); !old {
			t.Error("the history of a replica alone is not said to be that")
		}
		b.Fail(nil)
		n.wrong = []string{"parked"}
		n.pass(3 * time.Minute)
		n.said("OVER inbox-fails")
		n.history("inbox-fails")
		n.wrong = nil
		n.pass(3 * time.Minute)
		n.said("OVER parked")
		n.history("parked", "inbox-fails")
	})
}

var began = time.Date(2026, 11, 17, 2, 10, 0, 0, time.UTC)

// A message is at most 4,000 characters and twenty lines, whatever it is about, and says how much it leaves out.
func TestMessagesAreShort(t *testing.T) {
	for _, n := range []int{1, 2, 6, 7, 30, 300} {
		for _, size := range []int{10, 700, 5000} {
			all := make([]inbox.Trouble, n)
			for i := range all {
				all[i].Began, all[i].Severity = began, status.Critical
				all[i].What, all[i].Means, all[i].Do = strings.Repeat("é", size), strings.Repeat("m", size), "d"
			}
			m := compose("gate-1", all, began.Add(time.Minute))
			if utf8.RuneCountInString(m) > maxText || strings.Count(m, "\n")+1 > maxLines {
				t.Fatalf("%d of %d: %s", n, size, m)
			}
			if said := strings.Count(m, "CRITICAL: "); said < n && !strings.Contains(m, fmt.Sprintf("\nAnd %d more: run 'usher status'.", n-said)) || said == 0 && size < 5000 {
				t.Errorf("%d of %d: %d are said in\n%s", n, size, said, m)
			}
		}
	}
}

// No name in a message mentions anybody or is a link; and a command that it changes is left out.
func TestNamesInMessagesAreNeutral(t *testing.T) {
	for _, name := range []string{"crm/<!channel>", "crm/@all", "crm/https:%2F%2Fevil.example", "crm/evil.example", "crm/[x](y)", "crm/`a`", "crm/a&lt;b", "crm/*b*"} {
		one := inbox.Trouble{Began: began, TroubleWords: inbox.TroubleWords{
			What: "1 webhook of " + name + " is parked", Run: "usher inbox resume --tenant '" + name + "'", Named: []string{name},
		}}
		m := compose("gate-1", []inbox.Trouble{one}, began.Add(time.Minute))
		if strings.ContainsAny(m, "<@&`*") || strings.Contains(m, "://") || strings.Contains(m, "evil.example") || strings.Contains(m, "](") || strings.Contains(m, "Type:") {
			t.Errorf("%s: %s", name, m)
		}
	}
	one := inbox.Trouble{Began: began, TroubleWords: inbox.TroubleWords{What: "The receiver http://127.0.0.1:3000 can't be reached", Run: "usher inbox ls --state waiting"}}
	if m := compose("gate-1", []inbox.Trouble{one}, began.Add(time.Minute)); !strings.Contains(m, "\nType: usher inbox ls --state waiting") {
		t.Error(m)
	}
}

// The address is a secret: no error has it.
func TestErrorsDoNotHaveTheAddress(t *testing.T) {
	for _, address := range []string{"http://s3cr3t.invalid/s3cr3t", "http://127.0.0.1:1/s3cr3t", "http://s3cr3t\x7f/"} {
		r := New(Config{URL: func() string { return address }, Log: slog.New(slog.DiscardHandler)})
		result, err := r.says.send(t.Context(), "text")
		if err == nil || strings.Contains(err.Error(), "s3cr3t") || result != "error" {
			t.Errorf("%s: %s %v", address, result, err)
		}
	}
}
