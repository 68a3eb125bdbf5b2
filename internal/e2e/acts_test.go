//go:build unix

package e2e

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"usher/internal/testkit"
)

// inboxOf runs the built usher inbox against a running usher, and returns its exit code and all that it prints.
func inboxOf(t *testing.T, p *testkit.Usher, args ...string) (int, string) {
	t.Helper()
	c := startProcess(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(p.URL(t, "admin"), "http://")}, append([]string{"inbox"}, args...)...)
	<-c.Ended
	return c.Code, c.Stdout.String() + c.Stderr.String()
}

// What is paused stays so over a restart, however usher ended; what is discarded or erased is never delivered.
func TestActsOnTheBinary(t *testing.T) {
	t.Parallel()
	receiver, receiverURL := testkit.NewLedger(t)
	environ := testkit.NewService(t).Environ("USHER_WEBHOOK_FORWARD_URL="+receiverURL, "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"))
	p := startProcess(t, environ)
	does := func(want string, args ...string) {
		t.Helper()
		if code, out := inboxOf(t, p, args...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("usher inbox %s: %d\n%s\nwant %q", strings.Join(args, " "), code, out, want)
		}
	}
	send := func(tenant string, users int) {
		t.Helper()
		if status, _, answer := testkit.Post(t, p.URL(t, "webhooks")+"/webhooks", testkit.Snapshot(tenant, users)); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	send("acme", 1)
	testkit.Eventually(t, "delivered", func() bool { return receiver.Last("acme") == 1 })
	does("paused: tenant crm/acme; to resume: usher inbox resume --tenant crm/acme\n", "pause", "--tenant", "acme")
	does("paused: all deliveries", "pause")
	for i, tenant := range []string{"acme", "acme", "left", "other"} {
		send(tenant, i+2)
	}
	if code, out := inboxOf(t, p, "discard", "--state", "waiting"); code != 1 || !strings.Contains(out, "Discard 4 webhooks? [y/N]") || !strings.Contains(out, "nothing was done") {
		t.Errorf("asked, and nobody answers: %d %s", code, out)
	}
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		p.Signal(t, end)
		<-p.Ended
		p = startProcess(t, environ)
		does("Paused since ", "ls", "--state", "waiting")
	}
	does("2 discarded", "discard", "2")
	does("crm/left erased: 1 webhook", "erase", "left", "--yes")
	if code, out := inboxOf(t, p, "erase", "left", "--yes"); code != 1 || !strings.Contains(out, "unknown tenant left") {
		t.Errorf("%d %s", code, out)
	}
	does("resumed: all deliveries", "resume")
	testkit.Eventually(t, "the others are delivered", func() bool { return receiver.Last("other") == 5 })
	if receiver.Count("acme") != 1 || receiver.Count("left") != 0 {
		t.Errorf("paused or erased, and delivered: %v %v", receiver.All("acme"), receiver.All("left"))
	}
	does("paused", "ls", "--tenant", "crm/acme", "--state", "waiting")
	does("resumed: tenant crm/acme", "resume", "--tenant", "crm/acme")
	testkit.Eventually(t, "the rest is delivered", func() bool { return receiver.Last("acme") == 3 })
	if got := fmt.Sprint(receiver.All("acme")); got != "[1 3]" {
		t.Errorf("delivered %s", got)
	}
	does("discarded by hand", "ls", "--state", "discarded")
	does("changes since 1, the last webhook that the receiver accepted (it did not accept 2)", "show", "3")
}

// Each person has a file with a token of their own, which says who did it. A token for looking cannot act or
// make a backup, and reads the metrics.
func TestWhoMay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string, lines ...string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	p := startProcess(t, nil, "--env-file", file("gate.env", "USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0",
		"USHER_ADMIN_TOKEN='ana:t0ken-of-ana-t0ken,ben:t0ken-of-ben-t0ken'", `USHER_ADMIN_READ_TOKEN="prom:t0ken-to-look-t0ken"`, "USHER_WEBHOOK_INBOX=file:"+dir+"/inbox.db"))
	admin := p.URL(t, "admin")
	listen := "USHER_ADMIN_LISTEN=" + strings.TrimPrefix(admin, "http://")
	ben := file("ben.env", listen, "USHER_ADMIN_TOKEN=t0ken-of-ben-t0ken", "USHER_WEBHOOK_FORWARD_SIGNING_KEY_FILE=/nowhere")
	looks := file("looks.env", listen, "USHER_ADMIN_READ_TOKEN=t0ken-to-look-t0ken")
	for _, tc := range []struct {
		env  string
		args string
		code int
		want string
	}{
		{ben, "inbox pause", 0, "paused: all deliveries; to resume: usher --env-file " + ben + " inbox resume\n"},
		{looks, "inbox ls", 0, "Paused since "},
		{looks, "inbox resume", 1, "usher: this token is read-only: it cannot act\n"},
		{looks, "inbox backup " + dir + "/copy.db", 1, "usher: this token is read-only: it cannot act\n"},
		{looks, "inbox actions", 0, "  pause  "},
		{looks, "inbox actions", 0, "  ben ("},
		{looks, "healthcheck", 0, `{"problems":[],"ready":true}` + "\n"},
	} {
		c := startProcess(t, nil, append([]string{"--env-file", tc.env}, strings.Fields(tc.args)...)...)
		<-c.Ended
		if out := c.Stdout.String() + c.Stderr.String(); c.Code != tc.code || !strings.Contains(out, tc.want) {
			t.Errorf("usher --env-file %s %s: %d %s, want %d with %s", tc.env, tc.args, c.Code, out, tc.code, tc.want)
		}
	}
	req, err := http.NewRequest("GET", admin+"/metrics", nil)
	if err == nil {
		req.SetBasicAuth("anybody", "t0ken-to-look-t0ken")
	}
	if r := do(req, err); r.status != 200 {
		t.Errorf("metrics: %+v", r)
	}
	if strings.Contains(p.Stderr.String(), "t0ken") {
		t.Error("a token is in the log")
	}
}

