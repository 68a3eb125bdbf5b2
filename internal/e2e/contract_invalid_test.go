//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// office is an usher with an inbox, and how people and senders meet it. Admins are ana and, at the terminal, too.
type office struct {
	*testkit.Usher
	t *testing.T
}

const anasToken = "an4s-t0ken"

func openOffice(t *testing.T, rc *receiver, inbox string, extra ...string) *office {
	o := &office{run(t, gateAlone(rc.url, append([]string{inbox, "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_TOKEN=" + webhookToken,
		"USHER_WEBHOOK_MAX_BODY=100KiB", "USHER_ADMIN_TOKEN=ana:" + anasToken}, extra...)...)), t}
	o.Ready(t)
	return o
}

func (o *office) send(body string, token string) reply {
	o.t.Helper()
	return asked(o.t, "POST", hooks(o.t, o.Usher), body, "Content-Type", "application/json", "X-Webhook-Token", token)
}

// does is usher inbox, and its exit code before what it prints.
func (o *office) does(args ...string) string {
	o.t.Helper()
	code, stdout, stderr := ended(o.t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(o.URL(o.t, "admin"), "http://"), "USHER_ADMIN_TOKEN=" + anasToken}, append([]string{"inbox"}, args...)...)
	return fmt.Sprintf("%d %s%s", code, stdout, stderr)
}

func (o *office) page(path string) string {
	o.t.Helper()
	return asked(o.t, "GET", o.URL(o.t, "admin")+path, "", "Authorization", "Bearer "+anasToken, "Accept", "text/html").body
}

// overview is what the page says of now.
func (o *office) overview() string { o.t.Helper(); return testkit.Wrong(o.page("/")) }

// figure waits until a figure is what it should be: it may be as old as counting takes.
func (o *office) figure(name, value string) {
	o.t.Helper()
	testkit.Eventually(o.t, name+" is "+value, func() bool { return strings.Contains(o.page("/metrics"), "\n"+name+" "+value+"\n") })
}

// may is what the tenant may use, as soon as the inbox can be read: a busy database may take longer than usher waits.
func (o *office) may(tenant string) (answer string) {
	o.t.Helper()
	testkit.Eventually(o.t, "the inbox can be read", func() bool {
		_, answer = testkit.Get(o.t, o.URL(o.t, "entitlements")+"/v1/entitlements/"+tenant+"/users")
		return !strings.Contains(answer, "NOT_READY")
	})
	return answer
}

// latest is the id of the newest webhook of a state.
func (o *office) latest(state string) string {
	o.t.Helper()
	_, list, _ := strings.Cut(o.does("ls", "--state", state), " ")
	id, _, _ := strings.Cut(list, " ")
	return id
}

func (o *office) want(what, got string, parts ...string) {
	o.t.Helper()
	for _, part := range parts {
		if not, is := strings.CutPrefix(part, "!"); is && strings.Contains(got, not) || !is && !strings.Contains(got, part) {
			o.t.Errorf("%s: %q in\n%.3000s", what, part, got)
		}
	}
}

