package command

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"usher/internal/admin"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/testkit"
)

// inboxServer is an admin port in front of a few webhooks, as usher inbox finds it.
type inboxServer struct {
	addr  string
	asked []string // of the inbox
}

const (
	formerBody = `{"type":"TenantProvisioningChange","payload":{"change":{"features":[{"code":"users","quantity":5}]}}}`
	latestBody = `{"type":"TenantProvisioningChange","payload":{"change":{"features":[{"code":"users","quantity":10,"name":"R&D ` + "\u009b" + `2J"}]}}}`
)

func newInboxServer(t *testing.T, token string) *inboxServer {
	t.Helper()
	s := new(inboxServer)
	now := time.Now()
	entries := []inbox.Entry{
		{ID: 100200, Platform: "eu", Tenant: strings.Repeat("tenant-", 20), Received: now, Status: inbox.Status{State: inbox.Waiting, Tries: 12, Attempts: []inbox.Attempt{
			{At: now, Took: time.Millisecond, Error: `Post "http://` + strings.Repeat("receiver.", 20) + `/": connection refused`}}}},
		{ID: 4, Webhook: "019", Type: "TenantProvisioningChange", Platform: "eu", Tenant: "acme\x1b[2J\n", Received: now.Add(-90 * time.Minute), Status: inbox.Status{
			State: inbox.Parked, Why: "the receiver answered 422", Changed: now.Add(-time.Hour), Again: now.Add(-80 * time.Minute), Tries: 1,
			Attempts: []inbox.Attempt{{At: now, Took: 35 * time.Millisecond, Status: 503}, {At: now, Took: time.Second, Status: 422}}}},
		{ID: 3, Type: "Other", Received: now.Add(-72 * time.Hour), Status: inbox.Status{State: inbox.Superseded, Why: "by 4"}},
		{ID: 2, Tenant: "acme", Received: now.Add(-5 * time.Second), Status: inbox.Status{State: inbox.Delivered}},
		{ID: 1, Status: inbox.Status{State: inbox.Parked, Why: "damaged"}},
	}
	note := func(format string, args ...any) { s.asked = append(s.asked, fmt.Sprintf(format, args...)) }
	find := func(id uint64) *inbox.Entry {
		if i := slices.IndexFunc(entries, func(e inbox.Entry) bool { return e.ID == id }); i >= 0 {
			return &entries[i]
		}
		return nil
	}
	cfg := admin.Config{
		Hosts: guard.NewHosts("127.0.0.1:0", nil, false), Unready: func() []string { return nil }, Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
		Inbox: &admin.Inbox{
			List: func(f inbox.Filter) ([]inbox.Entry, error) {
				note("list %q %q %d", f.State, f.Tenant, f.Limit)
				if f.Platform != nil {
					note("on %s", *f.Platform)
				}
				f.Tenant, f.Platform = "", nil
				var out []inbox.Entry
				for _, e := range entries {
					if f.Match(&e, nil) && (f.Limit == 0 || len(out) < f.Limit) {
						out = append(out, e)
					}
				}
				return out, nil
			},
			Show: func(id uint64) (*inbox.Item, error) {
				switch e := find(id); {
				case e == nil:
					return nil, inbox.ErrNotFound
				case id == 1:
					return &inbox.Item{Entry: *e, Body: []byte("torn\x1b")}, nil
				default:
					return &inbox.Item{Entry: *e, Body: []byte(latestBody), Previous: &inbox.Previous{ID: 2, Body: []byte(formerBody)}}, nil
				}
			},
			Redeliver: func(id uint64, force bool) error {
				note("redeliver %d %t", id, force)
				switch e := find(id); {
				case e == nil:
					return inbox.ErrNotFound
				case id == 2 && !force:
					return &inbox.OverwriteError{ID: 2, Latest: *find(4)}
				}
				return nil
			},
			Discard: func(id uint64) error {
				note("discard %d", id)
				if id == 2 {
					return inbox.ErrFinished
				}
				return nil
			},
			Pause: func(p inbox.Pause) error { note("pause %s", p); return nil },
			Resume: func(p inbox.Pause) (bool, error) {
				note("resume %s", p)
				return p.Receiver != "main", nil
			},
			Erase: func(platform, tenant string) (int, error) { note("erase %s|%s", platform, tenant); return 3, nil },
			Stats: func() inbox.Stats { return inbox.Stats{Paused: []inbox.Pause{{Receiver: "crm"}}} },
			Err:   func() error { return nil }, HeldUp: func() []inbox.HeldUp { return nil },
		},
		Platforms: func(tenant string) ([]string, error) {
			switch tenant {
			case "nobody":
				return nil, nil
			case "twice":
				return []string{"eu", ""}, nil
			case "a/b%":
				return []string{"x/y"}, nil
			}
			return []string{"eu"}, nil
		},
		Forget: func(platform, tenant string) (int, error) {
			note("forget %s|%s", platform, tenant)
			return min(1, len(tenant)-3), nil
		},
	}
	if token != "" {
		cfg.Token = func() string { return token }
	}
	srv := httptest.NewServer(admin.New(cfg))
	t.Cleanup(srv.Close)
	s.addr = strings.TrimPrefix(srv.URL, "http://")
	return s
}

