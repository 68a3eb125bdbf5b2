// Package pgtest has PostgreSQL servers for tests: one for each test binary, of which each test gets a schema
// of its own, servers of one's own to break, and wires to them that break at a chosen byte or statement.
package pgtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"usher/internal/testkit/kept"
)

// patience is for what a server does by itself: start, stop, follow another one. A busy machine takes long.
const patience = time.Minute

// shared is the server of this test binary, for many tests at once. It goes when the binary ends. What a
// server does by itself, and with a plan that seems long, takes a tenth of the time.
var shared = sync.OnceValues(func() (*Server, error) {
	return Run("max_connections=400", "autovacuum=off", "full_page_writes=off")
})

// Schema returns the address of a database, with the name of a schema that is this test's alone and does not
// exist yet. The server is the test binary's, or that of USHER_TEST_POSTGRES if it is set.
func Schema(t testing.TB) (dsn string) {
	t.Helper()
	given := os.Getenv("USHER_TEST_POSTGRES")
	server := given
	if given == "" {
		s, err := shared()
		need(t, err)
		server = s.DSN()
	}
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal("USHER_TEST_POSTGRES is no address") // it may have a password in it
	}
	name, query := fmt.Sprintf("test_%016x", rand.Uint64()), u.Query()
	query.Set("schema", name)
	u.RawQuery = query.Encode()
	if given != "" { // else it goes with the server
		t.Cleanup(func() {
			// A client that was cut off may hold a lock until the server notices.
			_, err := execute(given, "SET lock_timeout = '20s'; DROP SCHEMA IF EXISTS "+name+" CASCADE")
			if err != nil {
				t.Errorf("the schema %s stays: %v", name, err)
			}
		})
	}
	return u.String()
}

// need skips the test where there is no PostgreSQL. In CI nothing may be skipped.
func need(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, errMissing) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

var errMissing = errors.New("PostgreSQL is not installed (USHER_TEST_POSTGRES is not set): not tried")

// Server is a PostgreSQL server, for a test that breaks it.
type Server struct {
	t       testing.TB
	bin     string // the folder of its programs
	dir     string // data and log are in it
	port    int
	options []string
	script  func() *exec.Cmd // what starts it, if not its own program
	owner   *user.User       // who runs it, if that is somebody else
	guard   io.Closer        // closed, also by the end of this process, it kills the server and removes dir
	guarded *exec.Cmd        // who does so
	cmd     *exec.Cmd
	ended   chan struct{} // closed when cmd has ended
	paused  map[int]bool  // its processes that stand still
}

// New starts a server with nothing in it. The options are settings, such as "fsync=on", which is off
// otherwise: a server that is killed does not need it, only a machine. Nor does it compile a query that seems
// long: that takes longer than all of a test.
func New(t testing.TB, options ...string) *Server {
	t.Helper()
	s := Prepare(t, options...)
	need(t, s.initialize())
	return s
}

// Prepare has all that a server needs but its data, and starts nothing.
func Prepare(t testing.TB, options ...string) *Server {
	t.Helper()
	s, err := create(options...)
	need(t, err)
	s.t = t
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of the server on port %d:\n%s", s.port, s.log())
		}
		s.Remove()
	})
	return s
}

// Run starts a server as New does, for a program that is no test. Remove ends it; so does the end of the program.
func Run(options ...string) (*Server, error) {
	s, err := create(options...)
	if err != nil {
		return nil, err
	}
	return s, s.initialize()
}

// Remove ends the server and deletes what it has stored.
func (s *Server) Remove() {
	s.guard.Close()
	_ = s.guarded.Wait()
}

// initialize gives the server data with nothing in it, and starts it. A copy takes a tenth of what initdb
// takes. With a log in small segments it is a third less to copy.
func (s *Server) initialize() error {
	initdb := []string{
		"--pgdata=data", "--username=usher", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync",
		"--wal-segsize=1",
	}
	program, err := os.Stat(filepath.Join(s.bin, "initdb"))
	if err != nil {
		return err
	}
	data, fresh := filepath.Join(s.dir, "data"), false
	from, err := kept.Folder(func(dir string) error {
		fresh = true
		return cmp.Or(s.run("initdb", initdb...), kept.Copy(data, filepath.Join(dir, "data")))
	}, s.bin, program.ModTime(), initdb, s.owner)
	if err == nil && !fresh {
		err = kept.Copy(filepath.Join(from, "data"), data)
	}
	if err != nil {
		return err
	}
	return s.start()
}

