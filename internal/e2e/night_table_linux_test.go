package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// Each failure of the table "How soon usher says so" in docs/evidence.md: the page and 'usher status' say the
// same words, the figure that its alert goes by says so, too, and what they advise works as it is typed.

const gateReady = `usher_ready{part="gate"}`

func fileInbox(dir string) string {
	return "USHER_WEBHOOK_INBOX=file:" + filepath.Join(dir, "inbox.db")
}

// moody answers as somebody says; zero: it takes the connection, and never answers.
type moody struct {
	*receiver
	hangs string // the tenant whose webhooks hang
	until chan struct{}
}

func newMoody(t *testing.T, hangs string) *moody {
	m := &moody{receiver: new(receiver), hangs: `"code":"` + hangs + `"`, until: make(chan struct{})}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := new(strings.Builder)
		_ = r.Write(body)
		if strings.Contains(body.String(), m.hangs) {
			select {
			case <-m.until:
			case <-r.Context().Done():
			}
		}
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() {
		select {
		case <-m.until:
		default:
			close(m.until)
		}
	})
	m.url = srv.URL
	return m
}

func TestNightOneTenantHangs(t *testing.T) {
	t.Parallel()
	m := newMoody(t, "slow-co")
	o := openOffice(t, m.receiver, fileInbox(t.TempDir()), "USHER_WEBHOOK_TIMEOUT=500ms")
	o.send(testkit.Snapshot("slow-co", 1), webhookToken)
	for n := range 12 {
		o.send(testkit.Snapshot(fmt.Sprint("well-", n), 1), webhookToken)
	}
	o.troubled("warning", "takes webhooks, but not those of crm/slow-co; the last answer: ", "Others' webhooks are delivered.")
	o.figure(`usher_inbox_receiver_down{receiver="main"}`, "0")
	o.want("ls", o.does("ls", "--state", "waiting"), "crm/slow-co", "!receiver is down")
	close(m.until)
	o.delivered()
	o.wellAgain()
}

func TestNightEverythingFails(t *testing.T) {
	t.Parallel()
	for _, status := range []int{500, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			rc := newReceiver(t, 200)
			o := openOffice(t, rc, fileInbox(t.TempDir()))
			o.send(testkit.Snapshot("before", 1), webhookToken)
			o.wellAgain()
			rc.set(status)
			for n := range 20 {
				o.send(testkit.Snapshot(fmt.Sprint("t-", n), 1), webhookToken)
			}
			o.troubled("critical", fmt.Sprintf("answers %d to everything: nothing is delivered", status), "No change reaches your customers", "Fix the receiver")
			o.figure(`usher_inbox_receiver_down{receiver="main"}`, "1")
			o.want("ls", o.does("ls", "--state", "waiting"), "receiver is down")
			o.want("status", o.asks("status"), "  since 20", "!Others' webhooks are delivered", "!takes webhooks, but")
			rc.set(200)
			o.delivered()
			o.wellAgain()
			o.figure(`usher_inbox_receiver_down{receiver="main"}`, "0")
		})
	}
}

func TestNightReceiverDown(t *testing.T) {
	t.Parallel()
	rc := &receiver{url: "http://" + testkit.FreeAddress(t)}
	o := openOffice(t, rc, fileInbox(t.TempDir()))
	for n := range 4 {
		o.send(testkit.Snapshot(fmt.Sprint("t-", n), 1), webhookToken)
	}
	o.troubled("critical", rc.url+" can't be reached: nothing is delivered, 4 webhooks wait")
	o.figure(`usher_inbox_receiver_down{receiver="main"}`, "1")
}

// Each of two replicas sees two tenants fail, which alone would not mean that everybody does.
func TestNightReceiverDownBehindTwoReplicas(t *testing.T) {
	t.Parallel()
	rc, inbox := newReceiver(t, 200), "USHER_WEBHOOK_INBOX="+pgtest.Schema(t)
	offices := []*office{openOffice(t, rc, inbox), openOffice(t, rc, inbox)}
	for n := range 6 {
		offices[n%2].send(testkit.Snapshot(fmt.Sprint("before-", n), 1), webhookToken)
	}
	offices[0].delivered()
	rc.set(500)
	for n := range 4 {
		offices[n%2].send(testkit.Snapshot(fmt.Sprint("t-", n), 1), webhookToken)
	}
	for _, o := range offices {
		o.troubled("critical", ": nothing is delivered, 4 webhooks wait", "No change reaches your customers")
		o.figure(`usher_inbox_receiver_down{receiver="main"}`, "1")
	}
	rc.set(200)
	offices[0].delivered()
	for _, o := range offices {
		o.wellAgain()
	}
}

