package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// toldNight is a night of two replicas that share an inbox, and of a chat to which they say what is wrong.
type toldNight struct {
	t        *testing.T
	server   *pgtest.Server
	disk     databaseDisk // the server's
	replicas [2]*replica
	admins   [2]string // their addresses, by which they call themselves, too
	chat     chat
	receiver atomic.Int64 // what it answers; parked tenants get 422
	sent     int
}

// chat takes a text, and refuses anything else, as chats do.
type chat struct {
	mu       sync.Mutex
	messages []string
	refused  []string
}

func (c *chat) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	err := json.NewDecoder(r.Body).Decode(&body)
	said, isText := body["text"].(string)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || r.Method != http.MethodPost || len(body) != 1 || !isText || said == "" || r.Header.Get("Content-Type") != "application/json; charset=utf-8" {
		c.refused = append(c.refused, fmt.Sprint(r.Method, r.Header, body, err))
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.messages = append(c.messages, time.Now().UTC().Format(time.TimeOnly)+" "+said)
}

// said is all that it was told.
func (c *chat) said() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.messages)
}

// lines are the lines in which something begins, or is over, each without its times.
func (c *chat) lines() (all []string) {
	times := regexp.MustCompile(` Since .*$|^(OVER) after [^:]*`)
	for _, message := range c.said() {
		for line := range strings.Lines(message) {
			if regexp.MustCompile(`^(CRITICAL|WARNING|OVER)`).MatchString(line) {
				all = append(all, times.ReplaceAllString(strings.TrimSpace(line), "$1"))
			}
		}
	}
	return all
}