// run runs usher inbox with args to its end.
func (s *inboxServer) run(t *testing.T, args ...string) *testkit.Usher {
	t.Helper()
	p := start(t, []string{"USHER_ADMIN_LISTEN=" + s.addr}, append([]string{"inbox"}, args...)...)
	<-p.Ended
	return p
}

func TestInboxList(t *testing.T) {
	s := newInboxServer(t, "")
	p := s.run(t, "ls")
	lines := strings.Split(strings.TrimSuffix(p.Stdout.String(), "\n"), "\n")
	if p.Code != 0 || !strings.HasPrefix(p.Stderr.String(), "Paused since ") || len(lines) != 5 {
		t.Fatalf("%d %s\n%s", p.Code, p.Stderr.String(), p.Stdout.String())
	}
	for i, want := range [][]string{
		{"100200", "waiting", "eu/", "12", "0s", "refused"},
		{"4", "parked", `eu/acme%1B[2J%0A`, "1", "1h", "422 Unprocessable Entity"},
		{"3", "superseded", "(Other)", "0", "3d", "by 4"},
		{"2", "delivered", "acme", "0", "5s", "-"},
		{"1", "parked", "-", "0", "-", "damaged"},
	} {
		fields := strings.Fields(lines[i])
		if fields[0] != want[0] || fields[1] != want[1] || !strings.HasPrefix(fields[2], want[2]) || fields[3] != want[3] || !strings.HasSuffix(lines[i], want[5]) {
			t.Errorf("%s\nwant %q", lines[i], want)
		}
		if i != 0 && i != 3 && fields[4] != want[4] { // these two depend on the clock
			t.Errorf("age %s, want %s", fields[4], want[4])
		}
		if n := utf8.RuneCountInString(lines[i]); n > 100 && i > 0 { // but for the tenant that is so long
			t.Errorf("%d columns: %s", n, lines[i])
		}
	}
	if !slices.Equal(s.asked, []string{`list "" "" 1001`}) {
		t.Errorf("asked for %q", s.asked)
	}
}