// create makes the folder of a server, and has it guarded.
func create(options ...string) (s *Server, err error) {
	s = &Server{options: options, port: freePort()}
	if s.bin, err = programs(); err != nil {
		return nil, err
	}
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		if s.owner, err = user.Lookup("postgres"); err != nil {
			if s.owner, err = user.Lookup("nobody"); err != nil {
				return nil, err
			}
		}
	}
	if s.dir, err = os.MkdirTemp("", "usher-pg"); err != nil {
		return nil, err
	}
	if s.dir, err = filepath.EvalSymlinks(s.dir); err != nil {
		return nil, err
	}
	if err := s.own(s.dir); err != nil {
		return nil, err
	}
	// All processes of a server work in its data folder, what makes and what serves it in dir. They are found
	// by the name of the folder, which somebody may have removed by then. The second round is for those that
	// were just being made. A server that is killed leaves a piece of shared memory behind, whose number is
	// in the seventh line of its file.
	s.guarded = s.command("sh", "-c", `read -r line
if [ -d /proc/self ]; then
	for round in 1 2; do
		for p in $(find /proc/[0-9]*/cwd -maxdepth 0 \
			\( -lname "$PWD" -o -lname "$PWD (deleted)" -o -lname "$PWD/data*" \)); do
			p=${p#/proc/}
			if [ "${p%/cwd}" != $$ ]; then kill -9 "${p%/cwd}"; fi
		done
	done
	shared=$(sed -n '7s/.* //p' data/postmaster.pid)
	if [ -n "$shared" ]; then ipcrm -m "$shared"; fi
else
	"$1/pg_ctl" stop --mode=immediate --pgdata=data
fi
rm -rf "$PWD"`, "sh", s.bin)
	if s.guard, err = s.guarded.StdinPipe(); err != nil {
		return nil, err
	}
	return s, s.guarded.Start()
}

// freePort is below what the kernel gives to clients: somebody who tries to connect while the server is away
// could otherwise get this very port, and talk to himself.
func freePort() int {
	for {
		port := 10_000 + rand.IntN(6_000) // others take theirs from 16,000 on
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
}

// programs finds those of the newest PostgreSQL.
func programs() (bin string, err error) {
	installed, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(installed) > 0 {
		version := func(path string) float64 {
			v, _ := strconv.ParseFloat(filepath.Base(filepath.Dir(filepath.Dir(path))), 64)
			return v
		}
		return filepath.Dir(slices.MaxFunc(installed, func(a, b string) int {
			return cmp.Compare(version(a), version(b))
		})), nil
	}
	path, err := exec.LookPath("initdb")
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", errMissing
	}
	return filepath.Dir(path), nil
}

// command is a program of the server, or another one, in its folder and as its user. It has a session of its
// own, so that a Ctrl-C is the tests' alone, and nothing of our output, which "go test" would wait for.
func (s *Server) command(program string, args ...string) *exec.Cmd {
	if path, err := exec.LookPath(filepath.Join(s.bin, program)); err == nil {
		program = path
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.SysProcAttr = s.dir, detached(s.owner)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PATH="+s.bin+string(os.PathListSeparator)+os.Getenv("PATH"),
		"PGHOST=127.0.0.1", "PGPORT="+strconv.Itoa(s.port), "PGUSER=usher", "PGDATA="+filepath.Join(s.dir, "data"))
	return cmd
}

func (s *Server) run(program string, args ...string) error {
	if out, err := s.command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, out)
	}
	return nil
}

// own gives a file to the server's user.
func (s *Server) own(path string) error {
	if s.owner == nil {
		return nil
	}
	uid, _ := strconv.Atoi(s.owner.Uid)
	gid, _ := strconv.Atoi(s.owner.Gid)
	return os.Chown(path, uid, gid)
}

// log is the end of its log.
func (s *Server) log() []byte {
	log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return log[max(0, len(log)-4000):]
}

// DSN is its address. The user may do everything, and needs no password.
func (s *Server) DSN() string {
	return fmt.Sprintf("postgres://usher@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

// local is its socket, where everybody gets in, whatever the server demands elsewhere.
func (s *Server) local() string {
	return fmt.Sprintf("host=%s port=%d user=usher dbname=postgres", s.dir, s.port)
}

// Addr is where it listens.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Port is where it listens. There is a unix socket, too, in Dir.
func (s *Server) Port() int { return s.port }

// Dir is its folder. Its files are in the folder data of it.
func (s *Server) Dir() string { return s.dir }

// Write makes a file in its data folder that only the server can read: pg_hba.conf, server.crt, server.key.
func (s *Server) Write(t testing.TB, name, content string) {
	t.Helper()
	path := filepath.Join(s.dir, "data", name)
	if err := cmp.Or(os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, 0o600), s.own(path)); err != nil {
		t.Fatal(err)
	}
}

// Start starts it again, on the same port.
func (s *Server) Start() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) start() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, ended := s.launch(), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait(); close(ended) }()
	s.cmd, s.ended = cmd, ended
	return s.answers(s.local())
}

// answers waits until somebody answers there, also if it is a refusal: a server that was not
// made here does not know us.
func (s *Server) answers(dsn string) error {
	return s.eventually(func() error {
		_, err := execute(dsn, "")
		var refusal *pgconn.PgError
		if errors.As(err, &refusal) && refusal.Code != startingUp {
			return nil
		}
		return err
	})
}

const startingUp = "57P03"

func (s *Server) launch() *exec.Cmd {
	if s.script != nil {
		return s.script()
	}
	args := []string{"-D", "data", "-p", strconv.Itoa(s.port), "-h", "127.0.0.1", "-k", s.dir}
	always := []string{"fsync=off", "jit=off", "shared_buffers=32MB", "dynamic_shared_memory_type=mmap"}
	for _, option := range slices.Concat(always, s.options) {
		args = append(args, "-c", option)
	}
	return s.command("postgres", args...)
}

