package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"usher/internal/admin/status"
	"usher/internal/sandbox"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// nights makes each kind of trouble on the built usher, and mends it as it is advised.
var nights = []struct {
	name string // a kind, and what makes it
	long bool   // it takes minutes
	// begin makes it wrong, and returns what ends it; nil: only a restart does.
	begin func(n *watch) (end func())
	says  []string // of 'usher status'
}{
	{"file-gone", false, fileIsGone, []string{"critical", "Do not stop or restart usher", "usher inbox backup"}},
	{"inbox-fails: the disk is full", false, diskIsFull, []string{"critical", "The inbox takes no webhooks: the disk of ", "Free some space on this disk"}},
	{"inbox-fails: the database is stopped", false, databaseStops, []string{"critical", "The inbox takes no webhooks: ", "Check the database in USHER_WEBHOOK_INBOX"}},
	{"inbox-fails: the database hangs", false, databaseHangs, []string{"critical", "The inbox takes no webhooks: ", "Check the database in USHER_WEBHOOK_INBOX"}},
	{"inbox-fails: the database is read-only", false, databaseIsReadOnly, []string{"critical", "it is read-only", "Make the database writable"}},
	{"inbox-fails: the disk of the database is full", false, databaseIsFull, []string{"critical", "the disk of the inbox's database is full", "Free some space"}},
	{"receiver-down: it answers 500 to everything", false, receiverFails, []string{"critical", "answers 500 to everything: nothing is delivered, 6 webhooks wait", "Fix the receiver"}},
	{"receiver-down: without an inbox", false, receiverFailsAtOnce, []string{"critical", "answers 500 to everything: 3 webhooks failed", "Fix the receiver"}},
	{"webhooks-wait: one tenant's fail", false, oneTenantFails, []string{"warning", "takes webhooks, but not those of crm/slow-co", "'usher inbox ls'"}},
	{"webhooks-wait: it does not answer", false, receiverIsSilent, []string{"warning", "has not answered for "}},
	{"deliveries-late", true, deliveriesAreLate, []string{"warning", " a minute late, or later"}},
	{"inbox-full", false, inboxIsFull, []string{"warning", "The inbox has no room for a webhook", "USHER_WEBHOOK_INBOX_MAX_BYTES"}},
	{"row-damaged", false, rowIsDamaged, []string{"critical", "The inbox has a damaged row of crm/odd-co", "Restore a backup"}},
	{"copy", false, copyIsOpened, []string{"critical", "This inbox is a copy that a backup made at ", "usher inbox resume"}},
	{"no-receiver", false, nobodyTakesIt, []string{"critical", "1 webhook waits, but no receiver takes its platform", "USHER_WEBHOOK_RECEIVERS_n_PLATFORMS"}},
	{"parked", false, receiverRejects, []string{"critical", "1 webhook of crm/mill-co is parked", "usher inbox redeliver --state parked"}},
	{"invalid", false, contentIsWrong, []string{"critical", "usher rejected 1 webhook of crm/odd-co", "'usher inbox accept ID'"}},
	{"missed", true, webhooksAreMissed, []string{"critical", "usher answered", "with a 5xx"}},
	{"gate-unreached", true, gateIsUnreached, []string{"critical", "12 webhooks came through the billing service's log alone", "the service got 404", "usher check"}},
	{"log-unread", false, logIsRefused, []string{"warning", "cannot read the billing service's webhook log", "workflow:read"}},
	{"questions-fail", false, questionsFail, []string{"critical", "2 questions of the billing service were not answered"}},
	{"features-unknown", false, featuresAreUnknown, []string{"critical", "usher cannot tell what 1 tenant (crm/quay-inc) may use"}},
	{"tenant-renamed", false, tenantIsRenamed, []string{"warning", "may have been renamed", "crm/old-co", "crm/new-co"}},
	{"answers-fail", false, answersFail, []string{"critical", "about what a tenant may use"}},
	{"token-refused", false, secretIsWrong, []string{"warning", "token request rejected: invalid_client, and the current token is valid for another", "Check USHER_CLIENT_ID and USHER_CLIENT_SECRET_FILE"}},
	{"token-unreachable", false, tokenEndpointIsAway, []string{"critical", "every call fails"}},
	{"tokens-revoked", false, tokensAreRevoked, []string{"warning", "2 tokens were rejected long before they expired", "API client of its own"}},
	{"calls-fail: the service answers 503", false, serviceFails, []string{"warning", "the billing service answered 3 of 4 calls with a 5xx", "usher only passes them on"}},
	{"calls-fail: the service is away", false, serviceIsAway, []string{"critical", "usher failed 3 of 4 calls in the last 5 minutes, the last one with UPSTREAM_UNREACHABLE", "Check the billing service and the way to it."}},
	{"senders-rejected", false, sendersAreRejected, []string{"warning", " UTC failed the check of its sender: 3", "give it and the gate the same secret"}},
	{"clocks-differ", false, clocksDiffer, []string{"warning", "The clock of this machine is 10m behind the database's", "by NTP"}},
	{"certificate-ends", false, certificateEnds, []string{"warning", "The TLS certificate of the webhook gate expires in 2d"}},
	{"paused", false, deliveriesArePaused, []string{"Paused: all deliveries", "Changes do not reach your customers"}},
	{"notifications-fail", true, chatRefuses, []string{"warning", "usher cannot send notifications: the other side answered 500"}},
	{"not-ready", false, firstTokenIsLate, []string{"critical", "outbound is not ready: port main has had no token yet"}},
}

