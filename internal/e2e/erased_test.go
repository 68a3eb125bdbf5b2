//go:build unix

package e2e

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"usher/internal/testkit"
)

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

// tables are the rows of all tables of an inbox, as text, with what its bytes say.
func tables(t *testing.T, inbox string) map[string]string {
	t.Helper()
	db, schema := schemaOf(t, inbox)
	texts := func(query string) (all []string) {
		rows, err := db.Query(query)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var text string
			if err := rows.Scan(&text); err != nil {
				t.Fatal(err)
			}
			all = append(all, text)
		}
		return all
	}
	found := make(map[string]string)
	for _, table := range texts("SELECT table_name::text FROM information_schema.tables WHERE table_schema = '" + schema + "'") {
		for _, row := range texts("SELECT r::text FROM " + schema + "." + table + " r") {
			found[table] += row + "\n"
			for _, digits := range regexp.MustCompile(`\\x([0-9a-f]+)`).FindAllStringSubmatch(row, -1) {
				bytes, _ := hex.DecodeString(digits[1])
				found[table] += string(bytes) + "\n"
			}
		}
	}
	return found
}