// Script is what Start runs from now on, as the server's user and in Dir, in the place of the
// server's own program. In the end it has to be that program, on Port, with its data in the folder
// data and its socket in Dir.
func (s *Server) Script(env []string, program string, args ...string) {
	s.script = func() *exec.Cmd {
		cmd := s.command(program, args...)
		cmd.Env = append(cmd.Env, env...)
		return cmd
	}
}

// Run runs a program of PostgreSQL's, or another one, as the server's user and in Dir.
func (s *Server) Run(t testing.TB, program string, args ...string) {
	t.Helper()
	if err := s.run(program, args...); err != nil {
		t.Fatal(err)
	}
}

// Pooler starts PgBouncer in front of the server, in transaction mode, and returns the address
// of the server through it.
func (s *Server) Pooler(t testing.TB) (dsn string) {
	t.Helper()
	bouncer, err := exec.LookPath("pgbouncer")
	if err != nil {
		need(t, fmt.Errorf("%w (PgBouncer)", errMissing))
	}
	port, ini := freePort(), filepath.Join(s.dir, "pgbouncer.ini")
	settings := fmt.Sprintf(`[databases]
postgres = host=127.0.0.1 port=%d user=usher
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
`, s.port, port)
	if err := os.WriteFile(ini, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := s.command(bouncer, "--quiet", ini)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go cmd.Wait() // it ends with the server
	dsn = strings.Replace(s.DSN(), s.Addr(), fmt.Sprintf("127.0.0.1:%d", port), 1)
	if err := s.answers(dsn); err != nil {
		t.Fatal(err)
	}
	return dsn
}

// eventually asks until it holds, while the server runs.
func (s *Server) eventually(holds func() error) (err error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if err = holds(); err == nil {
			return nil
		}
		select {
		case <-s.ended:
			return fmt.Errorf("PostgreSQL has ended: %s", s.log())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return err
}

// Stop shuts it down, and cuts off who is connected.
func (s *Server) Stop() {
	s.Resume()
	_ = s.cmd.Process.Signal(interrupt)
	<-s.ended
}

// Kill kills all its processes at once, as a crash would.
func (s *Server) Kill() {
	s.Pause() // so that none makes another one
	for pid := range s.paused {
		signal(pid, os.Kill)
	}
	s.paused = nil
	// It does not start again while one of them still has its memory.
	for left := s.processes(); len(left) > 0; left = s.processes() {
		for _, pid := range left { // also one that was just being made
			signal(pid, os.Kill)
		}
		time.Sleep(time.Millisecond)
	}
	<-s.ended
}

// Pause has all its processes stand still, as those of a machine that hangs: connections stay, and get no answer.
func (s *Server) Pause() {
	_ = s.cmd.Process.Signal(suspend)
	s.paused = map[int]bool{s.cmd.Process.Pid: true}
	for _, pid := range s.processes() {
		signal(pid, suspend)
		s.paused[pid] = true
	}
}

// Resume lets them go on.
func (s *Server) Resume() {
	for pid := range s.paused {
		signal(pid, proceed)
	}
	s.paused = nil
}

// processes are those that work in its data folder. Only Linux tells them; elsewhere Kill kills the first
// one, which the others notice.
func (s *Server) processes() (pids []int) {
	folders, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range folders {
		cwd, err := os.Readlink(link)
		if err == nil && strings.TrimSuffix(cwd, " (deleted)") == filepath.Join(s.dir, "data") {
			pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

func signal(pid int, sig os.Signal) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Signal(sig)
	}
}

// Exec runs statements, and returns the first value of the last one.
func (s *Server) Exec(t testing.TB, sql string) string {
	t.Helper()
	value, err := execute(s.local(), sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func execute(dsn, sql string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil || len(results) == 0 {
		return "", err
	}
	if rows := results[len(results)-1].Rows; len(rows) > 0 && len(rows[0]) > 0 {
		return string(bytes.Clone(rows[0][0])), nil
	}
	return "", nil
}

// Standby starts a server that follows this one. From here on this one confirms a transaction only when
// its standby has it, too.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	standby := Prepare(t, s.options...)
	need(t, standby.run("pg_basebackup", "--port="+strconv.Itoa(s.port), "--pgdata=data",
		"--write-recovery-conf", "--checkpoint=fast", "--no-sync"))
	need(t, standby.start())
	s.Exec(t, "ALTER SYSTEM SET synchronous_standby_names = '*'")
	s.Exec(t, "SELECT pg_reload_conf()")
	err := standby.eventually(func() error {
		value, err := execute(s.local(), "SELECT state || ' ' || sync_state FROM pg_stat_replication")
		if err == nil && value != "streaming sync" {
			err = fmt.Errorf("the standby's state is %q", value)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return standby
}

// Promote makes a standby take part in its own right: it may be written.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	if s.Exec(t, "SELECT pg_promote()") != "t" {
		t.Fatal("the standby was not promoted")
	}
}