// Whatever can be wrong is said by the page, 'usher status' and usher_trouble as soon as it is; with -long, also by a
// message and, with the rules as they are shipped, by an alert; and over is over, everywhere.
func TestNight(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the built usher")
	}
	made := make(map[string]bool)
	for _, row := range nights {
		kind, _, _ := strings.Cut(row.name, ":")
		made[kind] = true
	}
	for _, k := range status.Kinds {
		if !made[k.Name] {
			t.Errorf("nobody can make %s", k.Name)
		}
	}
	var prometheus *tower
	if *long {
		prometheus = startPrometheus(t)
	}
	for _, row := range nights {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if row.long && !*long {
				t.Skip("takes minutes: with -long")
			}
			kind, _, _ := strings.Cut(row.name, ":")
			n := &watch{t: t, rc: newReceiver(t, 200), kind: kind}
			server := httptest.NewServer(&n.chat)
			t.Cleanup(server.Close)
			n.notify = "USHER_NOTIFY_URL=" + server.URL + "/t0psecret"
			end := row.begin(n)
			began := time.Now()
			n.troubled(row.says...)
			if *long {
				t.Logf("%s: on the page after %s", row.name, time.Since(began).Round(time.Second/10))
				prometheus.watch(t, n.office, row.name)
				if kind != status.NotifyFails {
					n.chat.heard(t, "a message", func(said string) bool {
						// What was missed meanwhile may be said a minute before.
						return !strings.HasPrefix(said, "OVER") && (kind != "inbox-fails" || strings.Contains(said, "The inbox takes no webhooks"))
					})
				}
				t.Logf("%s: in the chat after %s", row.name, time.Since(began).Round(time.Second/10))
				alert := kind
				if kind == "not-ready" {
					alert = "token-unreachable" // as soon as the request has failed
				}
				prometheus.fires(t, row.name, alert, true)
				t.Logf("%s: an alert after %s", row.name, time.Since(began).Round(time.Second/10))
			}
			if end == nil {
				return
			}
			end()
			testkit.Eventually(t, kind+" is over", func() bool { return !strings.Contains(n.page("/metrics"), `usher_trouble{kind="`+kind+`"`) })
			if *long {
				for after := time.Now(); !strings.Contains(n.asks("status", "--since", "1h"), "\nover: ") && time.Since(after) < 2*time.Minute; {
					time.Sleep(time.Second)
				}
				n.want("the history", n.asks("status", "--since", "1h"), "\nover: ")
				if kind != status.NotifyFails {
					n.chat.heard(t, "that it is over", func(said string) bool { return strings.HasPrefix(said, "OVER") })
				}
				prometheus.fires(t, row.name, kind, false)
			}
			if log := n.Stderr.String() + n.chat.all(); strings.Contains(log, "t0psecret") || strings.Contains(log, webhookToken) || strings.Contains(log, clientSecret) {
				t.Errorf("a secret:\n%s", log)
			}
		})
	}
}