func TestInboxListForATerminal(t *testing.T) {
	var out strings.Builder
	now := time.Now()
	entries := []admin.Webhook{
		{ID: "12", Tenant: "a/c", Received: now.Add(-3 * time.Minute), State: inbox.Parked, Tries: 20, Answer: "500 Internal Server Error"},
		{ID: "7", Platform: "eu", Tenant: "acme", Received: now.Add(time.Second), State: inbox.Waiting, Next: now.Add(40 * time.Second), Answer: "599: unknown tenant: please create it", Behind: 26},
		{ID: "8", Platform: "eu", Tenant: "acme", Received: now, State: inbox.Waiting, HeldBy: "7", Paused: true},
	}
	if err := printList(&out, entries, now, true); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"ID  STATE    TENANT   TRIES  AGE  LAST ANSWER, WHAT HOLDS IT UP\n" +
		"12  parked   a%2Fc    20     3m   500 Internal Server Error\n" +
		"7   waiting  eu/acme  0      0s   599: unknown tenant: please creat…t; next try in 40s; 26 behind it\n" +
		"8   waiting  eu/acme  0      0s   paused; behind 7\n"
	if out.String() != want {
		t.Errorf("\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	long := admin.Webhook{ID: "18446744073709551615", Tenant: strings.Repeat("é", 36), State: inbox.Superseded, Tries: 99999, Why: strings.Repeat("é", 200)}
	if err := printList(&out, []admin.Webhook{long}, now, false); err != nil || utf8.RuneCountInString(out.String()) != 100+len("\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
	// A tenant is whole, however long: it is written so where one is named.
	out.Reset()
	long.Platform, long.Tenant = strings.Repeat("p", 60), strings.Repeat("é", 200)
	whole := long.Platform + "/" + long.Tenant
	if err := printList(&out, []admin.Webhook{long}, now, true); err != nil || !strings.Contains(out.String(), " "+whole+" ") {
		t.Errorf("%v\n%s", err, out.String())
	}
	for _, tc := range []struct {
		entries []admin.Webhook
		want    string
	}{
		{nil, "0 webhooks"}, {entries[:1], "1 webhook: 1 parked"}, {entries, "3 webhooks: 2 waiting, 1 parked"},
	} {
		if got := summary(tc.entries); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}

func TestInboxShow(t *testing.T) {
	s := newInboxServer(t, "")
	p := s.run(t, "show", "4")
	if p.Code != 0 {
		t.Fatalf("%d %s", p.Code, p.Stderr.String())
	}
	for _, want := range []string{
		"id          4\n", "state       parked\n", "because     the receiver answered 422\n", `tenant      eu/acme%1B[2J%0A` + "\n", "webhook-id  019\n",
		", 1h ago\n", "sent again  ", "      35ms  503 Service Unavailable\n", "        1s  422 Unprocessable Entity\n",
		"changes against 2\n  users 5 → 10\n", "payload\n{\n  \"type\": \"TenantProvisioningChange\",\n", `"name": "R&D \u009b2J"` + "\n",
	} {
		if !strings.Contains(p.Stdout.String(), want) {
			t.Errorf("no %q in:\n%s", want, p.Stdout.String())
		}
	}
	p = s.run(t, "show", "1")
	if out := p.Stdout.String(); p.Code != 0 || !strings.HasSuffix(out, "payload\n"+`torn\u001b`+"\n") || !strings.Contains(out, "took no snapshot before it") {
		t.Errorf("%d\n%s", p.Code, out)
	}
}

func TestInboxJSON(t *testing.T) {
	s := newInboxServer(t, "")
	var list admin.WebhookList
	p := s.run(t, "ls", "--json", "--state", "parked")
	if err := json.Unmarshal([]byte(p.Stdout.String()), &list); p.Code != 0 || err != nil || len(list.Webhooks) != 2 || list.Webhooks[0].Tenant != "acme\x1b[2J\n" {
		t.Errorf("%d %v %+v", p.Code, err, list)
	}
	var detail admin.WebhookDetail
	p = s.run(t, "show", "4", "--json")
	if err := json.Unmarshal([]byte(p.Stdout.String()), &detail); p.Code != 0 || err != nil || string(detail.Payload) != latestBody || detail.Previous != "2" {
		t.Errorf("%d %v %+v", p.Code, err, detail)
	}
}

func TestInboxCommands(t *testing.T) {
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		stdout string // parts of what is printed
		stderr string
		asked  string
	}{
		{"filters", []string{"ls", "--tenant", "ac me", "--state=waiting", "-limit", "0"}, 0, "", "", `list "waiting" "ac me" 0`},
		{"a tenant as it is printed", []string{"ls", "--tenant", "x%2Fy/a%2Fb%25"}, 0, "", "", `list "" "a/b%" 1001; on x/y`},
		{"a tenant without a platform", []string{"ls", "--tenant", "/twice"}, 0, "", "", `list "" "twice" 1001; on `},
		{"a tenant that could be two", []string{"ls", "--tenant", "twice"}, 1, "", "this could be /twice or eu/twice", ""},
		{"no tenant at all", []string{"ls", "--tenant", "a/b/c"}, 2, "", "invalid tenant", ""},
		{"more than are shown", []string{"ls", "--limit", "2"}, 0, "", "newest 2 are shown", `list "" "" 3`},
		{"no such state", []string{"ls", "--state", "lost"}, 2, "", `"lost" for flag -state: write waiting, parked`, ""},
		{"discarded is a state", []string{"ls", "--state", "discarded", "--since", "2h", "--until", "2126-01-31"}, 0, "", "", `list "discarded" "" 1001`},
		{"no time", []string{"ls", "--since", "soon"}, 2, "", "how long ago", ""},
		{"show of nothing", []string{"show", "9"}, 1, "", "no such webhook", ""},

		{"redeliver", []string{"redeliver", "4"}, 0, "4 will be sent again\n", "'usher inbox resume --receiver crm' goes on", "redeliver 4 false"},
		{"redeliver several", []string{"redeliver", "9", "2", "4"}, 1, "4 will be sent again\n", "9 not resent: no such webhook", "redeliver 9 false; redeliver 2 false; redeliver 4 false"},
		{"redeliver an old one", []string{"redeliver", "2"}, 1, "", "2 not resent: 4 of the same tenant is newer. Use --force to resend it anyway.\n", "redeliver 2 false"},
		{"by force", []string{"redeliver", "--force", "2"}, 0, "2 will", "", "redeliver 2 true"},
		{"flags after the ids", []string{"redeliver", "2", "4", "--force"}, 0, "2 will be sent again\n4 will", "", "redeliver 2 true; redeliver 4 true"},
		{"redeliver by filter", []string{"redeliver", "--state", "parked", "--yes"}, 0, "Redeliver 2 webhooks? yes\n1 will be sent again\n4 will", "", `list "parked" "" 0; list "" "" 0; redeliver 1 false; redeliver 4 false`},
		{"redeliver what waits", []string{"redeliver", "--state", "waiting", "--yes"}, 0, "Redeliver 1 webhook? yes\n", "", `list "waiting" "" 0; list "" "" 0; redeliver 100200 false`},
		{"asked, and nobody answers", []string{"redeliver", "--state", "parked"}, 1, "Redeliver 2 webhooks? [y/N] ", "answer y, or use --yes", `list "parked" "" 0; list "" "" 0`},
		{"nothing to redeliver", []string{"redeliver", "--state", "kept"}, 0, "No webhook to redeliver.\n", "", `list "kept" "" 0; list "" "" 0`},
		{"redeliver by a filter that is empty", []string{"redeliver", "--state", "", "--since", "1000h", "--yes"}, 2, "", "-state: write waiting, parked", ""},
		{"ids and filters", []string{"redeliver", "4", "--state", "parked"}, 2, "", "either ids or filters", ""},

		{"discard", []string{"discard", "4"}, 0, "4 discarded\n", "", "discard 4"},
		{"discard what is finished", []string{"discard", "2"}, 1, "", "2 not discarded: it neither waits nor is parked\n", "discard 2"},
		{"discard by filter", []string{"discard", "--since", "1000h", "--yes"}, 0, "Discard 2 webhooks? yes\n100200 discarded\n4 discarded\n", "", `list "" "" 0; discard 100200; discard 4`},

		{"pause", []string{"pause"}, 0, "paused: all deliveries; 'usher inbox resume' goes on\n", "", "pause all deliveries"},
		{"pause a tenant", []string{"pause", "--tenant", "acme"}, 0, "paused: tenant eu/acme; 'usher inbox resume --tenant eu/acme'", "", "pause tenant eu/acme"},
		{"pause one of two", []string{"pause", "--tenant", "/twice"}, 0, "paused: tenant twice; 'usher inbox resume --tenant /twice' goes on", "", "pause tenant twice"},
		{"pause a receiver", []string{"pause", "--receiver", "main"}, 0, "paused: receiver main", "", "pause receiver main"},
		{"pause a receiver without a name", []string{"pause", "--receiver", ""}, 2, "", "-receiver: write its name", ""},
		{"resume a receiver without a name", []string{"resume", "--receiver="}, 2, "", "-receiver: write its name", ""},
		{"pause both", []string{"pause", "--receiver", "main", "--tenant", "acme"}, 2, "", "not both", ""},
		{"pause nobody", []string{"pause", "--tenant", "nobody"}, 1, "", "no tenant nobody is known", ""},
		{"resume", []string{"resume", "--tenant", "eu/acme"}, 0, "resumed: tenant eu/acme\n", "", "resume tenant eu/acme"},
		{"resume what is not paused", []string{"resume", "--receiver", "main"}, 1, "", "receiver main: not paused", "resume receiver main"},

		{"forget", []string{"forget", "acme"}, 0, "eu/acme forgotten", "", "forget eu|acme"},
		{"forget what was not remembered", []string{"forget", "eu/abc"}, 0, "dedup remembered nothing", "", "forget eu|abc"},
		{"forget somebody unknown", []string{"forget", "nobody"}, 1, "", "no tenant nobody is known", ""},
		{"forget on another platform", []string{"forget", "us/acme"}, 1, "", "no tenant us/acme is known", ""},
		{"forget one of two", []string{"forget", "twice"}, 1, "", "/twice or eu/twice", ""},
		{"forget what looks like a flag", []string{"forget", "--", "-acme"}, 0, "-acme", "", "forget eu|-acme"},
		{"erase", []string{"erase", "acme", "--yes"}, 0, "eu/acme erased: 3 webhooks\n", "", "erase eu|acme"},
		{"erase without a word", []string{"erase", "acme"}, 1, "Erase acme", "nothing was done", ""},
		{"erase one of two", []string{"erase", "--yes", "twice"}, 1, "", "/twice or eu/twice", ""},

		{"nothing to do", nil, 2, "", "say what to do: ls, show", ""},
		{"something else", []string{"list"}, 2, "", `unknown command "list"`, ""},
		{"help", []string{"-h"}, 0, "redeliver ID...", "", ""},
		{"help of a part", []string{"ls", "--help"}, 0, "usher inbox", "", ""},
		{"ls of less than nothing", []string{"ls", "--limit", "-1"}, 2, "", "write a number, 0 for all", ""},
		{"ls of something", []string{"ls", "acme"}, 2, "", `ls takes no "acme"`, ""},
		{"show without an id", []string{"show"}, 2, "", "one id", ""},
		{"show of two", []string{"show", "1", "2"}, 2, "", "one id", ""},
		{"show of a name", []string{"show", "acme"}, 2, "", `invalid id "acme": ids are numbers`, ""},
		{"redeliver nothing", []string{"redeliver", "--force"}, 2, "", "takes ids", ""},
		{"redeliver a name", []string{"redeliver", "1", "acme"}, 2, "", `invalid id "acme"`, ""},
		{"forget nobody", []string{"forget"}, 2, "", "one tenant", ""},
		{"forget the empty one", []string{"forget", ""}, 2, "", "invalid tenant", ""},
		{"unknown flag", []string{"show", "4", "--force"}, 2, "", "-force", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newInboxServer(t, "")
			p := s.run(t, tc.args...)
			if p.Code != tc.code || !strings.Contains(p.Stdout.String(), tc.stdout) || !strings.Contains(p.Stderr.String(), tc.stderr) {
				t.Errorf("%d\n%s\n%s", p.Code, p.Stdout.String(), p.Stderr.String())
			}
			if lines := strings.Count(p.Stderr.String(), "\n"); tc.code == 2 && lines != 1 {
				t.Errorf("%d lines of error:\n%s", lines, p.Stderr.String())
			}
			if asked := strings.Join(s.asked, "; "); asked != tc.asked {
				t.Errorf("asked for %q, want %q", asked, tc.asked)
			}
		})
	}
}

func TestInboxFindsThePort(t *testing.T) {
	s := newInboxServer(t, "adm1n")
	_, port, _ := strings.Cut(s.addr, ":")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("adm1n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	listen := func(addr string, extra ...string) []string {
		return append([]string{"USHER_ADMIN_LISTEN=" + addr}, extra...)
	}
	for _, tc := range []struct {
		name    string
		environ []string
		code    int
		want    string
	}{
		{"token", listen(s.addr, "USHER_ADMIN_TOKEN=adm1n"), 0, "parked"},
		{"token in a file", listen("0.0.0.0:"+port, "USHER_ADMIN_TOKEN_FILE="+file), 0, "parked"},
		{"the other settings do not matter", listen(s.addr, "USHER_ADMIN_TOKEN=adm1n", "USHER_SHUTDOWN_GRACE=soon", "USHER_CLIENT_SECRET_FILE=/none"), 0, "parked"},
		{"no token", listen(s.addr), 1, "set USHER_ADMIN_TOKEN"},
		{"wrong token", listen(s.addr, "USHER_ADMIN_TOKEN=wr0ng"), 1, "set USHER_ADMIN_TOKEN"},
		{"no usher there", listen("127.0.0.1:1"), 1, "USHER_ADMIN_LISTEN says where"},
		{"another program there", listen(strings.TrimPrefix(other.URL, "http://")), 1, "is there an usher?"},
		{"no admin port", listen("off"), 2, "USHER_ADMIN_LISTEN is off, so there is no admin port to ask: set it to"},
		{"bad address", listen("9095"), 2, `USHER_ADMIN_LISTEN is "9095"`},
		{"token twice", listen(s.addr, "USHER_ADMIN_TOKEN=adm1n", "USHER_ADMIN_TOKEN_FILE="+file), 2, "both set"},
		{"token not to be read", listen(s.addr, "USHER_ADMIN_TOKEN_FILE="+file+".not"), 2, "USHER_ADMIN_TOKEN_FILE"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, tc.environ, "inbox", "ls")
			<-p.Ended
			out := p.Stdout.String() + p.Stderr.String()
			if p.Code != tc.code || !strings.Contains(out, tc.want) {
				t.Errorf("%d, want %d with %q:\n%s", p.Code, tc.code, tc.want, out)
			}
			if strings.Contains(out, "adm1n") || strings.Contains(out, "wr0ng") {
				t.Errorf("the token shows:\n%s", out)
			}
		})
	}
}

// A time is asked for as it was given, not as the second that it is in.
func TestInboxTimesAreExact(t *testing.T) {
	for _, when := range []string{"2026-01-31T08:00:00.25Z", "1500ms"} {
		now := time.Date(2026, 1, 31, 8, 0, 1, 750e6, time.UTC)
		o, err := parseInbox([]string{"ls", "--since", when}, now)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.filter().Get("since"); got != "2026-01-31T08:00:00.25Z" {
			t.Errorf("%s: %s", when, got)
		}
	}
}