// A night: what was wrong is in the history with its begin, its end and its replica; the chat has heard of
// each once; and in the morning the overview says what stays, and nobody repeats himself after a restart. Its
// minutes are those that people are promised.
func TestNightIsTold(t *testing.T) {
	if !*long {
		t.Skip("a quarter of an hour: with -long")
	}
	t.Parallel()
	n := &toldNight{t: t, server: pgtest.New(t)}
	n.disk = smallDisk(t, n.server)
	chatServer := httptest.NewServer(&n.chat)
	t.Cleanup(chatServer.Close)
	n.receiver.Store(200)
	main := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); n.receiver.Load() == 200 && strings.Contains(string(body), `"code":"parks"`) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(int(n.receiver.Load()))
	}))
	t.Cleanup(main.Close)
	docs := testkit.FreeAddress(t) // where nobody listens yet
	for i := range n.replicas {
		n.admins[i] = testkit.FreeAddress(t)
		n.replicas[i] = &replica{gate: testkit.FreeAddress(t)}
		n.replicas[i].env = gateAlone(main.URL, "USHER_WEBHOOK_LISTEN="+n.replicas[i].gate, "USHER_ADMIN_LISTEN="+n.admins[i], "USHER_WEBHOOK_TOKEN="+webhookToken,
			"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=docs", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=http://"+docs, "USHER_WEBHOOK_RECEIVERS_0_NAME=docs",
			"USHER_WEBHOOK_INBOX="+n.server.DSN(), "USHER_NOTIFY_URL="+chatServer.URL+"/services/t0psecret")
		n.replicas[i].start(t)
		n.replicas[i].Ready(t)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	names := [2]string{}
	for i, address := range n.admins {
		_, port, _ := net.SplitHostPort(address)
		names[i] = host + ":" + port
	}
	n.take(0, 200, "crm", "acme")
	// The receiver rejects one, and then answers 500 to all. Another one is away. Somebody has the wrong
	// secret at one replica, and strangers look around.
	n.take(0, 200, "crm", "parks")
	n.within("parked", 0, func(s string) bool { return strings.Contains(s, "is parked") || strings.Contains(s, "are parked") })
	n.receiver.Store(500)
	for _, tenant := range []string{"globex", "initech", "hooli", "umbrella"} {
		n.take(0, 200, "crm", tenant)
		n.take(1, 200, "docs", tenant)
	}
	for range 5 {
		asked(t, "POST", "http://"+n.replicas[1].gate+"/webhooks", testkit.Snapshot("acme", 1), "Content-Type", "application/json", "Authorization", "Bearer wrong")
		asked(t, "GET", "http://"+n.replicas[0].gate+"/wp-login.php", "")
	}
	n.heard("parked", "answers 500", "failed the check of its sender", docs)
	n.keep("begun")
	// All of it ends, and a replica is killed.
	n.receiver.Store(200)
	listener, err := net.Listen("tcp", docs)
	if err != nil {
		t.Fatal(err)
	}
	back := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	t.Cleanup(func() { back.Close() })
	go func() { _ = back.Serve(listener) }()
	n.take(1, 200, "crm", "acme")
	n.within("over", 0, func(s string) bool {
		return !strings.Contains(s, "answers 500") && !strings.Contains(s, docs) && !strings.Contains(s, "failed the check")
	})
	n.replicas[1].Kill()
	n.heard("failed the check of their sender", names[1]+" is gone")
	n.replicas[1].start(t)
	n.replicas[1].Ready(t)
	n.heard("OVER: " + names[1] + " is gone")

	// The disk of the database is full, and then has room again. What was refused comes again, and somebody
	// says that the time without a gate is dealt with.
	n.disk.fill(t)
	var refused []string
	for i := range n.replicas {
		tenant := ""
		testkit.Eventually(t, "the disk is full", func() bool {
			tenant = fmt.Sprint("large-", n.sent)
			return n.post(i, "crm", tenant, 60<<10).status == 503
		})
		refused = append(refused, tenant)
	}
	n.heard("on "+names[0]+": The inbox takes no webhooks: the disk", "on "+names[1]+": The inbox takes no webhooks: the disk")
	n.keep("full")
	time.Sleep(15 * time.Second) // so that it was more than a minute
	n.disk.free(t)
	for i, tenant := range refused {
		n.replicas[i].Ready(t)
		n.take(i, 200, "crm", tenant)
	}
	n.heard("OVER: on "+names[0]+": The inbox", "OVER: on "+names[1]+": The inbox", "OVER: usher answered webhooks", "no gate was ready")
	if _, out, err := ended(t, []string{"USHER_ADMIN_LISTEN=" + n.admins[0]}, "inbox", "dismiss", "--yes"); err != "" {
		t.Errorf("%s%s", out, err)
	}
	n.heard("OVER: From")
	told := len(n.chat.lines())

	// The database goes, and comes back.
	n.server.Stop()
	n.take(0, 503, "crm", "acme")
	n.take(1, 503, "crm", "globex")
	n.heardSince(told, "on "+names[0]+": ", "on "+names[1]+": The")
	n.keep("away")
	n.server.Start()
	for i := range n.replicas {
		n.replicas[i].Ready(t)
	}
	n.heardSince(told, "with a 5xx", "no gate was ready") // what stays
	time.Sleep(2*time.Minute + 10*time.Second)
	n.keep("morning")

	// What stays is what waits for a person.
	var s struct {
		Problems []struct{ Kind string }
		History  []struct {
			Kind, Replica string
			Began, Ended  time.Time
		}
	}
	n.json(&s)
	stays := make(map[string]int)
	for _, p := range s.Problems {
		stays[p.Kind]++
	}
	delete(stays, "outage") // no gate was ready for a minute or more
	if fmt.Sprint(stays) != "map[missed:1 parked:1]" {
		t.Errorf("in the morning: %v", stays)
	}
	over := make(map[string]int)
	for _, h := range s.History {
		over[h.Kind+" "+h.Replica]++
		if h.Began.IsZero() || !h.Ended.After(h.Began) {
			t.Errorf("%+v", h)
		}
	}
	for kind, count := range map[string]int{"receiver-down ": 2, "senders-rejected " + names[1]: 1, "replica-gone ": 1, "database-away " + names[0]: 1, "database-away " + names[1]: 1} {
		if over[kind] != count {
			t.Errorf("%d times %q in the history %v", over[kind], kind, over)
		}
	}
	lines := n.chat.lines()
	slices.Sort(lines)
	if once := slices.Compact(slices.Clone(lines)); len(once) != len(lines) {
		t.Errorf("said twice: %s", strings.Join(lines, "\n"))
	}
	if len(n.chat.refused) > 0 {
		t.Errorf("the chat refused %q", n.chat.refused)
	}

	// Nobody repeats himself.
	before := len(n.chat.said())
	for _, u := range n.replicas {
		u.End()
		u.start(t)
		u.Ready(t)
	}
	time.Sleep(2*time.Minute + 30*time.Second)
	if after := n.chat.said()[before:]; len(after) > 0 {
		t.Errorf("after a restart it says\n%s", strings.Join(after, "\n"))
	}
	for _, u := range n.replicas {
		if log := u.Stderr.String(); strings.Contains(log, "t0psecret") {
			t.Errorf("the address is in the log:\n%s", log)
		}
	}
}

