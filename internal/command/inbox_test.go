package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/admin"
	"usher/internal/admin/status"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/inbox/engine"
	"usher/internal/testkit"
	"usher/internal/testkit/inboxtest"
	"usher/internal/view"
	"usher/webhookgate"
)

// inboxServer is an admin port with a real inbox that has a few webhooks.
type inboxServer struct {
	*inboxtest.Box
	addr string
}

const (
	formerBody = `{"type":"TenantProvisioningChange","payload":{"change":{"features":[{"code":"users","quantity":5}]}}}`
	latestBody = `{"type":"TenantProvisioningChange","payload":{"change":{"features":[{"code":"users","quantity":10,"name":"R&D ` + "\u009b" + `2J"}]}}}`
)

// newInboxServer has these webhooks: 1 is parked, 2 delivered, 3 parked (both of eu/acme). 4 has no tenant and is
// delivered. 5 was tried once and waits. 6 and 7 are of two tenants that are both called twice. 8 is of a tenant whose
// codes need escapes. The receiver crm is paused. After that the receivers answer 500.
func newInboxServer(t *testing.T, token string) *inboxServer {
	t.Helper()
	b := inboxtest.Open(t, "main", "crm")
	s := &inboxServer{Box: b}
	answer := func(status int, words string) *inboxtest.Box { b.Answer(status, words); return b }
	answer(422, "").Take("eu", "torn", "torn\x1b")
	answer(200, "").Take("eu", "acme\x1b[2J\n", formerBody)
	answer(422, "no such account").Take("eu", "acme\x1b[2J\n", latestBody)
	b.Tried(answer(200, "").Queue(&webhookgate.Webhook{Type: "Other", Lane: webhookgate.LaneName{Type: "Other"}, Body: []byte("{}")}))
	answer(500, strings.Repeat("in use ", 40)).Take("eu", strings.Repeat("tenant-", 20), formerBody)
	answer(200, "").Take("eu", "twice", formerBody)
	b.Take("", "twice", formerBody)
	b.Take("x/y", "a/b%", formerBody)
	answer(500, "")
	if err := b.Pause(inbox.Pause{Receiver: "crm"}); err != nil {
		t.Fatal(err)
	}
	cfg := admin.Config{
		Hosts: guard.NewHosts("127.0.0.1:0", nil, false), Health: func() *status.Health { return new(status.Health) }, Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
		Inbox: b.Inbox, Platforms: b.Platforms,
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
	if p.Code != 0 || !strings.HasPrefix(p.Stderr.String(), "Paused since ") || len(lines) != 8 {
		t.Fatalf("%d %s\n%s", p.Code, p.Stderr.String(), p.Stdout.String())
	}
	for i, want := range []string{
		`^8  delivered  x%2Fy/a%2Fb%25 +\+ users \(5\) +1 +\d+s  200 OK$`,
		`^7  delivered  /twice +\+ users`,
		`^6  delivered  eu/twice +\+ users`,
		// whole: it is no terminal
		`^5  waiting +eu/(tenant-)+ +\+ users \(5\) +1 +\d+s  500: in use .* in use; next try in [34]m$`,
		`^4  delivered  \(Other\) +- +1`,
		`^3  parked +eu/acme%1B\[2J%0A +users 5 → 10 +1 +\d+s  422: no such account$`,
		`^2  delivered  eu/acme%1B\[2J%0A +\+ users`,
		`^1  parked +eu/torn +- +1 +\d+s  422 Unprocessable Entity$`,
	} {
		if !regexp.MustCompile(want).MatchString(lines[i]) {
			t.Errorf("%s\nwant %s", lines[i], want)
		}
	}
}

func TestInboxShow(t *testing.T) {
	s := newInboxServer(t, "")
	p := s.run(t, "show", "3")
	if p.Code != 0 {
		t.Fatalf("%d %s", p.Code, p.Stderr.String())
	}
	for _, want := range []string{
		"id          3\n", "state       parked\n", "because     the receiver will not take it: Unprocessable Entity\n", `tenant      eu/acme%1B[2J%0A` + "\n",
		"webhook-id  00000003-", "s ago\n", "  422: no such account\n",
		"changes since 2\n  users 5 → 10\n", "payload\n{\n  \"type\": \"TenantProvisioningChange\",\n", `"name": "R&D \u009b2J"` + "\n",
	} {
		if !strings.Contains(p.Stdout.String(), want) {
			t.Errorf("no %q in:\n%s", want, p.Stdout.String())
		}
	}
	p = s.run(t, "show", "1")
	if out := p.Stdout.String(); p.Code != 0 || !strings.HasSuffix(out, "payload\n"+`  torn\u001b`+"\n") || !strings.Contains(out, "has not accepted any earlier snapshot") {
		t.Errorf("%d\n%s", p.Code, out)
	}
}

func TestInboxJSON(t *testing.T) {
	s := newInboxServer(t, "")
	p := s.run(t, "ls", "--json", "--state", "parked")
	first, rest, _ := strings.Cut(p.Stdout.String(), "\n")
	var w view.Webhook
	if err := json.Unmarshal([]byte(first), &w); p.Code != 0 || err != nil || w.Tenant != "acme\x1b[2J\n" || strings.Count(rest, "\n") != 1 {
		t.Errorf("%d %v %s", p.Code, err, p.Stdout.String())
	}
	var detail view.Detail
	p = s.run(t, "show", "3", "--json")
	if err := json.Unmarshal([]byte(p.Stdout.String()), &detail); p.Code != 0 || err != nil || string(detail.Payload) != latestBody || detail.Previous != "2" {
		t.Errorf("%d %v %+v", p.Code, err, detail)
	}
}

func TestInboxCommands(t *testing.T) {
	const again, other = "acme%1B[2J%0A", "Paused since "
	calm := newInboxServer(t, "") // for all that does not act
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		stdout string // parts of what is printed
		stderr string
		acted  string // what has changed in the inbox
	}{
		{"filters", []string{"ls", "--tenant", "torn", "--state=parked", "-limit", "0"}, 0, "1  parked  eu/torn", "", ""},
		{"a tenant as it is printed", []string{"ls", "--tenant", "x%2Fy/a%2Fb%25"}, 0, "8  delivered", "", ""},
		{"a tenant without a platform", []string{"ls", "--tenant", "/twice"}, 0, "7  delivered", "", ""},
		{"a tenant that is known, and no webhook", []string{"ls", "--tenant", "eu/torn", "--state", "stored"}, 0, "", "To resume: usher inbox resume --receiver crm\n", ""},
		{"what the gate alone remembers", []string{"show", "d1"}, 2, "", "ids are numbers", ""},
		{"a tenant that nobody knows", []string{"ls", "--tenant", "nobody"}, 0, "", "usher has no such webhook of nobody.\n", ""},
		{"a tenant that could be two", []string{"ls", "--tenant", "twice"}, 1, "", "write /twice or eu/twice", ""},
		{"no tenant at all", []string{"ls", "--tenant", "a/b/c"}, 2, "", "invalid tenant", ""},
		{"more than are shown", []string{"ls", "--limit", "2"}, 0, "", "Showing the newest 2", ""},
		{"no such state", []string{"ls", "--state", "lost"}, 2, "", "lost", ""},
		{"no time", []string{"discard", "--since", "soon"}, 2, "", "how long ago", ""},
		{"show of nothing", []string{"show", "9"}, 1, "", "no such webhook", ""},

		{"redeliver", []string{"redeliver", "3"}, 0, "3 will be redelivered\n", other, "3 waiting"},
		{"redeliver several", []string{"redeliver", "9", "2", "3"}, 1, "3 will be redelivered\n", "9 not redelivered: no such webhook", "3 waiting"},
		{"redeliver an old one", []string{"redeliver", "2"}, 1, "", "2 not redelivered: 3 of the same tenant is newer. Use --force to redeliver it anyway.\n", ""},
		{"by force", []string{"redeliver", "--force", "2"}, 0, "2 will", "", "2 waiting"},
		{"flags after the ids", []string{"redeliver", "2", "3", "--force"}, 0, "2 will be redelivered\n3 will", "", "2 waiting; 3 waiting"},
		{"redeliver by filter", []string{"redeliver", "--state", "parked", "--yes"}, 0, "Redeliver 2 webhooks? yes\n1 will be redelivered\n3 will", "", "1 waiting; 3 waiting"},
		{"redeliver a platform", []string{"redeliver", "--platform", "eu", "--yes"}, 0, "Redeliver 4 webhooks (without 1 older webhook of the same tenants; --force sends them, too)? yes\n1 will be redelivered\n3 will be redelivered\n5 will be redelivered\n6 will", "", "1 waiting; 3 waiting; 6 waiting"},
		{"redeliver what waits", []string{"redeliver", "--state", "waiting", "--yes"}, 0, "Redeliver 1 webhook? yes\n5 will be redelivered\n", "", ""},
		{"asked, and nobody answers", []string{"redeliver", "--state", "parked"}, 1, "Redeliver 2 webhooks? [y/N] ", "answer y, or use --yes", ""},
		{"two tenants where one is taken", []string{"discard", "--tenant", "eu/torn", "--tenant", "eu/acme", "--yes"}, 2, "", "for flag -tenant: give it once", ""},
		{"nothing to redeliver", []string{"redeliver", "--state", "stored"}, 0, "No webhook to redeliver.\n", "", ""},
		{"redeliver what is invalid", []string{"redeliver", "--state", "invalid"}, 2, "", "redeliver does not send invalid webhooks: use 'usher inbox accept ID'", ""},
		{"accept what was not invalid", []string{"accept", "3"}, 1, "", "or it was not invalid: see 'usher inbox show 3'\n", ""},
		{"redeliver by a filter that is empty", []string{"redeliver", "--state", "", "--since", "1000h", "--yes"}, 2, "", "write waiting, parked", ""},
		{"ids and filters", []string{"redeliver", "4", "--state", "parked"}, 2, "", "either ids or filters", ""},

		{"discard", []string{"discard", "3"}, 0, "3 discarded\n", "", "3 discarded"},
		{"discard what is finished", []string{"discard", "2"}, 1, "", "2 not discarded: only waiting, parked or invalid webhooks can be discarded\n", ""},
		{"the same twice", []string{"discard", "2", "2"}, 1, "", "2 not discarded: only waiting, parked or invalid webhooks can be discarded\n", ""},
		{"discard by filter", []string{"discard", "--since", "1000h", "--yes"}, 0, "Discard 3 webhooks? yes\n5 discarded\n3 discarded\n1 discarded\n", "", "1 discarded; 3 discarded; 5 discarded"},

		{"pause", []string{"pause"}, 0, "paused: all deliveries; to resume: usher inbox resume\n", "", "all deliveries paused"},
		{"pause for some time", []string{"pause", "--for", "2h", "--tenant", "torn"}, 0, "paused: tenant eu/torn until 20", "", "tenant eu/torn paused"},
		{"pause for no time", []string{"pause", "--for", "0s"}, 2, "", "write a time span of at most 8784h, such as 2h or 30m", ""},
		{"pause for as long as a variable says that is not set", []string{"pause", "--for", ""}, 2, "", "write a time span", ""},
		{"resume for some time", []string{"resume", "--for", "2h"}, 2, "", "resume has no flag --for", ""},
		{"pause a tenant", []string{"pause", "--tenant", "torn"}, 0, "paused: tenant eu/torn; to resume: usher inbox resume --tenant eu/torn\n", "", "tenant eu/torn paused"},
		{"pause one of two", []string{"pause", "--tenant", "/twice"}, 0, "paused: tenant /twice; to resume: usher inbox resume --tenant /twice\n", "", "tenant /twice paused"},
		{"pause a receiver", []string{"pause", "--receiver", "main"}, 0, "paused: receiver main", "", "receiver main paused"},
		{"pause a receiver without a name", []string{"pause", "--receiver", ""}, 2, "", "-receiver: write the name of a receiver", ""},
		{"resume a receiver without a name", []string{"resume", "--receiver="}, 2, "", "-receiver: write the name of a receiver", ""},
		{"pause both", []string{"pause", "--receiver", "main", "--tenant", "torn"}, 2, "", "not both", ""},
		{"pause nobody", []string{"pause", "--tenant", "nobody"}, 1, "", "unknown tenant nobody", ""},
		{"resume", []string{"resume", "--receiver", "crm"}, 0, "resumed: receiver crm\n", "", "receiver crm gone"},
		{"resume what is not paused", []string{"resume"}, 1, "", "usher: all deliveries: not paused\nPaused since ", ""},

		{"erase", []string{"erase", again, "--yes"}, 0, "eu/acme%1B[2J%0A erased: 2 webhooks\n", "", "2 gone; 3 gone"},
		{"erase without a word", []string{"erase", "torn"}, 1, "Erase torn", "nothing was done", ""},
		{"erase one of two", []string{"erase", "--yes", "twice"}, 1, "", "/twice or eu/twice", ""},

		{"nothing to do", nil, 2, "", "needs one of these commands: ls, tenants, show", ""},
		{"something else", []string{"purge-it"}, 2, "", `unknown command "purge-it": use ls, tenants, show`, ""},
		{"a slip", []string{"lss"}, 2, "", `unknown command "lss" (did you mean ls?). Run 'usher inbox -h'`, ""},
		{"help", []string{"-h"}, 0, "redeliver ID...", "", ""},
		{"help of a part", []string{"ls", "--help"}, 0, "usher inbox", "", ""},
		{"ls of less than nothing", []string{"ls", "--limit", "-1"}, 2, "", `invalid value "-1" for flag -limit`, ""},
		{"ls of something", []string{"ls", "acme"}, 2, "", `ls takes no argument "acme"`, ""},
		{"show without an id", []string{"show"}, 2, "", "one id", ""},
		{"show of two", []string{"show", "1", "2"}, 2, "", "one id", ""},
		{"show of a name", []string{"show", "acme"}, 2, "", `invalid id "acme": ids are numbers`, ""},
		{"redeliver nothing", []string{"redeliver", "--force"}, 2, "", "takes ids", ""},
		{"redeliver a name", []string{"redeliver", "1", "acme"}, 2, "", `invalid id "acme"`, ""},
		{"unknown flag", []string{"show", "4", "--force"}, 2, "", "show has no flag --force: it has --json", ""},
		{"a slip of a flag", []string{"ls", "--tennant", "acme"}, 2, "", "ls has no flag --tennant: it has --json, --limit, --state, --tenant", ""},
		{"a flag where there are none", []string{"erase", "--force", "acme"}, 2, "", "erase has no flag --force: it has --yes", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := calm
			if tc.acted != "" {
				s = newInboxServer(t, "")
			}
			before := s.Stands()
			p := s.run(t, tc.args...)
			if p.Code != tc.code || !strings.Contains(p.Stdout.String(), tc.stdout) || !strings.Contains(p.Stderr.String(), tc.stderr) {
				t.Errorf("%d\n%s\n%s", p.Code, p.Stdout.String(), p.Stderr.String())
			}
			if lines := strings.Count(p.Stderr.String(), "\n"); tc.code == 2 && lines != 1 {
				t.Errorf("%d lines of error:\n%s", lines, p.Stderr.String())
			}
			if did := inboxtest.Acted(before, s.Stands()); did != tc.acted {
				t.Errorf("did %q, want %q", did, tc.acted)
			}
		})
	}
}