// watch is one usher, the built one, with a chat of its own.
type watch struct {
	*office
	t      *testing.T
	rc     *receiver
	kind   string
	notify string
	chat   chat
}

// open starts the gate, and what else the settings say.
func (n *watch) open(extra ...string) {
	n.t.Helper()
	n.start(gateAlone(n.rc.url, append([]string{"USHER_WEBHOOK_TOKEN=" + webhookToken, "USHER_ADMIN_TOKEN=ana:" + anasToken}, extra...)...))
}

func (n *watch) start(environ []string) {
	n.t.Helper()
	n.office = &office{startProcess(n.t, append(environ, n.notify)), n.t}
}

// opened is an usher with an inbox in a file, that is well.
func (n *watch) opened(extra ...string) {
	n.t.Helper()
	n.open(append([]string{fileInbox(n.t.TempDir()), "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0"}, extra...)...)
	n.Ready(n.t)
}

func (n *watch) take(tenant string, users int) {
	n.t.Helper()
	if r := n.send(testkit.Snapshot(tenant, users), webhookToken); r.status != 200 {
		n.t.Fatalf("%s: %d %s", tenant, r.status, r.body)
	}
}

func (n *watch) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// refused sends webhooks until one gets a 5xx.
func (n *watch) refused(more int) {
	n.t.Helper()
	i := 0
	testkit.Eventually(n.t, "a 5xx", func() bool {
		i++
		return n.send(testkit.Snapshot(fmt.Sprint("t-", i), 1)+strings.Repeat(" ", more), webhookToken).status == 503
	})
}

// accepted sends webhooks until one is taken in.
func (n *watch) accepted() {
	n.t.Helper()
	testkit.Eventually(n.t, "taken in again", func() bool { return n.send(testkit.Snapshot("after", 1), webhookToken).status == 200 })
}

// later mends something that is over only when it has been well for half a minute.
func later(mend, well func()) func() {
	if !*long {
		return nil
	}
	return func() {
		mend()
		time.Sleep(31 * time.Second) // a real program: nothing to wait on
		well()
	}
}

func fileIsGone(n *watch) func() {
	dir := n.t.TempDir()
	n.open(fileInbox(dir))
	n.Ready(n.t)
	n.take("mill-co", 1)
	n.must(os.Remove(filepath.Join(dir, "inbox.db")))
	return nil
}

func diskIsFull(n *watch) func() {
	dir := n.t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=40m"); err != nil {
		testkit.Missing(n.t, "cannot mount a small disk, as only root can: %v", err)
	}
	n.t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	n.open(fileInbox(dir))
	n.Ready(n.t)
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 40<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		n.t.Fatal(err)
	}
	n.refused(60 << 10)
	n.want("from the first one on", n.asks("status"), "1 ", "critical: The inbox takes no webhooks: the disk of "+dir)
	return func() { n.must(os.Remove(filler)); n.accepted() }
}

// onDatabase starts an usher on a server, and has it fail.
func (n *watch) onDatabase(server *pgtest.Server, fail, mend func()) func() {
	n.open("USHER_WEBHOOK_INBOX="+server.DSN(), "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0")
	n.Ready(n.t)
	n.take("mill-co", 5)
	n.want("entitlements", n.may("mill-co"), `"limit":5`) // from here on usher holds it in memory
	fail()
	n.refused(60 << 10)
	n.want("entitlements", n.may("mill-co"), `"limit":5`)
	return func() { mend(); n.accepted() }
}

func databaseStops(n *watch) func() {
	server := pgtest.New(n.t)
	return n.onDatabase(server, server.Stop, server.Start)
}

func databaseHangs(n *watch) func() {
	server := pgtest.New(n.t)
	return n.onDatabase(server, server.Pause, server.Resume)
}

func databaseIsReadOnly(n *watch) func() {
	server := pgtest.New(n.t)
	set := func(what string) func() {
		return func() { server.Exec(n.t, "ALTER SYSTEM "+what); server.Exec(n.t, "SELECT pg_reload_conf()") }
	}
	return n.onDatabase(server, set("SET default_transaction_read_only = on"), set("RESET default_transaction_read_only"))
}