// take sends a webhook.
func (n *toldNight) take(replica, want int, platform, tenant string) {
	n.t.Helper()
	if r := n.post(replica, platform, tenant, 0); r.status != want {
		n.t.Errorf("%s: %d %s", tenant, r.status, r.body)
	}
}

// post sends a webhook with so many bytes that say nothing.
func (n *toldNight) post(replica int, platform, tenant string, more int) reply {
	n.t.Helper()
	n.sent++
	return asked(n.t, "POST", "http://"+n.replicas[replica].gate+"/webhooks", on(platform, tenant, n.sent)+strings.Repeat(" ", more),
		"Content-Type", "application/json", "Authorization", "Bearer "+webhookToken)
}

// status is what the command prints.
func (n *toldNight) status(replica int, flags ...string) string {
	n.t.Helper()
	_, out, err := ended(n.t, []string{"USHER_ADMIN_LISTEN=" + n.admins[replica]}, append([]string{"status"}, flags...)...)
	return out + err
}

func (n *toldNight) json(into any) {
	n.t.Helper()
	if err := json.Unmarshal([]byte(n.status(0, "--since", "1h", "--json")), into); err != nil {
		n.t.Fatal(err)
	}
}

func (n *toldNight) within(what string, replica int, holds func(status string) bool) {
	n.t.Helper()
	testkit.Eventually(n.t, what, func() bool { return holds(n.status(replica)) })
}

// heard waits until the chat has heard each of these, which takes minutes.
func (n *toldNight) heard(all ...string) {
	n.t.Helper()
	n.heardSince(0, all...)
}

// heardSince is heard for what was said after so many lines.
func (n *toldNight) heardSince(told int, all ...string) {
	n.t.Helper()
	for began := time.Now(); time.Since(began) < 6*time.Minute; time.Sleep(time.Second) {
		lines := strings.Join(n.chat.lines()[told:], "\n")
		if !slices.ContainsFunc(all, func(one string) bool { return !strings.Contains(lines, one) }) {
			return
		}
	}
	n.t.Fatalf("not heard %q, but\n%s\n%s", all, strings.Join(n.chat.said(), "\n\n"), n.status(0, "--since", "1h"))
}

// keep writes down what people read at this moment, for whoever wants to read it as they do (-v, and
// NIGHT_KEPT in the environment).
func (n *toldNight) keep(moment string) {
	folder := os.Getenv("NIGHT_KEPT")
	if folder == "" {
		return
	}
	_, page := testkit.Get(n.t, "http://"+n.admins[0]+"/")
	for name, content := range map[string]string{"status.txt": n.status(0, "--since", "1h"), "page.html": page, "chat.txt": strings.Join(n.chat.said(), "\n\n")} {
		if err := os.WriteFile(filepath.Join(folder, moment+"-"+name), []byte(content), 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
}
