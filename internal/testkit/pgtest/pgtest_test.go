package pgtest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

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