// Whoever resumes hears of the pauses that are still in force.
func TestResumeSaysWhatIsPaused(t *testing.T) {
	s := newInboxServer(t, "")
	for _, args := range [][]string{{"pause"}, {"pause", "--tenant", "eu/twice"}} {
		s.run(t, args...)
	}
	p := s.run(t, "resume")
	want := regexp.MustCompile(`^Paused since .*: receiver crm\. .*\nPaused since .*: tenant eu/twice\. To resume: usher inbox resume --tenant eu/twice\n$`)
	if p.Code != 0 || p.Stdout.String() != "resumed: all deliveries\n" || !want.MatchString(p.Stderr.String()) {
		t.Errorf("%d %s%s", p.Code, p.Stdout.String(), p.Stderr.String())
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
		{"the first of several tokens", listen(s.addr, "USHER_ADMIN_TOKEN=ana:adm1n,ben:wr0ng"), 0, "parked"},
		{"a token for looking", listen(s.addr, "USHER_ADMIN_READ_TOKEN=ben:adm1n"), 0, "parked"},
		{"no token", listen(s.addr), 1, "set USHER_ADMIN_TOKEN"},
		{"wrong token", listen(s.addr, "USHER_ADMIN_TOKEN=wr0ng"), 1, "set USHER_ADMIN_TOKEN"},
		{"no usher there", listen("127.0.0.1:1"), 1, "Its address is in USHER_ADMIN_LISTEN"},
		{"another program there", listen(strings.TrimPrefix(other.URL, "http://")), 1, "is that usher?"},
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

// A time is sent to the API exactly, not rounded to a second.
func TestInboxTimesAreExact(t *testing.T) {
	for _, when := range []string{"2026-01-31T08:00:00.25Z", "1500ms"} {
		now := time.Date(2026, 1, 31, 8, 0, 1, 750e6, time.UTC)
		i := &inboxCall{filter: make(url.Values)}
		if _, err := i.parse([]string{"discard", "--since", when}, now); err != nil {
			t.Fatal(err)
		}
		if got := i.filter.Get("since"); got != "2026-01-31T08:00:00.25Z" {
			t.Errorf("%s: %s", when, got)
		}
	}
}

// An action on many webhooks is one entry, and hides none of the others.
func TestInboxActions(t *testing.T) {
	s := newInboxServer(t, "")
	s.run(t, "erase", "torn", "--yes")
	if p := s.run(t, "discard", "--tenant", "eu/acme%1B[2J%0A", "--state", "parked", "--yes"); p.Code != 0 || !strings.Contains(p.Stdout.String(), "\n3 discarded\n") {
		t.Errorf("%d %s%s", p.Code, p.Stdout.String(), p.Stderr.String())
	}
	if p := s.run(t, "redeliver", "6", "2", "7"); p.Code != 1 || !strings.Contains(p.Stdout.String(), "6 will be redelivered\n7 will be redelivered\n") ||
		!strings.Contains(p.Stderr.String(), "2 not redelivered: 3 of the same tenant is newer. Use --force to redeliver it anyway.\n") {
		t.Errorf("%d %s%s", p.Code, p.Stdout.String(), p.Stderr.String())
	}
	p := s.run(t, "actions")
	want := `^\S+Z  redeliver  2  \S+( \(.*\))?  6, 2 and 7\n\S+Z  discard    1  \S+( \(.*\))?  state parked, tenant eu/acme%1B\[2J%0A\n\S+Z  erase      1  \S+( \(.*\))?  eu/torn\n$`
	if !regexp.MustCompile(want).MatchString(p.Stdout.String()) || p.Stderr.String() != "" {
		t.Errorf("%s%s\nwant %s", p.Stdout.String(), p.Stderr.String(), want)
	}
	p = s.run(t, "actions", "--limit", "2")
	if strings.Count(p.Stdout.String(), "\n") != 2 || p.Stderr.String() != "Showing the newest 2; --limit 0 shows all.\n" {
		t.Errorf("%s%s", p.Stdout.String(), p.Stderr.String())
	}
}

// Very many actions come page by page.
func TestInboxManyActions(t *testing.T) {
	const all = 1234
	var calls atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		before, err := strconv.Atoi(r.URL.Query().Get("before"))
		if err != nil {
			before = all + 1
		}
		end := view.End{}
		for n := before - 1; n > 0 && n >= before-limit; n-- {
			_ = json.NewEncoder(w).Encode(inbox.Action{ID: int64(n), What: "pause"})
			if end.Next = fmt.Sprint("before=", n); n == 1 {
				end.Next = ""
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"end": end})
	}))
	t.Cleanup(srv.Close)
	s := &inboxServer{addr: strings.TrimPrefix(srv.URL, "http://")}
	for _, tc := range []struct {
		args         []string
		lines, calls int64
		more         string
	}{
		{nil, 1000, 2, "Showing the newest 1000; --limit 0 shows all.\n"},
		{[]string{"--limit", "0"}, all, 3, ""},
		{[]string{"--limit", "600"}, 600, 2, "Showing the newest 600; --limit 0 shows all.\n"},
		{[]string{"--limit", "0", "--json"}, all, 3, ""},
	} {
		calls.Store(0)
		p := s.run(t, append([]string{"actions"}, tc.args...)...)
		if n := strings.Count(p.Stdout.String(), "\n"); int64(n) != tc.lines || calls.Load() != tc.calls || p.Stderr.String() != tc.more {
			t.Errorf("%v: %d lines with %d calls, %s", tc.args, n, calls.Load(), p.Stderr.String())
		}
	}
}