// A database whose disk is full rejects what is large, and still writes what is small.
func databaseIsFull(n *watch) func() {
	server := pgtest.New(n.t)
	disk := smallDisk(n.t, server)
	filler := filepath.Join(disk, "filler")
	return n.onDatabase(server, func() {
		if err := os.WriteFile(filler, make([]byte, 16<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			n.t.Fatal(err)
		}
	}, func() { n.must(os.Remove(filler)) })
}

// smallDisk gives a server a small disk for the tables that are made from then on.
func smallDisk(t *testing.T, server *pgtest.Server) (dir string) {
	t.Helper()
	dir = t.TempDir()
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
	return dir
}

func rowIsDamaged(n *watch) func() {
	server := pgtest.New(n.t)
	n.open("USHER_WEBHOOK_INBOX=" + server.DSN())
	n.Ready(n.t)
	n.take("odd-co", 1)
	server.Exec(n.t, "UPDATE usher.lane SET bytes = 1, waiting = -1, due = 0 WHERE tenant = 'odd-co'")
	return nil
}

func copyIsOpened(n *watch) func() {
	n.opened()
	n.take("mill-co", 5)
	file := filepath.Join(n.t.TempDir(), "copy.db")
	n.want("a backup", n.does("backup", file), "0 ")
	n.open("USHER_WEBHOOK_INBOX=file:" + file)
	n.Ready(n.t)
	return func() { n.want("resume", n.does("resume"), "0 ") }
}

func receiverFails(n *watch) func() {
	n.opened()
	n.rc.set(500)
	for i := range 6 {
		n.take(fmt.Sprint("t-", i), 1)
	}
	return func() { n.rc.set(200); n.delivered() }
}

func receiverFailsAtOnce(n *watch) func() {
	n.open("USHER_WEBHOOK_TRIES=1")
	n.Ready(n.t)
	n.rc.set(500)
	for i := range 3 {
		n.send(testkit.Snapshot(fmt.Sprint("t-", i), 1), webhookToken)
	}
	return func() { n.rc.set(200); n.accepted() }
}

// moody hangs for one tenant, until somebody closes until.
type moody struct {
	*receiver
	until chan struct{}
}

func newMoody(t *testing.T, hangs string) *moody {
	m := &moody{receiver: new(receiver), until: make(chan struct{})}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte(`"code":"`+hangs+`"`)) {
			select {
			case <-m.until:
			case <-r.Context().Done():
			}
		}
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(sync.OnceFunc(func() {
		select {
		case <-m.until:
		default:
			close(m.until)
		}
	}))
	m.url = srv.URL
	return m
}

func oneTenantFails(n *watch) func() {
	m := newMoody(n.t, "slow-co")
	n.rc = m.receiver
	n.opened("USHER_WEBHOOK_TIMEOUT=500ms")
	n.take("slow-co", 1)
	for i := range 12 {
		n.take(fmt.Sprint("well-", i), 1)
	}
	return func() { close(m.until); n.delivered() }
}

func receiverIsSilent(n *watch) func() {
	m := newMoody(n.t, "slow-co")
	n.rc = m.receiver
	n.opened("USHER_WEBHOOK_TIMEOUT=1h")
	n.take("slow-co", 1)
	return func() { close(m.until); n.delivered() }
}

