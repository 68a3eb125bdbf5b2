// Package examples is programs to start your own from. They run here as they stand,
// against a real usher and the sandbox.
package examples

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/command"
	"usher/internal/sandbox"
	"usher/internal/trial"
)

// built is where the binaries of this test are.
var built string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "usher-examples-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	built = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// binary builds a program of this module, once.
func binary(t *testing.T, path string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("short: it is about built programs, in which nothing looks for races")
	}
	file := filepath.Join(built, filepath.Base(path))
	if _, err := os.Stat(file); err == nil {
		return file
	}
	if out, err := exec.Command("go", "build", "-o", file, path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// needs skips the test where a program is not installed.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed: its example is not tried", program)
	}
}

// environ is a billing service's, for an usher that uses it.
func environ(t *testing.T, extra ...string) []string {
	t.Helper()
	service := httptest.NewServer(sandbox.NewBilling(sandbox.Client{ID: "app", Secret: "t0psecret", Scopes: []string{"standard:read", "standard:write"}}))
	t.Cleanup(service.Close)
	return append([]string{
		"USHER_BASE_URL=" + service.URL, "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=t0psecret",
		"USHER_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
	}, extra...)
}

// usher is one that runs in this process until the test ends.
type usher struct {
	log  trial.Output
	stop func() // ends it, and waits for its end
}

func start(t *testing.T, environ []string) *usher {
	t.Helper()
	u := new(usher)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	code := 0
	go func() {
		defer close(ended)
		code = command.Main(ctx, command.Process{Environ: environ, Stdin: strings.NewReader(""), Stdout: &u.log, Stderr: &u.log})
	}()
	u.stop = func() { cancel(); <-ended }
	t.Cleanup(func() {
		if u.stop(); code != 0 || t.Failed() {
			t.Logf("usher ended with %d:\n%s", code, &u.log)
		}
	})
	return u
}

// url is where a listener is, from the log.
func (u *usher) url(t *testing.T, listener string) string {
	t.Helper()
	var address string
	trial.Eventually(t, "listening: "+listener, func() bool {
		for line := range strings.SplitSeq(u.log.String(), "\n") {
			var entry struct{ Msg, Listener, Address string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" && entry.Listener == listener {
				address = entry.Address
				return true
			}
		}
		return false
	})
	return address
}
