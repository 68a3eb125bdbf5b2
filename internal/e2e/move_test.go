//go:build unix

package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// docs/operations.md says how to move from a file to PostgreSQL, and how to get back. Its commands, as they
// are printed there, do that with the shipped file of settings, while somebody sends webhooks: what waited is
// delivered once, and what is invalid is still there. systemd is played.
func TestMovingAsPrinted(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the built usher")
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, moving, found := strings.Cut(string(doc), "\n### Move from a file to PostgreSQL\n")
	moving, _, _ = strings.Cut(moving, "\n### ")
	var move []string
	for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(moving, -1) {
		move = append(move, m[1])
	}
	if !found || len(move) != 3 {
		t.Fatalf("docs/operations.md does not have this part, or it has %d blocks of commands", len(move))
	}
	rc := newReceiver(t, 503)
	m := newMachine(t, rc.url)
	m.restart()
	m.send(200, testkit.Snapshot("acme", 5))
	m.send(422, odd("other", 5))
	m.types(move[0])
	m.send(0, testkit.Snapshot("acme", 6)) // nobody is there; a webhook that got in would make the import fail
	m.types(move[1])
	rc.set(200)
	testkit.Eventually(t, "delivered from the file", func() bool { return strings.Contains(states(t, m.usher), "delivered") })
	rc.set(503)
	m.send(200, testkit.Snapshot("acme", 7))

	m.database = pgtest.Schema(t)
	m.types(move[0])
	rc.set(200)
	tried := rc.count()
	m.types(move[2])
	testkit.Eventually(t, "delivered from the database", func() bool { return rc.count() == tried+1 && !strings.Contains(states(t, m.usher), "waiting") })
	if all := invalidOf(t, m.usher, "crm/other"); len(all) != 1 {
		t.Errorf("invalid: %+v", all)
	}
	if _, body := testkit.Get(t, m.usher.URL(t, "entitlements")+"/v1/entitlements/acme/users"); !strings.Contains(body, `"limit":7,`) {
		t.Errorf("acme: %s", body)
	}
}

// machine is one that has the gate's settings as deploy/systemd ships them, but for its folders,
// ports, receiver and token.
type machine struct {
	t        *testing.T
	dir      string
	database string // where db.example.com is
	usher    *testkit.Usher
	gate     string
	fit      *strings.Replacer
	environ  []string
}

func newMachine(t *testing.T, receiver string) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), database: pgtest.Schema(t), gate: testkit.FreeAddress(t)}
	m.environ = []string{"USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json"}
	m.fit = strings.NewReplacer("/etc/usher/", m.dir+"/", "/var/lib/usher-gate/", m.dir+"/", "/root/", m.dir+"/", "/run/credentials/usher-gate.service/", m.dir+"/", "http://127.0.0.1:3000/provisioning", receiver,
		"127.0.0.1:8090", m.gate, "127.0.0.1:18090", testkit.FreeAddress(t), "127.0.0.1:9095", testkit.FreeAddress(t))
	shipped, err := os.ReadFile(filepath.Join(root, "deploy", "systemd", "gate.env"))
	if err != nil {
		t.Fatal(err)
	}
	// the test looks, too
	m.write("gate.env", regexp.MustCompile(`(?m)^USHER_ADMIN_TOKEN_FILE=.*$`).ReplaceAllString(m.fit.Replace(string(shipped)), ""))
	m.write("inbox-password", "secret of the database\n")
	if err := os.Symlink(testkit.Binary(t), filepath.Join(m.dir, "usher")); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) write(name, content string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// restart is what systemd does.
func (m *machine) restart() {
	m.t.Helper()
	if m.usher != nil {
		m.usher.End()
	}
	m.usher = startProcess(m.t, m.environ, "--env-file", filepath.Join(m.dir, "gate.env"))
	m.usher.Ready(m.t)
}

// types types lines of the page into a shell, as root.
func (m *machine) types(lines string) {
	m.t.Helper()
	for line := range strings.Lines(lines) {
		switch {
		case line == "systemctl stop usher-gate\n":
			m.usher.End()
			m.usher = nil
			continue
		case strings.HasPrefix(line, "systemctl restart usher-gate "), line == "systemctl restart usher-gate\n", line == "systemctl start usher-gate\n":
			m.restart()
			continue
		case strings.HasPrefix(line, "systemctl"): // of the socket, which not everybody has
			continue
		}
		line = strings.Replace(m.fit.Replace(line), "postgres://usher@db.example.com/usher?sslmode=verify-full", strings.ReplaceAll(m.database, "&", `\&`), 1)
		c := exec.Command("sh", "-e", "-c", line)
		c.Dir, c.Env = m.dir, []string{"PATH=" + m.dir + ":" + os.Getenv("PATH"), "USHER_ADMIN_LISTEN=" + strings.TrimPrefix(m.usher.URL(m.t, "admin"), "http://")}
		if out, err := c.CombinedOutput(); err != nil {
			m.t.Fatalf("%s%s%v", line, out, err)
		}
	}
}

// send sends a webhook to the address that the web server has. status 0: nobody is there.
func (m *machine) send(status int, body string) {
	m.t.Helper()
	resp, err := http.Post("http://"+m.gate+"/webhooks", "application/json", strings.NewReader(body))
	if err == nil {
		resp.Body.Close()
	}
	if (err == nil) != (status != 0) || err == nil && resp.StatusCode != status {
		m.t.Errorf("the webhook was answered %v, %v, want %d", resp, err, status)
	}
}