func TestNightForgottenPause(t *testing.T) {
	t.Parallel()
	o := openOffice(t, newReceiver(t, 200), fileInbox(t.TempDir()))
	o.want("pause", o.does("pause"), "0 ")
	o.send(testkit.Snapshot("mill-co", 1), webhookToken)
	o.troubled("Paused: all deliveries", "Changes do not reach your customers")
	o.figure("usher_inbox_paused", "1")
	o.want("what it advises", o.asks("status"), "\n  usher inbox resume\n")
	o.want("resume", o.does("resume"), "0 ")
	o.delivered()
	o.wellAgain()
}

func TestNightRotatedWebhookSecret(t *testing.T) {
	t.Parallel()
	o := openOffice(t, newReceiver(t, 200), fileInbox(t.TempDir()))
	for range 5 { // strangers' 404s are no webhooks
		asked(t, "POST", o.URL(t, "webhooks")+"/wp-login.php", "")
	}
	o.wellAgain()
	for range 3 {
		o.send(testkit.Snapshot("mill-co", 1), "the-new-t0ken-that-usher-does-not-know")
	}
	o.troubled(" UTC failed the check of its sender: 3", "give it and the gate the same secret")
	o.figure(`usher_webhook_rejected_total{code="401"}`, "3")
}

func TestNightIPaidAndCannotUseSSO(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, 422)
	o := openOffice(t, rc, fileInbox(t.TempDir()))
	o.send(strings.Replace(testkit.Snapshot("mill-co", 3), `}],"subscriptions"`, `},{"code":"sso","name":"Single sign-on","quantity":null}],"subscriptions"`, 1), webhookToken)
	o.troubled("1 webhook of crm/mill-co is parked")
	said := o.asks("entitlements", "mill-co", "sso")
	o.want("entitlements", said, "0 ", "crm/mill-co may use sso, unlimited", "The receiver does not have it")
	command := regexp.MustCompile(`\n  (usher inbox redeliver \d+)\n`).FindStringSubmatch(said)
	if command == nil {
		t.Fatalf("no command in\n%s", said)
	}
	rc.set(200)
	o.want(command[1], o.asks(strings.Fields(command[1])[1:]...), "0 ")
	o.delivered()
	o.wellAgain()
}

func TestNightDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=40m"); err != nil {
		testkit.Missing(t, "cannot mount a small disk, as only root can: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	o := openOffice(t, newReceiver(t, 200), fileInbox(dir))
	o.send(testkit.Snapshot("before", 1), webhookToken)
	o.wellAgain()
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 40<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	invalid := 0
	testkit.Eventually(t, "invalid", func() bool {
		invalid++
		return o.send(testkit.Snapshot(fmt.Sprint("t-", invalid), 1)+strings.Repeat(" ", 60<<10), webhookToken).status == 503
	})
	o.want("from the first one on", o.asks("status"), "1 ", "critical: The inbox takes no webhooks: the disk of "+dir, " of 40 MiB are free", "Free some space on this disk")
	o.troubled("The inbox takes no webhooks: the disk of "+dir, " of 40 MiB are free", "Free some space on this disk")
	if r := o.send(odd("odd-co", 5), webhookToken); r.status != 503 || r.header.Get("Retry-After") == "" || r.header.Get("Usher-Decision") != "failed" {
		// after a 422 nobody would send it again
		t.Errorf("a webhook that is invalid: %d %v %s", r.status, r.header, r.body)
	}
	o.want("who", o.does("tenants", "--trouble"), "0 ", fmt.Sprintf("crm/t-%d  ", invalid), "crm/odd-co  ", "0  -  missed\n", "!invalid")
	o.figure(gateReady, "0")
	if code, _, _ := ended(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(o.URL(t, "admin"), "http://")}, "healthcheck"); code != 1 {
		t.Error("healthcheck says ready")
	}
	if err := os.Remove(filler); err != nil { // as advised
		t.Fatal(err)
	}
	o.figure(gateReady, "1")
	testkit.Eventually(t, "taken in again", func() bool { return o.send(testkit.Snapshot("after", 1), webhookToken).status == 200 })
	o.want("status", o.asks("status"), "!The inbox takes no webhooks")
	if r := o.send(odd("odd-co", 5), webhookToken); r.status != 422 {
		t.Errorf("%d %s", r.status, r.body)
	}
	said := o.does("tenants", "--trouble")
	if line := regexp.MustCompile(`(?m)crm/odd-co .*$`).FindString(said); !strings.HasSuffix(line, "  invalid") {
		t.Errorf("it is recorded as invalid, and no longer missed:\n%s", said)
	}
}

