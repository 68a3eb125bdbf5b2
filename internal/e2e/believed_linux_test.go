package e2e

import (
	"database/sql"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// What people read at night must be true, and tell them what to type.

// An usher that only answers entitlements needs no more than SELECT. It reads while the database can be read,
// and never speaks of senders.
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
	reader.want("what it may not do", reader.does("pause"), "1 ", "permission denied")
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

// While usher is stopped, somebody puts back an older copy of the file. usher says from when on this inbox
// may miss webhooks; it does not claim that the receiver has what the copy says; and a reconcile ends it.
func TestOlderCopyOfTheFile(t *testing.T) {
	t.Parallel()
	rc, dir, backup := newReceiver(t, 200), t.TempDir(), filepath.Join(t.TempDir(), "inbox.db")
	file := filepath.Join(dir, "inbox.db")
	copied := func(from, to string) {
		t.Helper()
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	o := openOffice(t, rc, fileInbox(dir))
	o.send(testkit.Snapshot("mill-co", 5), webhookToken)
	o.delivered()
	o.End() // the newest transactions are in inbox.db now
	copied(file, backup)
	ends := madeFiveMinutesAgo(t, backup)
	o = openOffice(t, rc, fileInbox(dir))
	o.send(testkit.Snapshot("mill-co", 6), webhookToken)
	o.delivered()
	o.want("before", o.asks("entitlements", "mill-co", "users"), "limit 6", "The receiver has it, since ")
	o.End()

	for _, suffix := range []string{"", "-wal", "-shm", ".lock"} {
		_ = os.Remove(file + suffix)
	}
	copied(backup, file)
	o = openOffice(t, rc, fileInbox(dir))
	o.troubled("critical", "No gate was ready to take webhooks from "+ends.Format(time.DateTime)+" to ", "'usher help reconcile'")
	o.want("what the receiver has", o.asks("entitlements", "mill-co", "users"), "limit 5", "The receiver took it before usher opened this inbox, ",
		"If the inbox is a restored backup, the receiver may have a newer one: reconcile with the billing service", "!The receiver has it")
	o.want("the tenant's page", o.page("/tenant?platform=crm&code=mill-co"), "The receiver took it before usher opened this inbox", "!The receiver has it")
	o.want("reconcile", o.reconcile("--apply --yes", printLines, payload("mill-co", "users=6")), "0 ", "users 5 → 6")
	o.delivered()
	o.wellAgain()
	o.want("afterwards", o.asks("entitlements", "mill-co", "users"), "limit 6", "The receiver has it, since ")
}

// madeFiveMinutesAgo sets back when a gate last said in this inbox that it is up, and returns that time.
func madeFiveMinutesAgo(t *testing.T, inbox string) time.Time {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+inbox+"?mode=rw")
	var at int64
	if err == nil {
		defer db.Close()
		err = db.QueryRow("UPDATE missed SET gate_up = gate_up - ? RETURNING gate_up", (5 * time.Minute).Microseconds()).Scan(&at)
	}
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMicro(at).UTC()
}