// What the contract says of invalid webhooks and of actions: sentence by sentence, on both kinds of inbox.
func TestInvalidAndDone(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		rc := newReceiver(t, 200)
		o := openOffice(t, rc, inbox)
		for _, step := range []struct {
			sentence string
			holds    func()
		}{
			{"all is well at first", func() {
				o.send(testkit.Snapshot("acme", 5), webhookToken)
				testkit.Eventually(t, "delivered", func() bool { return rc.count() == 1 })
				o.want("overview", o.overview(), "All is well")
			}},
			{"whose sender failed a check is counted, and never stored", func() {
				if r := o.send(odd("acme", 6), "wrong"); r.status != 401 {
					t.Errorf("%d", r.status)
				}
				o.want("ls", o.does("ls", "--state", "invalid"), "0 ", "!invalid")
				o.figure(`usher_webhook_received_total{decision="rejected"}`, "1")
			}},
			{"a type that is in neither list is counted, logged once, and not stored", func() {
				for range 2 {
					o.send(`{"type":"Nonsense","payload":{}}`, webhookToken)
				}
				o.figure(`usher_webhook_invalid_total{reason="type"}`, "2")
				if n := strings.Count(o.Stderr.String(), "webhooks of this type are rejected"); n != 1 {
					t.Errorf("logged %d times", n)
				}
				o.want("ls", o.does("ls", "--state", "invalid"), "!Nonsense")
			}},
			{"it is stored, with its body, every fault, sender, time, platform and tenant", func() {
				body := strings.Replace(strings.Replace(testkit.Snapshot("acme", 6), `"features":[`, `"features":[{"code":"sso","name":"S"},`, 1), `"subscriptions":[]`, `"subscriptions":[{"plan":{"code":1}}]`, 1)
				if r := o.send(body, webhookToken); r.status != 422 || r.header.Get("Usher-Decision") != "rejected" {
					t.Errorf("%d %s", r.status, r.body)
				}
				id := o.latest("invalid")
				o.want("ls", o.does("ls", "--state", "invalid"), "invalid  crm/acme", "/payload/change/subscriptions/0/plan/code")
				o.want("show", o.does("show", id), "invalid", "crm/acme", "/payload/change/subscriptions/0/plan/code", "127.0.0.1", "received", `"code": 1`, "would have added sso", "users 5 → 6", "answered    422")
			}},
			{"from the first one on: the log, the overview, the tenant's page, the figure", func() {
				log := regexp.MustCompile(`.*"level":"WARN".*"webhook answered".*`).FindString(o.Stderr.String())
				o.want("log", log, `"tenant":"acme"`, `"platform":"crm"`, `"id":`+o.latest("invalid")+",", `"fault":"/payload/change/subscriptions/0/plan/code"`, `"faults":1`)
				o.figure("usher_inbox_invalid", "1")
				o.want("overview", o.overview(), "usher rejected 1 webhook of crm/acme", "/payload/change/subscriptions/0/plan/code", `href="/webhooks/`+o.latest("invalid")+`"`)
				o.want("tenant", o.page("/tenant?platform=crm&code=acme"), "usher rejected", "/payload/change/subscriptions/0/plan/code")
				if list := o.page("/webhooks"); strings.Count(list, `the sender got 422`) != 1 {
					t.Errorf("it is listed twice, or never:\n%s", list)
				}
				o.want("what is invalid never counts", o.may("acme"), `"limit":5,`)
			}},
			{"a copy is not stored again", func() {
				body := odd("copied", 5)
				o.send(body, webhookToken)
				o.send(body, webhookToken)
				if n := strings.Count(o.Stderr.String(), `"id":`+o.latest("invalid")+","); n != 2 {
					t.Errorf("its id is in the log %d times", n)
				}
				list := o.page("/api/webhooks?state=invalid&tenant=copied")
				if got := regexp.MustCompile(`"(received|changed)":"([^"]*)"`).FindAllStringSubmatch(list, -1); len(got) != 2 || got[0][2] != got[1][2] {
					t.Errorf("it is invalid since it first came: %s", list)
				}
				o.figure("usher_inbox_invalid", "2")
			}},
			{"a later snapshot of the same tenant deals with all of them", func() {
				for n := range 12 {
					o.send(odd("many", 100+n), webhookToken)
				}
				o.figure("usher_inbox_invalid", "14")
				o.send(testkit.Snapshot("many", 1), webhookToken)
				o.send(testkit.Snapshot("acme", 7), webhookToken)
				o.figure("usher_inbox_invalid", "1")
				o.want("ls", o.does("ls", "--state", "invalid"), "!crm/many", "!crm/acme", "crm/copied")
			}},
			{"of one that is too large the first 64 KiB", func() {
				if r := o.send(testkit.Snapshot("huge", 5)+strings.Repeat(" ", 200<<10), webhookToken); r.status != 413 {
					t.Errorf("%d", r.status)
				}
				id := o.latest("invalid")
				o.want("ls", o.does("ls", "--state", "invalid"), id+"  invalid  -  ")
				if n := len(o.page("/webhooks/" + id + "/payload")); n != 64<<10 {
					t.Errorf("%d bytes", n)
				}
				o.want("accept", o.does("accept", id), "1 ", "only the beginning", "Raise USHER_WEBHOOK_MAX_BODY")
				o.want("discard", o.does("discard", id), "0 ")
			}},
			{"accept: exit 1 with the reason", func() {
				for body, why := range map[string]string{
					"nonsense": "not JSON",
					`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":true}}}`: "cannot be read for certain",
				} {
					o.send(body, webhookToken)
					id := o.latest("invalid")
					o.want("its tenant", o.does("ls", "--state", "invalid"), id+"  invalid  -  ")
					o.want("show", o.does("show", id), "0 ", "compared with nothing (its tenant is not known)")
					o.want("accept", o.does("accept", id), "1 ", why, "Correct it in the billing service, and send it again from there")
					o.want("discard", o.does("discard", id), "0 ")
				}
				o.want("accept", o.does("accept", o.latest("discarded")), "1 ", "somebody has dealt with it")
			}},
			{"accept takes it in as it is, behind what its lane has, as a new webhook; --force if the tenant has a newer snapshot", func() {
				o.want("accept", o.does("accept", o.latest("invalid")), "0 ", "accepted: its new id is ")
				o.want("features unknown", o.may("copied"), "FEATURES_UNKNOWN")
				testkit.Eventually(t, "delivered", func() bool { _, body := rc.last(t); return body == odd("copied", 5) })
				o.want("pause", o.does("pause", "--tenant", "crm/copied"), "0 ")
				o.send(odd("copied", 6), webhookToken)
				first := o.latest("invalid")
				o.send(odd("copied", 7), webhookToken)
				second := o.latest("invalid")
				o.want("accept", o.does("accept", first), "0 ", "Paused since ")
				o.want("accept the newer one", o.does("accept", second), "0 ")
				o.want("resume", o.does("resume", "--tenant", "crm/copied"), "0 ")
				testkit.Eventually(t, "delivered, in order", func() bool { _, got := rc.last(t); return got == odd("copied", 7) })
				o.figure("usher_inbox_invalid", "0")
				o.want("overview", o.overview(), "usher cannot tell what 1 tenant (crm/copied) may use", "!usher rejected")
				testkit.Eventually(t, "another one delivered", func() bool {
					return strings.Contains(o.does("ls", "--tenant", "crm/many", "--limit", "1"), "delivered")
				})
				o.send(odd("many", 2), webhookToken)
				older := o.latest("invalid")
				if r := o.send(testkit.Snapshot("many", 1), webhookToken); r.status != 200 {
					t.Errorf("%d", r.status)
				}
				o.want("an older one", o.does("accept", "--yes", older), "1 ", "of the same tenant is newer. Use --force")
				o.want("forced", o.does("accept", "--yes", "--force", older), "0 ")
				o.send(testkit.Snapshot("many", 3), webhookToken)
				testkit.Eventually(t, "the last one delivered", func() bool { _, got := rc.last(t); return got == testkit.Snapshot("many", 3) })
			}},
			{"erase reaches invalid ones, too", func() {
				o.send(odd("gone", 5), webhookToken)
				o.want("erase", o.does("erase", "crm/gone", "--yes"), "0 ", "1 webhook")
				o.figure("usher_inbox_invalid", "0")
			}},
			{"actions: when, who, what it was asked for, and how many", func() {
				o.does("redeliver", o.latest("delivered"), "--force")
				name := "ana"
				if u, err := user.Current(); err == nil {
					name += " (" + u.Username + ")"
				}
				list := o.does("actions")
				for _, line := range []string{`accept +1 +` + regexp.QuoteMeta(name) + ` +\d+`, `discard +1 .*\d+`, `pause +0 .*tenant crm/copied`, `resume +0 .*tenant crm/copied`,
					`erase +1 +` + regexp.QuoteMeta(name) + ` +crm/gone\n`, `redeliver +1 .*\d+`} {
					if !regexp.MustCompile(`(?m)^(0 )?\d{4}-\d\d-\d\dT\S+  ` + line).MatchString(list) {
						t.Errorf("no %s in\n%s", line, list)
					}
				}
				o.want("page", o.page("/actions"), "crm/gone", name)
			}},
		} {
			t.Log(step.sentence)
			step.holds()
			if t.Failed() {
				return
			}
		}
	})
}