// What was erased of a person is nowhere afterwards: in no table, nor in the bytes of the file and its log,
// on no page, in no backup, and never was in usher's own log. It was in webhooks that were delivered, parked,
// waited, are invalid (with a copy, discarded, accepted, superseded), and in the receiver's words.
func TestErasedIsNowhere(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		const person = "jane.roe@example.com"
		rc := newReceiver(t, 200)
		rc.say("we know " + person)
		o := openOffice(t, rc, inbox)
		with := func(body string) string {
			return strings.Replace(body, `"name":"T"`, `"name":"`+person+`","account":{"contacts":[{"email":"`+person+`"}]}`, 1)
		}
		send := func(body string, status int) {
			t.Helper()
			if r := o.send(body, webhookToken); r.status != status {
				t.Fatalf("%d %s", r.status, r.body)
			}
		}
		settled := func() {
			t.Helper()
			testkit.Eventually(t, "tried", func() bool { return !strings.Contains(o.does("ls", "--state", "waiting"), " 0  ") })
		}
		send(testkit.Snapshot("other", 1), 200)
		send(with(testkit.Snapshot("acme", 1)), 200)
		settled()
		rc.set(422)
		send(with(testkit.Snapshot("acme", 2)), 200)
		settled()
		for n := range 3 { // one is superseded, one discarded, one accepted, and a copy
			send(with(odd("acme", 10+n)), 422)
			send(with(odd("acme", 10+n)), 422)
		}
		o.want("discard", o.does("discard", o.latest("invalid")), "0 ")
		o.want("accept", o.does("accept", o.latest("invalid"), "--yes"), "0 ") // its features can't be read
		send(with(strings.Replace(testkit.Snapshot("acme", 3), `"tenant":{"id":`, `"tenant":{"id":["`+person+`"],"no":`, 1)), 422)
		send(with(testkit.Snapshot("acme", 3))+strings.Repeat(" ", 3), 200)
		settled()
		rc.set(500)
		send(with(testkit.Snapshot("acme", 4)), 200)
		send(with(testkit.Snapshot("acme", 4)), 200) // a duplicate
		settled()
		send(with(odd("acme", 20)), 422)
		o.want("it is there", o.does("show", o.latest("invalid")), person)
		o.want("erase", o.does("erase", "crm/acme", "--yes"), "0 ")

		places := map[string]string{"the log": o.Stderr.String(), "the list": o.does("ls"), "the actions": o.does("actions"), "the figures": o.page("/metrics")}
		for _, path := range []string{"/", "/webhooks", "/tenants", "/actions", "/tenant?platform=crm&code=acme", "/api/status", "/api/webhooks?limit=500", "/tenants?search=" + url.QueryEscape("jane")} {
			places[path] = strings.ReplaceAll(o.page(path), `value="jane"`, "")
		}
		for id := range 20 {
			places[fmt.Sprint("webhook ", id)] = o.page(fmt.Sprintf("/api/webhooks/%d", id))
		}
		if file, is := strings.CutPrefix(inbox, "USHER_WEBHOOK_INBOX=file:"); is {
			o.want("a backup", o.does("backup", file+".backup"), "0 ")
			// which is emptied once nobody reads
			testkit.Eventually(t, "it is not in the file's bytes, nor in its log's", func() bool {
				names, _ := filepath.Glob(file + "*")
				for _, name := range names {
					if bytes, err := os.ReadFile(name); err != nil || strings.Contains(string(bytes), "jane") {
						return false
					}
				}
				return len(names) >= 2
			})
		} else {
			for table, rows := range tables(t, strings.TrimPrefix(inbox, "USHER_WEBHOOK_INBOX=")) {
				places["table "+table] = rows
			}
		}
		if len(places) < 32 {
			t.Errorf("only %d places were looked at", len(places))
		}
		for place, text := range places {
			if at := strings.Index(strings.ToLower(text), "jane"); at >= 0 {
				t.Errorf("it is in %s: %.200q", place, text[max(0, at-100):])
			}
		}
		o.want("an erasure's entry", o.does("actions"), "crm/acme\n")
		o.want("others are left", o.does("ls"), "crm/other")
	})
}

// tables are the rows of all tables of an inbox, as text.
func tables(t *testing.T, database string) map[string]string {
	t.Helper()
	address, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	schema := address.Query().Get("schema")
	address.RawQuery = "sslmode=disable"
	conn, err := pgx.Connect(t.Context(), address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	texts := func(query string) (all []string) {
		rows, err := conn.Query(t.Context(), query)
		if err == nil {
			all, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	found := make(map[string]string)
	for _, table := range texts("SELECT table_name::text FROM information_schema.tables WHERE table_schema = '" + schema + "'") {
		for _, row := range texts("SELECT r::text FROM " + schema + "." + table + " r") {
			found[table] += row + "\n"
			for _, part := range strings.Split(row, `\\x`)[1:] {
				end := strings.IndexFunc(part, func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) })
				bytes, _ := hex.DecodeString(part[:max(0, end)])
				found[table] += string(bytes) + "\n"
			}
		}
	}
	return found
}
