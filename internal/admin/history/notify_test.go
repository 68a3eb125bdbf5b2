package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"usher/internal/admin/status"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/testkit/pgtest"
)

// A message is at most 4,000 characters and twenty lines, whatever it is about, and says how much it leaves
// out. What it leaves out counts as said.
func TestMessagesAreShort(t *testing.T) {
	for _, n := range []int{1, 2, 6, 7, 30, 300} {
		for _, size := range []int{10, 700, 5000} {
			var records []inbox.Trouble
			for i := range n {
				r := trouble(fmt.Sprint("kind-", i%3), i)
				r.ID, r.Noticed, r.Began = fmt.Sprint(i), night, night
				r.What, r.Means, r.Do = strings.Repeat("é", size), strings.Repeat("m", size), "d"
				records = append(records, r)
			}
			m := compose("gate-1", records, records, night.Add(time.Minute))
			if m == nil || utf8.RuneCountInString(m.text) > maxText || strings.Count(m.text, "\n")+1 > maxLines || len(m.begun) != n {
				t.Fatalf("%d of %d: %+v", n, size, m)
			}
			if said := strings.Count(m.text, "CRITICAL: "); said < n && !strings.Contains(m.text, fmt.Sprintf("\nAnd %d more: run 'usher status'.", n-said)) || said == 0 && size < 5000 {
				t.Errorf("%d of %d: %d are said in\n%s", n, size, said, m.text)
			}
		}
	}
}

// A replica that speaks for itself alone, as while nobody can write, does not say that nothing else is wrong.
func TestMessagesCountWhatIsKnown(t *testing.T) {
	mine, other := trouble("database-away", 0), trouble("parked", 1)
	mine.Noticed = night
	m := compose("gate-1", []inbox.Trouble{mine}, []inbox.Trouble{mine, other}, night.Add(time.Minute))
	if !strings.HasPrefix(m.text, "usher on gate-1: 2 things are wrong, run 'usher status'.\nCRITICAL: database-away 0.") || strings.Contains(m.text, "parked") {
		t.Error(m.text)
	}
}

// No name in a message mentions anybody or is a link; and a command that it changes is left out.
func TestNamesInMessagesAreNeutral(t *testing.T) {
	for _, name := range []string{"crm/<!channel>", "crm/@all", "crm/@here", "crm/https:%2F%2Fevil.example", "crm/evil.example", "crm/[x](y)", "crm/`a`", "crm/a&lt;b", "crm/*b*"} {
		r := trouble("parked", 1)
		r.What, r.Run, r.Named, r.Noticed = "1 webhook of "+name+" is parked", "usher inbox resume --tenant '"+name+"'", []string{name}, night
		m := compose("gate-1", []inbox.Trouble{r}, []inbox.Trouble{r}, night.Add(time.Minute))
		if strings.ContainsAny(m.text, "<@&`*") || strings.Contains(m.text, "://") || strings.Contains(m.text, "evil.example") || strings.Contains(m.text, "](") || strings.Contains(m.text, "Type:") {
			t.Errorf("%s: %s", name, m.text)
		}
	}
	r := trouble("receiver", 1)
	r.What, r.Run, r.Noticed = "The receiver http://127.0.0.1:3000 can't be reached", "usher inbox ls --state waiting", night
	if m := compose("gate-1", []inbox.Trouble{r}, []inbox.Trouble{r}, night.Add(time.Minute)); !strings.Contains(m.text, "\nType: usher inbox ls --state waiting") {
		t.Errorf("%s", m.text)
	}
}

// chat is an endpoint that refuses anything but {"text":…}.
type chat struct {
	t      *testing.T
	answer atomic.Pointer[func(http.ResponseWriter)]
	texts  chan string // of those that it took
	tries  atomic.Int64
}

func (c *chat) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.tries.Add(1)
	var body map[string]string
	raw, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(raw, &body); err != nil || len(body) != 1 || body["text"] == "" || r.Method != "POST" || r.Header.Get("Usher-Trouble") == "" || r.Header.Get("Usher-Host") != "gate-1" {
		c.t.Errorf("%s %s %v", r.Method, raw, r.Header)
		http.Error(w, "no_text", http.StatusBadRequest)
		return
	}
	if f := c.answer.Load(); f != nil {
		(*f)(w)
		return
	}
	c.texts <- r.Header.Get("Usher-Trouble") + ": " + body["text"]
}

func (c *chat) answers(f func(http.ResponseWriter)) {
	if f == nil {
		c.answer.Store(nil)
	} else {
		c.answer.Store(&f)
	}
}

