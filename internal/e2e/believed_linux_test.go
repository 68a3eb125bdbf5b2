package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// What people read at night must be true, and tell them what to type.

// A file that somebody has removed is still open: usher says not to stop it, and the command that it advises saves all of it.
func TestRemovedFileIsSaved(t *testing.T) {
	t.Parallel()
	for _, removed := range [][]string{{"inbox.db"}, {"inbox.db", "inbox.db-wal", "inbox.db-shm"}} {
		t.Run(strings.Join(removed, " "), func(t *testing.T) {
			t.Parallel()
			rc, dir := newReceiver(t, 503), t.TempDir()
			o := openOffice(t, rc, fileInbox(dir))
			for n := range 3 {
				o.send(testkit.Snapshot(fmt.Sprint("t-", n), 5), webhookToken)
			}
			o.figure("usher_inbox_pending", "3")
			for _, name := range removed {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			o.troubled("critical", "The inbox takes no webhooks: the inbox's file is gone", "What is in it is lost when usher stops.", "Do not stop or restart usher.")
			o.want("what it advises", o.asks("status"), "\n  usher inbox export > inbox.jsonl\n", "!Nothing that was answered 200 is lost")
			saved := o.does("export")
			o.want("export", saved, "0 {")
			path := filepath.Join(t.TempDir(), "inbox.jsonl")
			if err := os.WriteFile(path, []byte(strings.TrimPrefix(saved, "0 ")), 0o600); err != nil {
				t.Fatal(err)
			}
			o.End()
			again := openOffice(t, rc, fileInbox(t.TempDir()))
			again.want("import", again.does("import", path), "0 ")
			rc.set(200)
			again.delivered()
			again.want("ls", again.does("ls"), "crm/t-0", "crm/t-1", "crm/t-2", "!waiting")
		})
	}
}

// What the inbox says of the time before usher opened it may be a restored backup's.
func TestReceiptOfARestoredBackup(t *testing.T) {
	t.Parallel()
	rc, dir := newReceiver(t, 200), t.TempDir()
	o := openOffice(t, rc, fileInbox(dir))
	o.send(testkit.Snapshot("mill-co", 5), webhookToken)
	o.delivered()
	o.want("at first", o.asks("entitlements", "mill-co", "users"), "The receiver has it (webhook 1).", "If the billing service says something else", "\n  usher reconcile --partial --apply -- CMD\n")
	o.End()
	o = openOffice(t, rc, fileInbox(dir))
	o.want("after a restart", o.asks("entitlements", "mill-co"), "The receiver took it before usher opened this inbox, ", "If the inbox is a restored backup, the receiver may have a newer one", "!has it")
	o.send(testkit.Snapshot("mill-co", 6), webhookToken)
	o.delivered()
	o.want("what this process saw", o.asks("entitlements", "mill-co"), "The receiver has it (webhook ")
}

// An usher that only answers entitlements needs no more than SELECT. It reads while the database can be read, and never speaks of senders.
func TestEntitlementsWithSelectAlone(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	o := openOffice(t, newReceiver(t, 200), "USHER_WEBHOOK_INBOX="+server.DSN())
	o.send(testkit.Snapshot("mill-co", 5), webhookToken)
	o.send(testkit.Snapshot("other-co", 5), webhookToken)
	o.delivered()
	server.Exec(t, "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA usher TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA usher TO reader")
	inbox := strings.Replace(server.DSN(), "postgres://", "postgres://reader:@", 1)
	if _, rest, named := strings.Cut(strings.TrimPrefix(server.DSN(), "postgres://"), "@"); named {
		inbox = "postgres://reader@" + rest
	}
	settings := []string{"USHER_WEBHOOK_INBOX=" + inbox, "USHER_WEBHOOK_LISTEN=off", "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json"}
	reader := &office{run(t, append(settings, "USHER_ADMIN_TOKEN=ana:"+anasToken)), t}
	reader.Ready(t)
	reader.want("the answer", reader.may("mill-co"), `"limit":5`)
	o.send(testkit.Snapshot("mill-co", 6), webhookToken)
	testkit.Eventually(t, "the newer one", func() bool { return strings.Contains(reader.may("mill-co"), `"limit":6`) })
	reader.want("status", reader.asks("status"), "0 ", "All is well.", "!ender")
	if code, out, _ := ended(t, settings, "check"); code != 0 || !strings.Contains(out, "inbox: can be read\n") {
		t.Errorf("check: %d %s", code, out)
	}
	reader.want("what it may not do", reader.does("forget", "mill-co"), "1 ", "permission denied")
	reader.want("that is no trouble", reader.asks("status"), "0 ", "All is well.")

	server.Exec(t, "ALTER SYSTEM SET default_transaction_read_only = on")
	server.Exec(t, "SELECT pg_reload_conf()")
	testkit.Eventually(t, "the gate is hurt", func() bool { return o.send(testkit.Snapshot("late-co", 1), webhookToken).status == 503 })
	reader.want("the reader is not", reader.asks("status"), "0 ", "All is well.")
	server.Stop()
	reader.troubled("The inbox cannot be read: ", "answers for the 1 of 2 tenants that it holds in memory, and 503 for others")
	reader.want("status", reader.asks("status"), "!ender")
	reader.want("what is held", reader.asks("entitlements", "mill-co", "users"), "0 crm/mill-co may use users, limit 6\n", "usher holds this in memory", "It cannot read the inbox now")
	reader.want("what is not", reader.asks("entitlements", "other-co"), "1 ")
	reader.figure(`usher_ready{part="entitlements"}`, "1")
	testkit.Eventually(t, "answered, and stale", func() bool {
		resp, err := http.Get(reader.URL(t, "entitlements") + "/v1/check?tenant=mill-co&feature=users")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode == 204 && resp.Header.Get("Usher-Stale") != ""
	})
	page := reader.page("/webhooks")
	reader.want("the page of the failure", page, "503", "The inbox cannot be read: ", "Check the database in USHER_WEBHOOK_INBOX")
}

// A try without an answer is said after three seconds, and not only at its timeout; no line is green then.
func TestSilentReceiverIsSaid(t *testing.T) {
	t.Parallel()
	m := newMoody(t, "slow-co")
	o := openOffice(t, m.receiver, fileInbox(t.TempDir()), "USHER_WEBHOOK_TIMEOUT=1m")
	o.send(testkit.Snapshot("slow-co", 1), webhookToken)
	o.troubled("warning", "The receiver "+m.url+" has not answered for ", "the webhooks behind this one wait, too")
	o.want("its line", o.asks("status"), "gate          trouble", "receiver main has not answered for ", "!takes webhooks")
	close(m.until)
	o.delivered()
	o.wellAgain()
}

// A replica whose clock is not the database's says so: what it delivers carries its own time.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	shift := func(seconds string) {
		server.Exec(t, "CREATE OR REPLACE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT machines_clock() + interval '"+seconds+" s' $$")
	}
	server.Exec(t, "ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO machines_clock")
	shift("0")
	rc := newReceiver(t, 200)
	o := openOffice(t, rc, "USHER_WEBHOOK_INBOX="+server.DSN())
	o.send(testkit.Snapshot("mill-co", 5), webhookToken)
	o.delivered()
	o.want("clocks that agree", o.asks("status"), "0 ", "All is well.")
	shift("600") // while it runs
	o.troubled("warning", "The clock of this machine is 10 min behind the database's", "Receivers that check webhook-timestamp reject what this replica delivers", "Set the clock that is wrong, by NTP")
	shift("0")
	o.wellAgain()
	o.End()
	shift("-600") // before it starts
	o = openOffice(t, rc, "USHER_WEBHOOK_INBOX="+server.DSN())
	o.troubled("warning", "The clock of this machine is 10 min ahead of the database's", "Set the clock that is wrong, by NTP")
	o.want("the figure", o.page("/metrics"), "\nusher_inbox_clock_ahead_seconds ", "!clock_ahead_seconds 0\n")
	if o.send(testkit.Snapshot("mill-co", 6), webhookToken).status != 200 {
		t.Error("a webhook is not taken in, because the clocks differ")
	}
}