// What only other settings show of invalid webhooks.
func TestInvalidElsewhere(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, 200)
	file := func() string { return "USHER_WEBHOOK_INBOX=file:" + filepath.Join(t.TempDir(), "inbox.db") }
	t.Run("nobody takes its platform", func(t *testing.T) {
		u := run(t, []string{file(), "USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=docs", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=" + rc.url, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json"})
		u.Ready(t)
		if status, _, answer := testkit.Post(t, hooks(t, u), testkit.Snapshot("acme", 5)); status != 422 {
			t.Fatalf("%d %s", status, answer)
		}
		all := invalidOf(t, u, "crm/acme")
		if len(all) != 1 {
			t.Fatalf("%+v", all)
		}
		const why = `no receiver takes webhooks of its platform "crm". Give the platform to a receiver (USHER_WEBHOOK_RECEIVERS_n_PLATFORMS), or set USHER_WEBHOOK_FORWARD_URL, then restart usher`
		if code, out := inboxIn(t, u, "accept", all[0].ID); code != 1 || !strings.Contains(out, why) {
			t.Errorf("%d %s", code, out)
		}
		admin := strings.TrimPrefix(u.URL(t, "admin"), "http://")
		if code, out, problem := ended(t, []string{"USHER_ADMIN_LISTEN=" + admin}, "entitlements", "crm/acme"); code != 1 || !strings.Contains(out, "It can't be accepted: "+why+".\n") {
			t.Errorf("%d %s%s", code, out, problem)
		}
	})
	t.Run("too large, and only a signature vouches", func(t *testing.T) {
		u := run(t, gateAlone(rc.url, file(), "USHER_WEBHOOK_SIGNING_KEY=s3cret", "USHER_WEBHOOK_MAX_BODY=10KiB"))
		u.Ready(t)
		if status, _, _ := testkit.Post(t, hooks(t, u), testkit.Snapshot("acme", 5)+strings.Repeat(" ", 20<<10)); status != 413 {
			t.Errorf("%d", status)
		}
		wantFigures(t, u, map[string]string{"usher_inbox_invalid": "0"})
	})
	t.Run("without an inbox", func(t *testing.T) {
		u := run(t, gateAlone(rc.url))
		u.Ready(t)
		testkit.Post(t, hooks(t, u), odd("acme", 5))
		wantFigures(t, u, map[string]string{"usher_inbox_invalid": "1", `usher_webhook_invalid_total{reason="schema"}`: "1"})
		for path, part := range map[string]string{"/": "usher rejected 1 webhook of crm/acme", "/webhooks?state=rejected": "crm/acme"} {
			if r := asked(t, "GET", u.URL(t, "admin")+path, "", "Accept", "text/html"); r.status != 200 || !strings.Contains(r.body, part) {
				t.Errorf("%s: %d, no %q in\n%s", path, r.status, part, r.body)
			}
		}
		if !regexp.MustCompile(`"level":"WARN".*"webhook answered".*"tenant":"acme"`).MatchString(u.Stderr.String()) {
			t.Error("the log says nothing")
		}
		testkit.Post(t, hooks(t, u), testkit.Snapshot("acme", 5))
		wantFigures(t, u, map[string]string{"usher_inbox_invalid": "0"})
	})
}