// inNight runs a recorder beside a chat, in a bubble. The chat's handler is called without a network, as if
// each post went over one.
func inNight(t *testing.T, test func(d *desk, c *chat)) {
	synctest.Test(t, func(t *testing.T) {
		c := &chat{t: t, texts: make(chan string, 100)}
		var wrong troubles
		d := newDesk(t, nil, &wrong, func(cfg *Config) { cfg.URL = func() string { return "http://chat.example/hooks/s3cr3ts3cr3t" } })
		d.roundTrip = func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			done := make(chan struct{})
			go func() { c.ServeHTTP(w, r); close(done) }()
			select {
			case <-done:
				return w.Result(), nil
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { d.Run(ctx, "gate-1"); close(ended) }()
		time.Sleep(2 * time.Second)
		test(d, c)
		stop()
		<-ended
	})
}

// said returns the messages since the last call.
func (c *chat) said() string {
	synctest.Wait()
	var all []string
	for len(c.texts) > 0 {
		all = append(all, <-c.texts)
	}
	return strings.Join(all, "\n---\n")
}

func (c *chat) want(when string, parts ...string) {
	c.t.Helper()
	got := c.said()
	for _, part := range parts {
		if not, is := strings.CutPrefix(part, "!"); is && strings.Contains(got, not) || !is && !strings.Contains(got, part) {
			c.t.Errorf("%s: %q in\n%s", when, part, got)
		}
	}
	if len(parts) == 0 && got != "" {
		c.t.Errorf("%s: %s", when, got)
	}
}

// What has lasted a minute is said, what is over before is not; what is over for a minute is said; what comes
// together is one message.
func TestWhatIsSaid(t *testing.T) {
	inNight(t, func(d *desk, c *chat) {
		d.wrong.set("short")
		time.Sleep(50 * time.Second)
		d.wrong.set()
		time.Sleep(3 * time.Minute)
		c.want("what was short")
		d.wrong.set("one")
		time.Sleep(8 * time.Second)
		d.wrong.set("one", "two")
		time.Sleep(50 * time.Second)
		c.want("before a minute")
		time.Sleep(10 * time.Second)
		c.want("both", "one,two: usher on gate-1: 2 things are wrong.\nCRITICAL: one. Since ", "\nIt hurts. Mend it.\nCRITICAL: two. Since ", "!---")
		d.wrong.set("two", "three")
		time.Sleep(2*time.Minute + 10*time.Second)
		c.want("one is over, three began", "one,three: usher on gate-1: 2 things are wrong, run 'usher status'.\nCRITICAL: three. Since ", "\nOVER after 1 min", ": one.", "!two")
		d.wrong.set()
		time.Sleep(70 * time.Second)
		c.want("all is over", "three,two: usher on gate-1: all is well again.\nOVER after ")
		time.Sleep(time.Hour)
		c.want("and nothing more")
	})
}

// A chat that refuses, redirects or hangs is tried again, later and later; the page says so; and when it is
// back it hears what is true then.
func TestChatsThatFail(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(http.ResponseWriter)
		within int64 // tries within ten minutes, from
		most   int64
		why    string
	}{
		"500":         {func(w http.ResponseWriter) { w.WriteHeader(500) }, 8, 10, "the other side answered 500"},
		"a redirect":  {func(w http.ResponseWriter) { w.Header().Set("Location", "/elsewhere"); w.WriteHeader(302) }, 8, 10, "a redirect, which usher does not follow"},
		"Retry-After": {func(w http.ResponseWriter) { w.Header().Set("Retry-After", "240"); w.WriteHeader(429) }, 2, 3, "the other side answered 429"},
		"hangs":       {func(http.ResponseWriter) { time.Sleep(20 * time.Second) }, 6, 10, "no answer within 10s"},
	} {
		t.Run(name, func(t *testing.T) {
			inNight(t, func(d *desk, c *chat) {
				c.answers(tc.answer)
				d.wrong.set("disk")
				time.Sleep(11 * time.Minute)
				var s status.Status
				if d.Facts(&s); c.tries.Load() < tc.within || c.tries.Load() > tc.most || !strings.Contains(s.Notifications.Error, tc.why) || strings.Contains(s.Notifications.Error, "s3cr3t") {
					t.Errorf("%d tries, %q", c.tries.Load(), s.Notifications.Error)
				}
				d.wrong.set("token")
				time.Sleep(24 * time.Hour) // away for a day
				c.answers(nil)
				time.Sleep(6 * time.Minute)
				c.want("what is true then", "token: usher on gate-1: 1 thing is wrong.\nCRITICAL: token. Since ", "!disk")
				if d.Facts(&s); s.Notifications.Error != "" || s.Notifications.Last.IsZero() {
					t.Errorf("%+v", s.Notifications)
				}
			})
		})
	}
}