// The receiver asks for a minute's patience, once for each tenant.
func deliveriesAreLate(n *watch) func() {
	var mu sync.Mutex
	seen := make(map[string]bool)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("webhook-id")
		mu.Lock()
		defer mu.Unlock()
		if !seen[id] {
			seen[id] = true
			w.Header().Set("Retry-After", "61")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	n.t.Cleanup(srv.Close)
	n.rc = &receiver{url: srv.URL}
	n.opened()
	for i := range 14 {
		n.take(fmt.Sprint("t-", i), 1)
		time.Sleep(15 * time.Second)
	}
	return nil // after minutes in which none was late
}

func inboxIsFull(n *watch) func() {
	n.opened("USHER_WEBHOOK_INBOX_MAX_BYTES=64KiB")
	n.rc.set(500)
	n.refused(20 << 10)
	return func() { n.rc.set(200); n.delivered(); n.accepted() }
}

func nobodyTakesIt(n *watch) func() {
	inbox := fileInbox(n.t.TempDir())
	serve := func(platform string) {
		n.start([]string{"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=" + platform, "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=" + n.rc.url, "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
			"USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json", "USHER_WEBHOOK_TOKEN=" + webhookToken, "USHER_ADMIN_TOKEN=ana:" + anasToken, inbox})
		n.Ready(n.t)
	}
	serve("crm")
	n.rc.set(500)
	n.take("mill-co", 1)
	n.End()
	serve("docs")
	return func() { n.want("discard", n.does("discard", "--state", "waiting", "--yes"), "0 ") }
}

func receiverRejects(n *watch) func() {
	n.opened()
	n.rc.set(422)
	n.take("mill-co", 1)
	return func() {
		n.rc.set(200)
		n.want("redeliver", n.does("redeliver", "--state", "parked", "--yes"), "0 ")
		n.delivered()
	}
}

func contentIsWrong(n *watch) func() {
	n.opened()
	n.send(odd("odd-co", 5), webhookToken)
	return func() { n.want("discard", n.does("discard", "--state", "invalid", "--yes"), "0 ") }
}

func webhooksAreMissed(n *watch) func() {
	server := pgtest.New(n.t)
	n.onDatabase(server, server.Stop, server.Start)()
	time.Sleep(time.Minute) // a real program; what a second attempt brings in that time was not missed
	return nil              // a reconcile does
}

func questionsFail(n *watch) func() {
	var away atomic.Bool
	away.Store(true)
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if away.Load() {
			panic(http.ErrAbortHandler)
		}
	}))
	n.t.Cleanup(srv.Close)
	n.rc = &receiver{url: srv.URL}
	n.opened("USHER_WEBHOOK_SYNC_TYPES=CheckoutValidation")
	ask := func() {
		n.send(`{"type":"CheckoutValidation","payload":{"tenant":{"code":"acme"}}}`, webhookToken)
	}
	ask()
	ask()
	return func() { away.Store(false); ask() }
}

func featuresAreUnknown(n *watch) func() {
	n.opened()
	dark := strings.Replace(testkit.Snapshot("quay-inc", 1), `"features":[{"code":"users","name":"Users","quantity":1}],`, "", 1)
	n.send(dark, webhookToken)
	return func() { n.take("quay-inc", 2) }
}

func tenantIsRenamed(n *watch) func() {
	n.opened()
	for _, code := range []string{"old-co", "new-co"} {
		n.send(strings.Replace(testkit.Snapshot("old-co", 1), `"code":"old-co"`, `"code":"`+code+`"`, 1), webhookToken)
	}
	if *long {
		return nil // an erasure takes it out of the history, too
	}
	return func() { n.want("erase", n.does("erase", "crm/old-co", "--yes"), "0 ") }
}

// An usher that only answers, and is not allowed to read any more.
func answersFail(n *watch) func() {
	server := pgtest.New(n.t)
	gate := openOffice(n.t, n.rc, "USHER_WEBHOOK_INBOX="+server.DSN())
	gate.send(testkit.Snapshot("mill-co", 5), webhookToken)
	n.start([]string{"USHER_WEBHOOK_INBOX=" + server.DSN(), "USHER_WEBHOOK_LISTEN=off", "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0",
		"USHER_LOG_FORMAT=json", "USHER_ADMIN_TOKEN=ana:" + anasToken})
	n.Ready(n.t)
	server.Exec(n.t, "ALTER TABLE usher.snapshot RENAME TO away")
	for i := range 5 {
		testkit.Get(n.t, fmt.Sprint(n.URL(n.t, "entitlements"), "/v1/entitlements/t-", i))
	}
	return later(func() { server.Exec(n.t, "ALTER TABLE usher.away RENAME TO snapshot") }, func() { n.may("mill-co") })
}

// onService starts an usher that calls the billing service, once.
func (n *watch) onService() (w *world, secret string) {
	w, secret = newWorld(n.t), filepath.Join(n.t.TempDir(), "client-secret")
	n.must(os.WriteFile(secret, []byte(clientSecret), 0o600))
	n.start([]string{"USHER_BASE_URL=" + w.toService.URL(), "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET_FILE=" + secret, "USHER_LISTEN=127.0.0.1:0",
		"USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json", "USHER_ADMIN_TOKEN=ana:" + anasToken})
	n.Ready(n.t)
	n.call(1)
	return w, secret
}