// The database is stopped, stands still, or may only be read.
func TestNightDatabaseAway(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	words := []string{"The inbox takes no webhooks: the inbox's database", heldInMemory, lookAtIt}
	nightDatabase(t, server, server.Stop, server.Start, words, "1 ", "missed\n", "the inbox can't be read now")
}

func TestNightDatabaseHangs(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	words := []string{"The inbox takes no webhooks: the inbox's database does not answer", heldInMemory, lookAtIt}
	nightDatabase(t, server, server.Pause, server.Resume, words, "1 ", "missed\n", "the inbox can't be read now")
}

func TestNightDatabaseReadOnly(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	set := func(what string) func() {
		return func() { server.Exec(t, "ALTER SYSTEM "+what); server.Exec(t, "SELECT pg_reload_conf()") }
	}
	nightDatabase(t, server, set("SET default_transaction_read_only = on"), set("RESET default_transaction_read_only"), []string{
		"The inbox takes no webhooks: the inbox's database can't be written: it is read-only",
		"Entitlements are answered.", "Make the database writable",
	}, "0 ", "missed", "!can't be read")
}

const (
	heldInMemory = "Entitlements are answered for the tenants that usher holds in memory"
	lookAtIt     = "Check the database in USHER_WEBHOOK_INBOX"
)

// nightDatabase is an outage, and what is said of it: by the page and the status, and by who, whom usher status advises
// to ask.
func nightDatabase(t *testing.T, server *pgtest.Server, begin, end func(), words []string, who ...string) {
	o := openOffice(t, newReceiver(t, 200), "USHER_WEBHOOK_INBOX="+server.DSN(), "USHER_WEBHOOK_INBOX_CONCURRENCY=2")
	o.send(testkit.Snapshot("mill-co", 5), webhookToken)
	o.want("pause", o.does("pause", "--tenant", "mill-co"), "0 ")
	o.send(testkit.Snapshot("mill-co", 6), webhookToken)
	o.figure("usher_inbox_pending", "1")
	o.want("entitlements", o.may("mill-co"), `"limit":6`) // from here on usher holds it in memory
	begin()
	testkit.Eventually(t, "invalid", func() bool {
		// A copy of what waits changes nothing, also where the database takes it in before the failure
		// reaches usher's connections.
		return o.send(testkit.Snapshot("mill-co", 6), webhookToken).status == 503
	})
	o.troubled(words...)
	o.figure(gateReady, "0")
	o.figure(`usher_ready{part="entitlements"}`, "1")
	o.figure("usher_inbox_pending", "1") // the last value
	o.figure("usher_inbox_paused", "1")
	o.want("entitlements", o.may("mill-co"), `"limit":6`)
	o.want("who", o.does("tenants", "--trouble"), append(who, "crm/mill-co")...)
	end()
	o.figure(gateReady, "1")
	testkit.Eventually(t, "over", func() bool { return !strings.Contains(o.asks("status"), "takes no webhooks") })
}

// databaseDisk is a disk with everything that a database server stores, but for what it needs to run.
type databaseDisk string

