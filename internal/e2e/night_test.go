//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"usher/internal/testkit"
)

// nightReceiver is the receiver of one night in docs/operations.md.
type nightReceiver struct {
	down, created atomic.Bool
}

func (r *nightReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	is := func(tenant string, users int) bool {
		return strings.Contains(string(body), `"`+tenant+`"`) && (users == 0 || strings.Contains(string(body), fmt.Sprintf(`"quantity":%d}`, users)))
	}
	switch {
	case r.down.Load():
		http.Error(w, "down for maintenance", http.StatusServiceUnavailable)
	case is("harbour-ltd", 5):
		http.Error(w, "8 users are in use", http.StatusInternalServerError)
	case is("mill-co", 0) && !r.created.Load():
		http.Error(w, "unknown tenant: please create it first", http.StatusUnprocessableEntity)
	}
}

// A night is what docs/operations.md walks through. Between its commands things happen, which
// comments of the form <!-- night: WORD --> name.
type night struct {
	t        *testing.T
	receiver nightReceiver
	environ  []string
	usher    *testkit.Usher
}

func (n *night) happen(word string) {
	n.t.Helper()
	send := func(tenant string, users int) {
		if status, _, answer := testkit.Post(n.t, n.usher.URL(n.t, "webhooks")+"/webhooks", strings.Replace(testkit.Snapshot(tenant, users), `"code":"crm"`, `"code":"docs"`, 1)); status != 200 {
			n.t.Fatalf("%d %s", status, answer)
		}
	}
	switch word {
	case "refuses":
		send("harbour-ltd", 5)
		send("harbour-ltd", 10)
		send("mill-co", 3)
		send("quay-inc", 7)
	case "created":
		n.receiver.created.Store(true)
	case "down":
		n.receiver.down.Store(true)
		send("quay-inc", 8)
	case "restart":
		n.usher.Signal(n.t, syscall.SIGTERM)
		<-n.usher.Ended
		n.usher = startProcess(n.t, n.environ)
	case "up":
		n.receiver.down.Store(false)
	default:
		n.t.Fatalf("nothing is known of %q", word)
	}
}

// run runs a command line of the walk, and returns all that it prints.
func (n *night) run(line string) string {
	n.t.Helper()
	words := strings.Fields(line)
	if words[0] != "usher" {
		n.t.Fatalf("what is %q?", line)
	}
	p := startProcess(n.t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(n.usher.URL(n.t, "admin"), "http://")}, words[1:]...)
	<-p.Ended
	return p.Stdout.String() + p.Stderr.String()
}

// vague makes what differs from run to run the same.
func vague(text string) string {
	for _, r := range []struct{ pattern, to string }{
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`, "TIME"},
		{`[0-9a-f]{8}-[0-9a-f-]{27}`, "UUID"},
		{`\b\d+(\.\d+)?(µs|ms|s|m)\b`, "DURATION"},
		{`(?m)^(\d+) +(\w+) +(docs/\S+) +\d+ `, "$1 $2 $3 TRIES "},
		{`(?m)^(tries) +\d+`, "$1 TRIES"},
		{` +`, " "},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.to)
	}
	return strings.TrimSpace(text)
}

// matches says whether a command printed what the walk says; a line […] stands for the rest.
func matches(got, want string) bool {
	got, want = vague(got), vague(want)
	if begin, _, cut := strings.Cut(want, "[…]"); cut {
		return strings.HasPrefix(got, strings.TrimSpace(begin))
	}
	return got == want
}

// docs/operations.md walks through one night: every command of it, of the built binary, prints what is printed there.
func TestOneNight(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, walk, found := strings.Cut(string(doc), "## One night")
	walk, _, ends := strings.Cut(walk, "\n## ")
	if !found || !ends {
		t.Fatal("there is no walk through one night")
	}
	n := &night{t: t}
	receiver := httptest.NewServer(&n.receiver)
	defer receiver.Close()
	n.environ = []string{
		"USHER_WEBHOOK_FORWARD_URL=" + receiver.URL, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
		"USHER_WEBHOOK_INBOX=file:" + filepath.Join(t.TempDir(), "inbox.db"),
	}
	n.usher = startProcess(t, n.environ)
	commands := 0
	for _, step := range regexp.MustCompile("(?s)<!-- night: (\\w+) -->|```console\n(.*?)```").FindAllStringSubmatch(walk, -1) {
		if step[1] != "" {
			n.happen(step[1])
			continue
		}
		for _, command := range strings.Split(step[2], "$ ")[1:] {
			commands++
			line, want, _ := strings.Cut(command, "\n")
			n.check(line, want)
		}
	}
	if commands < 10 {
		t.Errorf("only %d commands were found", commands)
	}
}

// check runs a command, one that only reads again until it prints what it should.
func (n *night) check(line, want string) {
	n.t.Helper()
	reads := strings.Contains(line, " ls") || strings.Contains(line, " show")
	got := n.run(line)
	for end := time.Now().Add(45 * time.Second); reads && !matches(got, want) && time.Now().Before(end); got = n.run(line) {
		time.Sleep(20 * time.Millisecond) // a real program: nothing to wait on
	}
	if !matches(got, want) {
		n.t.Fatalf("$ %s\n%s\nThe documentation has:\n%s", line, got, want)
	}
}