// logIsRefused starts an usher whose API client may not read the webhook log.
func logIsRefused(n *watch) func() {
	w := newWorld(n.t)
	n.readsLog(w.toService.URL())
	return nil // usher asks again in a minute
}

// gateIsUnreached plays a service whose webhooks go to a path that answers 404.
func gateIsUnreached(n *watch) func() {
	var events []map[string]any
	for i := range 12 {
		events = append(events, map[string]any{
			"url": "https://gate.example.com/webhooks/wrong", "responseCode": "404", "payload": testkit.Snapshot(fmt.Sprint("t-", i), 1),
		})
	}
	var made sync.Once
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/oauth/token" {
			fmt.Fprint(w, `{"access_token":"a-token","token_type":"Bearer","expires_in":7200}`)
			return
		}
		made.Do(func() { // while usher is there; it looks again when they are settled
			for _, e := range events {
				e["createdAt"] = time.Now()
			}
		})
		nodes, _ := json.Marshal(events)
		w.Header()["Date"] = nil // which has whole seconds
		fmt.Fprintf(w, `{"data":{"webhookEvents":{"nodes":%s,"pageInfo":{"hasNextPage":false}}}}`, nodes)
	}))
	n.t.Cleanup(service.Close)
	n.readsLog(service.URL)
	return func() { n.take("mill-co", 1) }
}

// readsLog starts an usher that catches up with a service's webhook log.
func (n *watch) readsLog(service string) {
	n.opened("USHER_BASE_URL="+service, "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET="+clientSecret, "USHER_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_CATCH_UP_URL=https://gate.example.com/webhooks")
}

func (n *watch) call(times int) {
	n.t.Helper()
	for range times {
		asked(n.t, "POST", n.URL(n.t, "main")+"/graphql", testkit.Query, "Content-Type", "application/json")
	}
}

func secretIsWrong(n *watch) func() {
	_, secret := n.onService()
	n.must(os.WriteFile(secret, []byte("wr0ng"), 0o600))
	return func() { n.must(os.WriteFile(secret, []byte(clientSecret), 0o600)) }
}

func tokenEndpointIsAway(n *watch) func() {
	w, _ := n.onService()
	w.billing.FailTokens(sandbox.Fault{Status: 503})
	w.billing.Revoke()
	n.call(1)
	return func() { w.billing.FailTokens(sandbox.Fault{}) }
}

func tokensAreRevoked(n *watch) func() {
	w, _ := n.onService()
	for i := range 2 {
		if i > 0 && *long {
			time.Sleep(time.Minute) // it lasts for twice as long
		}
		w.billing.Revoke()
		n.call(1)
	}
	return nil // when a token has been good for a while
}

func serviceFails(n *watch) func() {
	w, _ := n.onService()
	w.billing.FailGraphQL(sandbox.Fault{Status: 503})
	n.call(3)
	return later(func() { w.billing.FailGraphQL(sandbox.Fault{}) }, func() { n.call(1) })
}

func serviceIsAway(n *watch) func() {
	w, _ := n.onService()
	w.toService.Disturb(testkit.Disturbance{Break: testkit.Reset, Direction: testkit.Up})
	n.call(3)
	return later(func() { w.toService.Disturb(testkit.Disturbance{}) }, func() { n.call(1) })
}

func sendersAreRejected(n *watch) func() {
	n.opened()
	for range 5 { // strangers' 404s are no webhooks
		asked(n.t, "POST", n.URL(n.t, "webhooks")+"/wp-login.php", "")
	}
	for range 3 {
		n.send(testkit.Snapshot("mill-co", 1), "the-new-t0ken-that-usher-does-not-know")
	}
	return func() { n.take("mill-co", 1) }
}

func clocksDiffer(n *watch) func() {
	server := pgtest.New(n.t)
	shift := func(seconds string) {
		server.Exec(n.t, "CREATE OR REPLACE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT machines_clock() + interval '"+seconds+" s' $$")
	}
	server.Exec(n.t, "ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO machines_clock")
	shift("0")
	n.open("USHER_WEBHOOK_INBOX=" + server.DSN())
	n.Ready(n.t)
	shift("600")
	if *long {
		return nil // the history goes by that clock
	}
	return func() { shift("0") }
}

