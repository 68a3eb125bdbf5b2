package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"usher/internal/testkit"
)

// nightMachine, in the environment, makes this test's own binary the machine of the night. It is the
// path of the built usher.
const nightMachine = "NIGHT_MACHINE"

// docs/operations.md walks through one night: every command of it, as it stands there, prints what is printed
// there. The machine is one that deploy/systemd's files have installed, by the commands at their top: its
// files, users and groups, the socket that systemd holds, the credentials that systemd copies. It has a file
// system and a network of its own. systemd itself is played.
func TestOneNight(t *testing.T) {
	if os.Getenv(nightMachine) != "" {
		playNight(t)
		return
	}
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestOneNight$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), nightMachine+"="+testkit.Binary(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if cmd.Process == nil {
		testkit.Missing(t, "cannot make a machine of its own, as only root can: the night is not played: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func playNight(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, walk, found := strings.Cut(string(doc), "## One night")
	walk, _, ends := strings.Cut(walk, "\n## ")
	if !found || !ends {
		t.Fatal("there is no walk through one night")
	}
	n := &night{t: t}
	n.install()
	n.startUsher()
	receiver, err := net.Listen("tcp", "127.0.0.1:3000")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = http.Serve(receiver, &n.receiver) }()

	// Who does not know where usher is, or may not ask it, is told.
	for _, tc := range []struct{ who, line, want string }{
		{"alice", "usher inbox ls", "the admin token is missing or wrong: set USHER_ADMIN_TOKEN"},
		{"alice", "usher inbox ls", "\nThis machine has settings of usher in /etc/usher/gate.env. Try: usher --env-file /etc/usher/gate.env ...\n"},
		{"bob", gateEnv + "inbox ls", "/etc/usher/admin-token: permission denied"},
		{"bob", gateEnv + "healthcheck", `{"problems":[],"ready":true}`},
	} {
		if got := n.run(tc.who, tc.line); !strings.Contains(got, tc.want) {
			t.Errorf("%s$ %s\n%s\nwant %s", tc.who, tc.line, got, tc.want)
		}
	}

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
	if got := n.run("alice", gateEnv+"inbox actions"); !strings.Contains(got, "(alice)") {
		t.Errorf("nobody knows who did it:\n%s", got)
	}
}

const gateEnv = "usher --env-file /etc/usher/gate.env "

// A night is what docs/operations.md walks through. Between its commands things happen, which
// comments of the form <!-- night: WORD --> name.
type night struct {
	t        *testing.T
	receiver nightReceiver
	socket   *os.File // the gate's, which systemd holds
	usher    *testkit.Usher
}

// must does something that only a broken machine fails at.
func (n *night) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// install makes the machine: folders that nobody else sees, people, and what the units say to type as root.
func (n *night) install() {
	n.t.Helper()
	dir := n.t.TempDir()
	n.must(os.Chmod(dir, 0o755))
	n.must(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	n.sh(dir, "mkdir etc && cp -a /etc/. etc/")
	n.must(syscall.Mount(dir+"/etc", "/etc", "", syscall.MS_BIND, ""))
	for _, folder := range []string{"/usr/local/bin", "/var/lib", "/run"} {
		n.must(syscall.Mount("tmpfs", folder, "tmpfs", 0, "mode=755"))
	}
	top, err := filepath.Abs(root)
	n.must(err)
	n.must(os.Symlink(filepath.Join(top, "deploy"), filepath.Join(dir, "deploy")))
	n.sh(dir, "ip link set lo up; useradd alice; useradd bob; cp "+os.Getenv(nightMachine)+" usher; printf webhook-t0ken-webhook-t0ken > webhook-token; "+
		"printf whsec_YSBrZXkgb2YgdGhlIHRlc3Q= > forward-signing-key; printf adm1n-adm1n-adm1n-adm1n > admin-token")
	for _, unit := range []string{"usher-gate.service", "usher-gate.socket"} {
		commands := 0
		for _, m := range regexp.MustCompile(`(?m)^#   (\S.*)$`).FindAllStringSubmatch(n.read(filepath.Join(top, "deploy/systemd", unit)), -1) {
			line := strings.ReplaceAll(m[1], "ALICE", "alice")
			if strings.HasPrefix(line, "CGO_ENABLED=0 go build") || strings.HasPrefix(line, "systemctl") || strings.HasPrefix(line, "usher ") {
				continue // it is built; systemd is played
			}
			n.sh(dir, line)
			commands++
		}
		if commands == 0 {
			n.t.Fatalf("%s does not say how to install it", unit)
		}
	}
}

// sh types something as root.
func (n *night) sh(dir, line string) {
	n.t.Helper()
	cmd := exec.Command("sh", "-ec", line)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("# %s\n%v\n%s", line, err, out)
	}
}

func (n *night) read(path string) string {
	n.t.Helper()
	b, err := os.ReadFile(path)
	n.must(err)
	return string(b)
}

// startUsher does what systemd does with the installed units.
func (n *night) startUsher() {
	n.t.Helper()
	const credentials, stranger = "/run/credentials/usher-gate.service", 61184 // a user as DynamicUser makes them
	own := func(path string, mode os.FileMode) {
		n.must(os.Chmod(path, mode))
		n.must(os.Chown(path, stranger, stranger))
	}
	n.must(os.MkdirAll(credentials, 0o755))
	var line string
	environ := []string{"LISTEN_FDS=1", "PATH=/usr/bin:/bin"}
	for entry := range strings.Lines(n.read("/etc/systemd/system/usher-gate.service")) {
		key, value, _ := strings.Cut(strings.TrimSpace(entry), "=")
		switch key {
		case "ExecStart":
			line = value
		case "Environment":
			environ = append(environ, strings.ReplaceAll(value, "%d", credentials))
		case "LoadCredential":
			name, file, _ := strings.Cut(value, ":")
			n.must(os.WriteFile(filepath.Join(credentials, name), []byte(n.read(file)), 0o400))
			own(filepath.Join(credentials, name), 0o400)
		case "StateDirectory":
			n.must(os.MkdirAll("/var/lib/"+value, 0o700))
			own("/var/lib/"+value, 0o700)
		}
	}
	own(credentials, 0o500)
	if n.socket == nil {
		address := regexp.MustCompile(`(?m)^ListenStream=(.*)$`).FindStringSubmatch(n.read("/etc/systemd/system/usher-gate.socket"))[1]
		listener, err := net.Listen("tcp", address)
		n.must(err)
		n.socket, err = listener.(*net.TCPListener).File()
		n.must(err)
	}
	cmd := exec.Command("sh", "-c", "umask 0077; LISTEN_PID=$$ exec "+line)
	cmd.Env, cmd.Dir, cmd.ExtraFiles = environ, "/", []*os.File{n.socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	n.usher = testkit.Start(n.t, cmd)
	n.usher.URL(n.t, "webhooks")
}

func (n *night) happen(word string) {
	n.t.Helper()
	send := func(tenant string, users int, more string) {
		body := strings.Replace(testkit.Snapshot(tenant, users), `"code":"crm"`, `"code":"docs"`, 1)
		body = strings.Replace(body, `}],"subscriptions"`, `}`+more+`],"subscriptions"`, 1)
		if status, _, answer := testkit.Post(n.t, "http://127.0.0.1:8090/webhooks", body, "X-Webhook-Token", "webhook-t0ken-webhook-t0ken"); status != 200 {
			n.t.Fatalf("%d %s", status, answer)
		}
	}
	switch word {
	case "rejects":
		send("harbour-ltd", 5, "")
		send("harbour-ltd", 10, "")
		send("mill-co", 3, `,{"code":"sso","name":"Single sign-on","quantity":null}`)
		send("quay-inc", 7, "")
	case "created":
		n.receiver.created.Store(true)
	case "down":
		n.receiver.down.Store(true)
		send("quay-inc", 8, "")
	case "restart":
		n.usher.Signal(n.t, syscall.SIGTERM)
		<-n.usher.Ended
		n.startUsher()
	case "up":
		n.receiver.down.Store(false)
	default:
		n.t.Fatalf("nothing is known of %q", word)
	}
}

// nightReceiver is the receiver of the night.
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

// run types a line as a person, and returns all that it prints.
func (n *night) run(who, line string) string {
	n.t.Helper()
	person, err := user.Lookup(who)
	n.must(err)
	groups, err := person.GroupIds()
	n.must(err)
	id := func(text string) uint32 {
		number, err := strconv.ParseUint(text, 10, 32)
		n.must(err)
		return uint32(number)
	}
	credential := &syscall.Credential{Uid: id(person.Uid), Gid: id(person.Gid)}
	for _, group := range groups {
		credential.Groups = append(credential.Groups, id(group))
	}
	cmd := exec.Command("sh", "-c", line)
	cmd.Env, cmd.Dir = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "USER=" + who}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	p := testkit.Start(n.t, cmd)
	<-p.Ended
	return p.Stdout.String() + p.Stderr.String()
}

// vague makes what differs from run to run the same.
func vague(text string) string {
	for _, r := range []struct{ pattern, to string }{
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`, "TIME"},
		{`[0-9a-f]{8}-[0-9a-f-]{27}`, "UUID"},
		{`\b\d+(\.\d+)?(µs|ms|s|m)\b`, "DURATION"},
		{`(?m)^(\d+ +\w+ +docs/\S+ +.*?) +\d+ +DURATION`, "$1 TRIES DURATION"},
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

// check runs a command, one that only reads again until it prints what it should.
func (n *night) check(line, want string) {
	n.t.Helper()
	reads := regexp.MustCompile(` (ls|show|entitlements)\b`).MatchString(line)
	got := n.run("alice", line)
	for end := time.Now().Add(45 * time.Second); reads && !matches(got, want) && time.Now().Before(end); got = n.run("alice", line) {
		time.Sleep(100 * time.Millisecond) // a real program: nothing to wait on
	}
	if !matches(got, want) {
		n.t.Fatalf("$ %s\n%s\nThe documentation has:\n%s", line, got, want)
	}
}
