package pgtest

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestSchema(t *testing.T) {
	a, b := Schema(t), Schema(t)
	u, err := url.Parse(a)
	if err != nil || a == b || u.Query().Get("schema") == "" {
		t.Fatalf("%s, %s: %v", a, b, err)
	}
}

// A server goes with the process that uses it, however that ends, and also if its folder is gone before.
func TestServerGoes(t *testing.T) {
	const child = "PGTEST_CHILD"
	if os.Getenv(child) != "" {
		for range 2 {
			s := New(t)
			s.Pause()
			os.Stdout.WriteString(s.Dir() + "\n")
		}
		os.Stdout.Close()
		time.Sleep(time.Hour)
	}
	if testing.Short() {
		t.Skip("makes a server: not in short mode")
	}
	_, err := programs()
	need(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerGoes$")
	cmd.Env = append(os.Environ(), child+"=yes")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dirs strings.Builder
	_, _ = out.(*os.File).WriteTo(&dirs)
	var servers []*Server
	for i, dir := range strings.Fields(dirs.String()) {
		s := &Server{dir: dir}
		if i == 1 {
			_ = os.RemoveAll(s.dir)
		}
		if len(s.processes()) < 2 {
			t.Errorf("%d processes in %s", len(s.processes()), s.dir)
		}
		servers = append(servers, s)
	}
	if len(servers) != 2 {
		t.Errorf("%d servers", len(servers))
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for _, s := range servers {
		for _, err := os.Stat(s.dir); err == nil || len(s.processes()) > 0; _, err = os.Stat(s.dir) {
			if t.Context().Err() != nil {
				t.Fatal("it is still there")
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// A server that was killed leaves a piece of shared memory behind, of which a machine has only some thousands.
func TestServerLeavesNoSharedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a server: not in short mode")
	}
	const all = "/proc/sysvipc/shm"
	if _, err := os.Stat(all); err != nil {
		t.Skip(err)
	}
	var id string
	exists := func() bool {
		lines, err := os.ReadFile(all)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(lines)) {
			if fields := strings.Fields(line); fields[1] == id {
				return true
			}
		}
		return false
	}
	t.Run("server", func(t *testing.T) {
		s := New(t)
		pid, err := os.ReadFile(filepath.Join(s.Dir(), "data", "postmaster.pid"))
		if err != nil {
			t.Fatal(err)
		}
		id = strings.Fields(strings.Split(string(pid), "\n")[6])[1]
		if !exists() {
			t.Fatalf("it has no shared memory %s:\n%s", id, pid)
		}
		s.Kill()
	})
	if exists() {
		t.Errorf("its shared memory %s is still there", id)
	}
}

func TestServer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes servers: not in short mode")
	}
	s := New(t, "fsync=on", "max_connections=17")
	if got := s.Exec(t, "SHOW fsync") + s.Exec(t, "SHOW max_connections"); got != "on17" {
		t.Errorf("fsync and max_connections: %s", got)
	}
	s.Exec(t, "CREATE TABLE a (n int); INSERT INTO a VALUES (1)")
	if got, err := execute(s.Pooler(t), "SELECT n FROM a"); err != nil || got != "1" {
		t.Errorf("through the pooler: %q, %v", got, err)
	}
	s.Kill()
	s.Start()
	s.Stop()
	s.Start()
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := pgx.Connect(ctx, s.DSN()); err == nil {
		t.Error("a server that stands still answers")
	}
	s.Resume()
	standby := s.Standby(t)
	s.Exec(t, "INSERT INTO a VALUES (2)")
	s.Kill()
	standby.Promote(t)
	standby.Exec(t, "INSERT INTO a VALUES (3)")
	if got := standby.Exec(t, "SELECT sum(n) FROM a"); got != "6" {
		t.Errorf("the sum is %s", got)
	}
	standby.Write(t, "pg_hba.conf", "local all all trust\n")
	standby.Stop()
	standby.Start()
	if _, err := execute(standby.DSN(), ""); err == nil {
		t.Error("pg_hba.conf is not used")
	}
}

func TestWire(t *testing.T) {
	dsn := Schema(t)
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	schema := u.Query().Get("schema")
	u.RawQuery = "sslmode=disable"
	w := Cut(t, u.Host)
	if _, err := execute(u.String(), "CREATE SCHEMA "+schema+"; CREATE TABLE "+schema+".a (n int)"); err != nil {
		t.Fatal(err)
	}
	connect := func() *pgx.Conn {
		c, err := pgx.Connect(t.Context(), w.Through(u.String()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(context.Background()) })
		return c
	}
	insert := func(c *pgx.Conn) error {
		var batch pgx.Batch
		batch.Queue("BEGIN")
		batch.Queue("INSERT INTO " + schema + ".a VALUES (1)")
		batch.Queue("COMMIT")
		return c.SendBatch(t.Context(), &batch).Close()
	}
	for _, tt := range []struct {
		name string
		cut  func() <-chan struct{}
		fail int // which of the inserts
		rows string
	}{
		{"before COMMIT", func() <-chan struct{} { return w.Statement("COMMIT", 2, Before) }, 2, "1"},
		{"after COMMIT", func() <-chan struct{} { return w.Statement("COMMIT", 2, After) }, 2, "2"},
		{"at once", func() <-chan struct{} { return w.Bytes(FromClient, 0) }, 1, "0"},
		{"at a byte from the client", func() <-chan struct{} { return w.Bytes(FromClient, 30) }, 1, "0"},
		// in what prepares the statements
		{"at a byte from the server", func() <-chan struct{} { return w.Bytes(FromServer, 30) }, 1, "0"},
	} {
		c := connect()
		fired := tt.cut()
		for i := 1; i <= tt.fail; i++ {
			if err := insert(c); (err != nil) != (i == tt.fail) {
				t.Errorf("%s: insert %d: %v", tt.name, i, err)
			}
		}
		<-fired
		if got, err := execute(u.String(), "DELETE FROM "+schema+".a RETURNING (SELECT count(*) FROM "+schema+".a)"); err != nil || got != tt.rows && got+tt.rows != "0" {
			t.Errorf("%s: %s rows, want %s: %v", tt.name, got, tt.rows, err)
		}
	}

	c := connect()
	w.Blackhole()
	done := make(chan error)
	go func() { done <- insert(c) }()
	select {
	case err := <-done:
		t.Fatalf("something came through: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	w.Pass()
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.Latency(20 * time.Millisecond)
	before := time.Now()
	if err := c.Ping(t.Context()); err != nil || time.Since(before) < 40*time.Millisecond {
		t.Errorf("a round trip of %v: %v", time.Since(before), err)
	}
	w.Refuse()
	if err := c.Ping(t.Context()); err == nil {
		t.Error("the connection still works")
	}
	if _, err := pgx.Connect(t.Context(), w.Through(u.String())); err == nil {
		t.Error("a new one does, too")
	}
}
