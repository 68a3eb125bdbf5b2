package testkit

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Usher is one that runs, in this process or in one of its own.
type Usher struct {
	Stdout, Stderr Output
	Stop           func()        // begins an orderly shutdown
	Ended          chan struct{} // closed when it has ended
	Code           int           // its exit code, once it has
	Process        *os.Process   // nil: it runs in this one
}

// Run runs usher in this process until the test ends. main is command.Main with its
// arguments and environment: tests of that package use this one, too.
func Run(t testing.TB, main func(ctx context.Context, stdout, stderr io.Writer) int) *Usher {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	u := &Usher{Stop: cancel, Ended: make(chan struct{})}
	go func() {
		defer close(u.Ended)
		u.Code = main(ctx, &u.Stdout, &u.Stderr)
	}()
	t.Cleanup(func() { u.End(); u.tell(t) })
	return u
}

// Start runs cmd, which is usher or runs it, in a process of its own until the test ends.
func Start(t testing.TB, cmd *exec.Cmd) *Usher {
	t.Helper()
	u := &Usher{Ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &u.Stdout, &u.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	u.Process = cmd.Process
	u.Stop = func() { _ = cmd.Process.Signal(os.Interrupt) }
	go func() {
		defer close(u.Ended)
		_ = cmd.Wait()
		u.Code = cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() { u.Kill(); u.tell(t) })
	return u
}

// End shuts usher down and waits for its end.
func (u *Usher) End() { u.Stop(); <-u.Ended }

// Kill ends an usher in a process of its own as kill -9 does.
func (u *Usher) Kill() { _ = u.Process.Kill(); <-u.Ended }

// tell shows the end of what usher printed where the test has failed.
func (u *Usher) tell(t testing.TB) {
	if !t.Failed() {
		return
	}
	for name, printed := range map[string]string{"stdout": u.Stdout.String(), "stderr": u.Stderr.String()} {
		if printed != "" {
			t.Logf("usher ended with %d, the end of its %s:\n%s", u.Code, name, printed[max(0, len(printed)-8<<10):])
		}
	}
}

// Signal sends one to an usher in a process of its own.
func (u *Usher) Signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := u.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// URL finds where a listener is, from a log in JSON.
func (u *Usher) URL(t testing.TB, listener string) string {
	t.Helper()
	var address string
	Eventually(t, "listening: "+listener, func() bool {
		for line := range strings.SplitSeq(u.Stderr.String(), "\n") {
			var entry struct{ Msg, Listener, Address string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" && entry.Listener == listener {
				address = entry.Address
				return true
			}
		}
		select {
		case <-u.Ended:
			t.Fatalf("ended with %d: %s", u.Code, u.Stderr.String())
		default:
		}
		return false
	})
	return address
}

// Ready waits until usher says that it is.
func (u *Usher) Ready(t testing.TB) {
	t.Helper()
	url := u.URL(t, "admin") + "/readyz"
	Eventually(t, "ready", func() bool {
		status, _ := Get(t, url)
		return status == 200
	})
}

// Build builds a program for the test that asks.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := build(pkg, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// build builds a program as "go run" does, which keeps what it has linked in Go's cache.
func build(pkg, path string) error {
	if out, err := exec.Command("go", "run", "-ldflags=-w", "-exec", "cp", pkg, path).CombinedOutput(); err != nil {
		return errors.New(string(out))
	}
	return nil
}

// Binary is usher as it is built, for what only a process can show.
func Binary(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("short: it is about the built binary, in which nothing looks for races")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var (
	built  string // the folder of the binary, for Main to remove
	binary = sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", "usher-test-")
		if err != nil {
			return "", err
		}
		built = dir
		path := filepath.Join(dir, "usher")
		if err := build("usher", path); err != nil {
			return "", err
		}
		return path, os.Chmod(dir, 0o755) // tests run it as other users, too
	})
)

// Main runs the tests of a package, and cleans up after Binary and, with after, what else the tests shared.
// What runs beside each other (t.Parallel) waits most of the time, for leases, backoffs and processes: many
// of them run at once, unless the -parallel flag says otherwise.
func Main(m *testing.M, after ...func()) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(6*runtime.GOMAXPROCS(0)))
	}
	// What this process ignores, as under nohup or in the background of a script, its children ignore, too. What it
	// handles they don't: each test that sends a signal counts on that.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	debug.SetGCPercent(400) // the heap is so small that else a fifth of the time goes into looking through it
	code := m.Run()
	for _, f := range after {
		f()
	}
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// MainInMemory is Main for tests that run no files of theirs. It keeps these in memory if that is possible:
// no test can show a missing sync, and syncs take most of the time on a slow disk.
func MainInMemory(m *testing.M, after ...func()) {
	const memory = "/dev/shm"
	if !strings.HasPrefix(os.TempDir(), memory) { // else a test has started this one, and may kill it
		// PostgreSQL runs as another user
		if dir, err := os.MkdirTemp(memory, "usher-"); err == nil && os.Chmod(dir, 0o711) == nil {
			os.Setenv("TMPDIR", dir)
			after = append(after, func() { _ = os.RemoveAll(dir) })
		}
	}
	Main(m, after...)
}