func certificateEnds(n *watch) func() {
	const days = 24 * time.Hour
	cert, key := testkit.CertificateUntil(n.t, time.Now().Add(3*days-time.Minute), "127.0.0.1")
	n.open("USHER_WEBHOOK_TLS_CERT_FILE="+cert, "USHER_WEBHOOK_TLS_KEY_FILE="+key)
	n.Ready(n.t)
	return func() {
		newCert, newKey := testkit.CertificateUntil(n.t, time.Now().Add(30*days), "127.0.0.1")
		n.must(os.Rename(newKey, key))
		n.must(os.Rename(newCert, cert))
	}
}

func deliveriesArePaused(n *watch) func() {
	n.opened()
	n.want("pause", n.does("pause"), "0 ")
	n.take("mill-co", 1)
	n.want("what it advises", n.asks("status"), "\n  usher inbox resume\n")
	return func() { n.want("resume", n.does("resume"), "0 "); n.delivered() }
}

func chatRefuses(n *watch) func() {
	n.opened()
	n.chat.refuse(true)
	n.want("pause", n.does("pause"), "0 ")
	for began := time.Now(); !strings.Contains(n.asks("status"), "cannot send notifications") && time.Since(began) < 2*time.Minute; {
		time.Sleep(time.Second) // a real program: it says it after a minute
	}
	return func() {
		n.chat.refuse(false)
		n.chat.heard(n.t, "what waited to be said", func(string) bool { return true })
		n.want("resume", n.does("resume"), "0 ")
	}
}

func firstTokenIsLate(n *watch) func() {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	n.must(err)
	n.t.Cleanup(func() { silent.Close() })
	n.start([]string{"USHER_BASE_URL=http://" + silent.Addr().String(), "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=" + clientSecret, "USHER_LISTEN=127.0.0.1:0",
		"USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json", "USHER_ADMIN_TOKEN=ana:" + anasToken})
	return nil // token-unreachable says it when the request has failed
}

// chat takes a text, and refuses anything else, as chats do.
type chat struct {
	mu      sync.Mutex
	said    []string // lines
	refuses bool
}

func (c *chat) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	err := json.NewDecoder(r.Body).Decode(&body)
	said, isText := body["text"].(string)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuses || err != nil || r.Method != http.MethodPost || len(body) != 1 || !isText || r.Header.Get("Content-Type") != "application/json; charset=utf-8" {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	c.said = append(c.said, strings.Split(said, "\n")...)
}

func (c *chat) refuse(refuses bool) { c.mu.Lock(); defer c.mu.Unlock(); c.refuses = refuses }

func (c *chat) all() string { c.mu.Lock(); defer c.mu.Unlock(); return strings.Join(c.said, "\n") }

// begun are the lines in which something begins, or is over.
func (c *chat) begun() (all []string) {
	for _, line := range strings.Split(c.all(), "\n") {
		if word, _, _ := strings.Cut(line, " "); slices.Contains([]string{"CRITICAL:", "WARNING:", "OVER"}, word) {
			all = append(all, line)
		}
	}
	return all
}

// heard waits for a line, which takes minutes.
func (c *chat) heard(t *testing.T, what string, is func(line string) bool) {
	t.Helper()
	for began := time.Now(); time.Since(began) < 4*time.Minute; time.Sleep(time.Second) {
		if slices.ContainsFunc(c.begun(), is) {
			return
		}
	}
	t.Errorf("%s was not heard, but\n%s", what, c.all())
}

// tower is a Prometheus with the rules as they are shipped, which is told of each usher.
type tower struct {
	address string
	dir     string
	mu      sync.Mutex // guards the targets
	targets []map[string]any
}