// odd is a webhook of the right sender that usher rejects: its quantity is no number.
func odd(tenant string, users int) string {
	return strings.Replace(testkit.Snapshot(tenant, users), fmt.Sprintf(`"quantity":%d`, users), fmt.Sprintf(`"quantity":"%d"`, users), 1)
}

// invalidOf are the invalid webhooks of a tenant, as the API has them.
func invalidOf(t *testing.T, u *testkit.Usher, tenant string) (all []struct {
	ID, Tenant, State, Decision, Why, From string
	Status                                 int
	Changes                                []string
}) {
	t.Helper()
	_, body := testkit.Get(t, u.URL(t, "admin")+"/api/webhooks?state=invalid&tenant="+url.QueryEscape(tenant))
	lines := strings.Split(strings.TrimSpace(body), "\n") // the last one ends the list
	if err := json.Unmarshal([]byte("["+strings.Join(lines[:len(lines)-1], ",")+"]"), &all); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return all
}

// Killed between the store of an invalid webhook and its answer: it is there after the restart, and what its
// sender sends again is a copy.
func TestInvalidAndKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the built usher")
	}
	for name, prepare := range map[string]func(t *testing.T) (inbox string, stored func(tenant string) bool, latency func(time.Duration)){
		"file": func(t *testing.T) (string, func(string) bool, func(time.Duration)) {
			file := filepath.Join(t.TempDir(), "inbox.db")
			return "file:" + file, func(tenant string) bool {
				text, _ := os.ReadFile(file + "-wal")
				return bytes.Contains(text, []byte(tenant))
			}, func(time.Duration) {}
		},
		"PostgreSQL": func(t *testing.T) (string, func(string) bool, func(time.Duration)) {
			database := pgtest.Schema(t)
			address, err := url.Parse(database)
			if err != nil {
				t.Fatal(err)
			}
			wire := pgtest.Cut(t, address.Host)
			schema := address.Query().Get("schema")
			address.RawQuery = "sslmode=disable"
			conn, err := pgx.Connect(t.Context(), address.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close(t.Context()) })
			return wire.Through(database), func(tenant string) bool {
				n := 0
				// the table may not be there yet
				_ = conn.QueryRow(t.Context(), "SELECT count(*) FROM "+schema+".content WHERE position($1::bytea IN body) > 0", []byte(tenant)).Scan(&n)
				return n > 0
			}, wire.Latency
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inbox, stored, latency := prepare(t)
			environ := gateAlone(newReceiver(t, 200).url, "USHER_WEBHOOK_INBOX="+inbox)
			hit := 0
			for n := 1; n <= 10 && hit == 0; n++ { // the moment is short in a file
				tenant := fmt.Sprint("killed-", n)
				p := startProcess(t, environ)
				p.Ready(t)
				gate, answer := hooks(t, p), make(chan reply, 1)
				latency(40 * time.Millisecond) // for as long usher does not know that the database has it
				go func() {
					answer <- post(strings.TrimSuffix(strings.TrimPrefix(gate, "http://"), "/webhooks"), "/webhooks", odd(tenant, 5))
				}()
				for !stored(tenant) && len(answer) == 0 { // nothing else says so
					time.Sleep(100 * time.Microsecond)
				}
				p.Kill()
				latency(0)
				got := <-answer
				if got.status != 0 && got.status != 422 {
					t.Fatalf("%d %s", got.status, got.body)
				}
				p = startProcess(t, environ)
				p.Ready(t)
				all := invalidOf(t, p, tenant)
				// its body was in the log, and not yet the end of the transaction
				if name == "file" && got.status == 0 && len(all) == 0 {
					p.Kill()
					continue
				}
				if len(all) != 1 {
					t.Fatalf("after the restart: %+v", all)
				}
				if got.status == 0 {
					hit++
				}
				if status, _, body := testkit.Post(t, hooks(t, p), odd(tenant, 5)); status != 422 {
					t.Fatalf("sent again: %d %s", status, body)
				}
				if again := invalidOf(t, p, tenant); len(again) != 1 || again[0].ID != all[0].ID {
					t.Fatalf("sent again: %+v", again)
				}
				p.Kill()
			}
			t.Logf("killed before the answer: %d", hit)
		})
	}
}