// Somebody may send a test message, but no two messages in a minute.
func TestTestMessage(t *testing.T) {
	inNight(t, func(d *desk, c *chat) {
		if err := d.Test(context.Background(), "ana <!here>"); err != nil {
			t.Fatal(err)
		}
		c.want("the test", "test: usher on gate-1: this is a test, sent by ana ‹!here>.")
		soon, ok := errors.AsType[*TooSoonError](d.Test(context.Background(), "ana"))
		if !ok || soon.Wait != time.Minute {
			t.Errorf("%v", soon)
		}
	})
}

// No error says the address, whatever fails.
func TestNoErrorHasTheAddress(t *testing.T) {
	for _, url := range []string{"http://127.0.0.1:1/hooks/s3cr3t", "https://s3cr3t.invalid/x", "http://127.0.0.1:1\x7f/s3cr3t"} {
		r := New(Config{URL: func() string { return url }, Log: slog.New(slog.DiscardHandler)})
		if _, result, err := r.send(t.Context(), &message{text: "x"}); err == nil || strings.Contains(err.Error(), "s3cr3t") || result == "ok" {
			t.Errorf("%s: %s %v", url, result, err)
		}
	}
}

// Replicas agree by writing on who is there, and who speaks. While nobody can write, though everybody can
// read, each says what is wrong with it, and nobody else is gone.
func TestWhoSpeaksWhileNobodyCanWrite(t *testing.T) {
	address, err := inbox.ParseAddress(pgtest.Schema(t))
	if err != nil {
		t.Fatal(err)
	}
	box, err := inbox.Open(inbox.Config{Rules: lane.Rules{Log: slog.New(slog.DiscardHandler)}, Address: address})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	for box.Health().Err != nil {
		time.Sleep(10 * time.Millisecond)
	}
	var wrong troubles
	for _, name := range []string{"gate-1", "gate-2"} {
		d := newDesk(t, box, &wrong, func(cfg *Config) { cfg.Name = name })
		d.Look(t.Context())
		d.records = []inbox.Trouble{{ID: "1", Replica: "gate-1"}, {ID: "2", Replica: "gate-2"}, {ID: "3"}}
		if say := d.mySay(); len(say) != 3 && name == "gate-1" || len(say) != 0 && name == "gate-2" {
			t.Errorf("%s: %v", name, say)
		}
		d.claimed, d.started, d.readable = d.claimed.Add(-claimFor), d.started.Add(-time.Hour), d.readable.Add(-time.Hour)
		d.take(&inbox.Night{Troubles: d.records, Replicas: []inbox.Replica{{Name: "gate-3", Seen: d.now().Add(-time.Hour)}}}, d.now())
		var s status.Status
		if d.Facts(&s); len(s.Gone) != 0 {
			t.Errorf("%s, while nobody can sign: %v are gone", name, s.Gone)
		}
		if say := d.mySay(); !slices.ContainsFunc(say, func(t inbox.Trouble) bool { return t.Replica == name }) || slices.ContainsFunc(say, func(t inbox.Trouble) bool { return t.Replica != name && t.Replica != "" }) {
			t.Errorf("%s, while nobody can write: %v", name, say)
		}
	}
}

// A message that is under way when usher ends, or is killed soon after, is not sent again by the next run.
func TestWhatWasSaidBeforeTheEnd(t *testing.T) {
	for name, wait := range map[string]time.Duration{"it is under way": 300 * time.Millisecond, "it was taken": 2500 * time.Millisecond} {
		path := filepath.Join(t.TempDir(), "inbox.db")
		synctest.Test(t, func(t *testing.T) {
			address, err := inbox.ParseAddress("file:" + path)
			if err != nil {
				t.Fatal(err)
			}
			posts, wrong := make(chan struct{}, 10), new(troubles)
			wrong.set("disk")
			for run := range 2 {
				box, err := inbox.Open(inbox.Config{Rules: lane.Rules{Log: slog.New(slog.DiscardHandler)}, Address: address})
				if err != nil {
					t.Fatal(err)
				}
				d := newDesk(t, box, wrong, func(cfg *Config) { cfg.URL = func() string { return "http://chat.example/" } })
				d.roundTrip = func(r *http.Request) (*http.Response, error) {
					posts <- struct{}{}
					select {
					case <-time.After(500 * time.Millisecond):
						return httptest.NewRecorder().Result(), nil
					case <-r.Context().Done():
						return nil, r.Context().Err()
					}
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { d.Run(ctx, "gate-1"); close(ended) }()
				for deadline := time.Now().Add(5 * time.Minute); len(posts) <= run && time.Now().Before(deadline); {
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(wait)
				if night, err := box.Tonight(t.Context()); wait > time.Second && (err != nil || night.Said.IsZero()) {
					t.Errorf("%s: the inbox does not know: %+v %v", name, night, err)
				}
				stop()
				<-ended
				box.Close()
			}
			if len(posts) != 1 {
				t.Errorf("%s: it was sent %d times", name, len(posts))
			}
		})
	}
}