// A list or an act whose answer ends too early says so, and does not look whole.
func TestInboxAnswerEndsEarly(t *testing.T) {
	for answer, want := range map[string]string{
		`{"id":"7"}` + "\n": "EOF",
		`{"id":"7"}` + "\n" + `{"end":{"error":"no space left on device"}}` + "\n": "no space left on device",
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, answer) }))
		t.Cleanup(srv.Close)
		s := &inboxServer{addr: strings.TrimPrefix(srv.URL, "http://")}
		for _, args := range [][]string{{"ls"}, {"ls", "--json"}, {"discard", "7"}} {
			p := s.run(t, args...)
			if out := p.Stderr.String(); p.Code != 1 || !strings.Contains(p.Stdout.String(), "7") || !strings.Contains(out, "the answer ended too early") || !strings.Contains(out, want) {
				t.Errorf("%v: %d %s%s", args, p.Code, p.Stdout.String(), out)
			}
		}
	}
}

// Tenants come with their last webhook, and how they stand. While the database is away, that is said.
func TestInboxTenants(t *testing.T) {
	s := newInboxServer(t, "")
	for args, want := range map[string]string{
		"":          `(?m)^eu/torn +20\S+Z  1 parked, features unknown +-\n/twice +20\S+Z  all right `,
		"--trouble": `^eu/acme%1B\[2J%0A +20\S+Z  1 parked +-\neu/(tenant-)+ +20\S+Z  held up, 1 waiting +-\neu/torn +20\S+Z  1 parked, features unknown +-\n$`,
		"--json":    `^\{"platform":"`,
	} {
		p := s.run(t, append([]string{"tenants"}, strings.Fields(args)...)...)
		if p.Code != 0 || p.Stderr.String() != "" || !regexp.MustCompile(want).MatchString(p.Stdout.String()) {
			t.Errorf("%s: %d %s\n%s", args, p.Code, p.Stderr.String(), p.Stdout.String())
		}
	}
	s.Fail(&engine.AwayError{Err: errors.New("connection refused")})
	if p := s.run(t, "tenants", "--trouble"); p.Code != 1 || p.Stdout.String() != "" || !strings.Contains(p.Stderr.String(), "connection refused") {
		t.Errorf("away: %d %s\n%s", p.Code, p.Stderr.String(), p.Stdout.String())
	}
}