func startPrometheus(t *testing.T) *tower {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		testkit.Missing(t, "there is no prometheus here: install Debian's package")
	}
	p := &tower{address: testkit.FreeAddress(t), dir: t.TempDir()}
	rules, err := filepath.Abs(root + "/deploy/helm/usher/files/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 5s, evaluation_interval: 5s}\nrule_files: [%s]\nscrape_configs:\n- job_name: usher\n  authorization: {credentials: %s}\n"+
		"  file_sd_configs: [{files: [%s/targets.json], refresh_interval: 5s}]\n", rules, anasToken, p.dir)
	if err := os.WriteFile(filepath.Join(p.dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config.file="+p.dir+"/prometheus.yml", "--storage.tsdb.path="+p.dir+"/data", "--web.listen-address="+p.address)
	testkit.Start(t, cmd)
	return p
}

func (p *tower) watch(t *testing.T, o *office, name string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets = append(p.targets, map[string]any{"targets": []string{strings.TrimPrefix(o.URL(t, "admin"), "http://")}, "labels": map[string]string{"night": name}})
	list, err := json.Marshal(p.targets)
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir, "next"), list, 0o600)
	}
	if err == nil {
		err = os.Rename(filepath.Join(p.dir, "next"), filepath.Join(p.dir, "targets.json"))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fires waits until the alert of a kind fires, or does not.
func (p *tower) fires(t *testing.T, name, kind string, want bool) {
	t.Helper()
	var body string
	for began := time.Now(); time.Since(began) < 4*time.Minute; time.Sleep(time.Second) {
		var answer struct {
			Data struct {
				Alerts []struct {
					State  string
					Labels map[string]string
				}
			}
		}
		_, body = testkit.Get(t, "http://"+p.address+"/api/v1/alerts")
		_ = json.Unmarshal([]byte(body), &answer)
		fires := false
		for _, a := range answer.Data.Alerts {
			fires = fires || a.State == "firing" && a.Labels["alertname"] == "UsherTrouble" && a.Labels["kind"] == kind && a.Labels["night"] == name
		}
		if fires == want {
			return
		}
	}
	t.Errorf("%s: the alert fires: %v\n%.3000s", name, !want, body)
}

// A replica is killed between its claim of a message and its post. The claim is open again after a minute: then who is
// started in its place says it, or the other replica, and says it once; so do two that both live, that it is over.
func TestKilledBeforeItIsSaid(t *testing.T) {
	t.Parallel()
	if !*long {
		t.Skip("takes minutes: with -long")
	}
	for _, who := range []string{"who is started in its place", "the other replica"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			n := &watch{t: t, rc: newReceiver(t, 422)}
			claimed := make(chan string, 1) // the path of who claimed it
			var once sync.Once
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				first := false
				if once.Do(func() { first = true; claimed <- r.URL.Path }); first { // nobody hears this one
					_, _ = io.Copy(io.Discard, r.Body)
					<-r.Context().Done()
					return
				}
				n.chat.ServeHTTP(w, r)
			}))
			t.Cleanup(server.Close)
			inbox, replicas := fileInbox(t.TempDir()), make(map[string]*office)
			start := func(path string) {
				n.notify = "USHER_NOTIFY_URL=" + server.URL + path
				n.open(inbox)
				n.Ready(t)
				replicas[path] = n.office
			}
			if who == "the other replica" {
				inbox = "USHER_WEBHOOK_INBOX=" + pgtest.Schema(t)
				start("/other")
			}
			start("/one")
			n.take("mill-co", 1)
			n.troubled("critical", "1 webhook of crm/mill-co is parked")
			var path string
			select {
			case path = <-claimed:
			case <-time.After(4 * time.Minute):
				t.Fatal("nothing was claimed")
			}
			killed := time.Now()
			replicas[path].Kill()
			delete(replicas, path)
			if len(replicas) == 0 {
				start("/one")
			}
			for _, n.office = range replicas {
			}
			n.chat.heard(t, "that it is parked", func(line string) bool { return strings.HasPrefix(line, "CRITICAL") })
			t.Logf("said %s after the kill", time.Since(killed).Round(time.Second))
			n.rc.set(200)
			n.want("redeliver", n.does("redeliver", "--state", "parked", "--yes"), "0 ")
			n.chat.heard(t, "that it is over", func(line string) bool { return strings.HasPrefix(line, "OVER") })
			if begun := n.chat.begun(); len(begun) != 2 { // it begins, and is over
				t.Errorf("it was said\n%s", n.chat.all())
			}
		})
	}
}