// smallDisk gives a server such a disk, for the tables that are made from then on.
func smallDisk(t *testing.T, server *pgtest.Server) databaseDisk {
	t.Helper()
	dir := t.TempDir()
	owner, err := user.Lookup("postgres")
	if err == nil {
		err = syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m,mode=700,uid="+owner.Uid)
	}
	if err != nil {
		testkit.Missing(t, "cannot give PostgreSQL a small disk, as only root can: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	for above := filepath.Dir(dir); above != "/tmp" && above != "/"; above = filepath.Dir(above) {
		_ = os.Chmod(above, 0o755)
	}
	server.Exec(t, "CREATE TABLESPACE small LOCATION '"+dir+"'")
	server.Exec(t, "ALTER SYSTEM SET default_tablespace = small")
	server.Exec(t, "SELECT pg_reload_conf()")
	testkit.Eventually(t, "in use", func() bool { return server.Exec(t, "SHOW default_tablespace") == "small" })
	return databaseDisk(dir)
}

func (d databaseDisk) filler() string { return filepath.Join(string(d), "filler") }

func (d databaseDisk) fill(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(d.filler(), make([]byte, 16<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

func (d databaseDisk) free(t *testing.T) {
	t.Helper()
	if err := os.Remove(d.filler()); err != nil {
		t.Fatal(err)
	}
}

// A database whose disk is full rejects what is large, and still writes what is small.
func TestNightDatabaseFull(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	disk := smallDisk(t, server)
	o := openOffice(t, newReceiver(t, 200), "USHER_WEBHOOK_INBOX="+server.DSN())
	o.send(testkit.Snapshot("before", 1), webhookToken)
	o.wellAgain()
	disk.fill(t)
	n := 0
	testkit.Eventually(t, "invalid", func() bool {
		n++
		return o.send(testkit.Snapshot(fmt.Sprint("t-", n), 1)+strings.Repeat(" ", 60<<10), webhookToken).status == 503
	})
	o.troubled("The inbox takes no webhooks: the disk of the inbox's database is full", "Free some space on the disk of the database")
	o.figure(gateReady, "0")
	disk.free(t)
	o.figure(gateReady, "1")
	testkit.Eventually(t, "taken in again", func() bool { return o.send(testkit.Snapshot("after", 1), webhookToken).status == 200 })
}

// The other side: a wrong client secret, and a billing service that is down. The runbook's 'usher check' says it, too.
func TestNightOutbound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret, env := filepath.Join(t.TempDir(), "client-secret"), filepath.Join(t.TempDir(), "usher.env")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(secret, clientSecret)
	write(env, "USHER_BASE_URL="+w.toService.URL()+"\nUSHER_CLIENT_ID=app\nUSHER_LISTEN=127.0.0.1:0\nUSHER_ADMIN_LISTEN=127.0.0.1:0\nUSHER_LOG_FORMAT=json\n")
	o := &office{run(t, []string{"USHER_CLIENT_SECRET_FILE=" + secret}, "--env-file", env), t}
	o.Ready(t)
	o.wellAgain()
	check := func() string { // as docs/operations.md has it, for root
		code, stdout, stderr := ended(t, []string{"USHER_CLIENT_SECRET_FILE=" + secret}, "--env-file", env, "check")
		return fmt.Sprintf("%d %s%s", code, stdout, stderr)
	}
	o.want("check", check(), "0 ")
	write(secret, "wr0ng")
	o.troubled("Port main: token request rejected: invalid_client", "Calls go on with the current token", "Check USHER_CLIENT_ID and USHER_CLIENT_SECRET_FILE")
	o.want("check", check(), "1 ", "invalid_client")
	w.billing.Revoke()
	asked(t, "POST", o.URL(t, "main")+"/graphql", testkit.Query, "Content-Type", "application/json")
	o.troubled("critical", "invalid_client, and the billing service does not accept the current token any more", "Every call on this port is answered with an error", "Check USHER_CLIENT_ID and USHER_CLIENT_SECRET_FILE")
	o.want("status", o.asks("status"), "!Calls go on", "!token valid for")
	write(secret, clientSecret) // as advised
	o.wellAgain()

	w.billing.FailGraphQL(sandbox.Fault{Status: 503})
	call := func() {
		asked(t, "POST", o.URL(t, "main")+"/graphql", testkit.Query, "Content-Type", "application/json")
	}
	for range 3 {
		call()
	}
	o.troubled("the billing service answered 3 of 4 calls with a 5xx", "usher only passes them on")
	w.toService.Disturb(testkit.Disturbance{Break: testkit.Reset, Direction: testkit.Up})
	for range 3 {
		call()
	}
	o.troubled("critical", "usher failed 4 of 7 calls in the last 5 minutes, the last one with UPSTREAM_UNREACHABLE", "Check the billing service and the way to it.")
}
