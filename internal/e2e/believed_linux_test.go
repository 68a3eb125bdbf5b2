package e2e

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// What people read at night must be true, and tell them what to type.

// What the inbox says of the time before usher opened it may be a restored backup's.
func TestReceiptOfARestoredBackup(t *testing.T) {
	t.Parallel()
	rc, dir := newReceiver(t, 200), t.TempDir()
	o := openOffice(t, rc, fileInbox(dir))
	o.send(testkit.Snapshot("mill-co", 5), webhookToken)
	o.delivered()
	o.want("at first", o.asks("entitlements", "mill-co", "users"), "The receiver has it (webhook 1).", "!If the billing service says something else")
	o.want("what it may not use", o.asks("entitlements", "mill-co"), "If the billing service says something else", "\n  usher reconcile --partial --apply -- CMD\n")
	o.End()
	o = openOffice(t, rc, fileInbox(dir))
	o.want("after a restart", o.asks("entitlements", "mill-co"), "The receiver took it before usher opened this inbox, ", "If the inbox is a restored backup, the receiver may have a newer one", "!has it")
	o.send(testkit.Snapshot("mill-co", 6), webhookToken)
	o.delivered()
	o.want("what this process saw", o.asks("entitlements", "mill-co"), "The receiver has it (webhook ")
}

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
	gateUpOf(t, "file:"+backup).back(5 * time.Minute) // it was made five minutes ago
	ends := time.UnixMicro(gateUpOf(t, "file:"+backup).at()).UTC()
	o = openOffice(t, rc, fileInbox(dir))
	o.send(testkit.Snapshot("mill-co", 6), webhookToken)
	o.delivered()
	o.want("before", o.asks("entitlements", "mill-co", "users"), "limit 6", "The receiver has it (webhook 2).")
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
	environ := []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(o.URL(t, "admin"), "http://"), "USHER_ADMIN_TOKEN=" + anasToken, "LINE=" + testkit.Says("crm/mill-co", "users=6")}
	if code, out, err := ended(t, environ, "reconcile", "--apply", "--yes", "--", "sh", "-c", `echo "$LINE"`); code != 0 || !strings.Contains(out, "users 5 → 6") {
		t.Errorf("reconcile: %d %s%s", code, out, err)
	}
	o.delivered()
	o.wellAgain()
	o.want("afterwards", o.asks("entitlements", "mill-co", "users"), "limit 6", "The receiver has it (webhook ")
}

// What 'usher entitlements' advises is typed as it stands, at a terminal: the tenant has paid, its webhook
// was lost, and a minute later it may.
func TestAdvisedReconcile(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "curl", "jq"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	gate, dir := testkit.FreeAddress(t), t.TempDir()
	s := startSandbox(t, "--webhooks-to", "http://"+gate+"/webhooks", "--token", webhookToken)
	environ := append(s.environ, "USHER_SCOPE=billing:read", "USHER_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN="+testkit.FreeAddress(t), "USHER_WEBHOOK_LISTEN="+gate, "USHER_WEBHOOK_TOKEN="+webhookToken,
		"USHER_LOG_FORMAT=json", fileInbox(dir), "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_ADMIN_TOKEN=ana:"+anasToken)
	settings := filepath.Join(dir, "usher.env")
	if err := os.WriteFile(settings, []byte(strings.Join(environ, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &office{startProcess(t, []string{"PATH=" + os.Getenv("PATH")}, "--env-file", settings), t}
	o.Ready(t)
	s.want(t, 0, "200 queued\n", "send", "acme", "users=25")
	s.want(t, 0, "200 queued\n", "send", "other", "users=1")
	o.delivered()
	s.want(t, 0, "its webhook was lost", "send", "acme", "users=25", "sso", "--lost")
	s.want(t, 0, "its webhook was lost", "send", "newcomer", "users=2", "--lost")
	code, out, _ := ended(t, nil, "--env-file", settings, "entitlements", "acme", "sso")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	advised := strings.TrimSpace(lines[len(lines)-1])
	if code != 1 || !strings.HasPrefix(out, "crm/acme may not use sso\n") || !strings.HasPrefix(advised, "usher ") || !strings.HasSuffix(advised, " -- CMD") {
		t.Fatalf("%d\n%s", code, out)
	}

	if err := os.Symlink(testkit.Binary(t), filepath.Join(dir, "usher")); err != nil {
		t.Fatal(err)
	}
	list, err := filepath.Abs("../../examples/reconcile/tenants.sh")
	if err != nil {
		t.Fatal(err)
	}
	keyboard, screen := newTerminal(t)
	var shown testkit.Output
	go io.Copy(&shown, keyboard)
	typed := exec.Command("bash", "-c", strings.TrimSuffix(advised, "CMD")+list)
	typed.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir}
	typed.Stdin, typed.Stdout, typed.Stderr = screen, screen, screen
	typed.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := typed.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-typed.Process.Pid, syscall.SIGKILL) })
	over := make(chan struct{})
	go func() { defer close(over); _ = typed.Wait() }()
	testkit.Eventually(t, "it asks, or ends", func() bool {
		select {
		case <-over:
			return true
		default:
			return strings.Contains(shown.String(), "[y/N]")
		}
	})
	_, _ = keyboard.WriteString("y\n")
	<-over
	if code := typed.ProcessState.ExitCode(); code != 0 || !strings.Contains(shown.String(), "crm/acme") {
		t.Errorf("exit code %d:\n%s", code, shown.String())
	}
	if code, out, _ := ended(t, nil, "--env-file", settings, "entitlements", "acme", "sso"); code != 0 {
		t.Errorf("afterwards: %d %s", code, out)
	}
	testkit.Eventually(t, "the receiver has it", func() bool {
		return strings.Contains(s.Stderr.String(), "receiver: acme (crm/acme): sso, users ≤ 25: 200\n")
	})
}
