// Package testkit is what tests of the whole program share: an usher that runs in the
// test's own process or in one of its own, a billing service to put behind it, what
// they print while they run, and the patience that it takes.
package testkit

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// Output gathers what a program prints, and can be read meanwhile.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Len is how much there is to read.
func (o *Output) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Len()
}

// Thorough: tests do more than in a run that somebody waits for, as in CI's run with -race.
func Thorough() bool { return WithRace() || os.Getenv("USHER_TEST_THOROUGH") == "true" }

// WithRace: this test binary looks for races.
func WithRace() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// Eventually waits for something that another goroutine or process brings about. What takes long is looked at
// less and less often: a look may be a whole page, or a process.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	if !Comes(f) {
		t.Fatalf("in a minute: not %s", what)
	}
}

// Comes is Eventually for tests that say themselves what is wrong.
func Comes(f func() bool) bool {
	// A minute, and a number of looks: on a busy machine a look may take long.
	pause := time.Millisecond
	for began, looks := time.Now(), 0; looks < 100 || time.Since(began) < time.Minute; looks++ {
		if f() {
			return true
		}
		time.Sleep(pause) // real processes and sockets: nothing to wait on
		pause = min(pause*3/2, 250*time.Millisecond)
	}
	return false
}

// Says is what the billing service says of a tenant, as the payload of a webhook has it: a line of reconcile.
// The tenant is acme or crm/acme, and a feature is sso or users=25.
func Says(tenant string, features ...string) string {
	platform, code, both := strings.Cut(tenant, "/")
	if !both {
		platform, code = "", tenant
	}
	list := make([]string, len(features))
	for n, f := range features {
		name, quantity, limited := strings.Cut(f, "=")
		if !limited {
			quantity = "null"
		}
		list[n] = fmt.Sprintf(`{"code":%q,"quantity":%s}`, name, quantity)
	}
	at := ""
	if platform != "" {
		at = fmt.Sprintf(`,"platform":{"code":%q}`, platform)
	}
	return fmt.Sprintf(`{"tenant":{"code":%q%s},"change":{"features":[%s]}}`, code, at, strings.Join(list, ","))
}

// Missing skips a test for want of something that the machine does not have. With CI=true
// it fails instead: .ci/run has installed all that there is to try.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// ports is how many FreeAddress has looked at. They are below those that the system gives to
// connections: one of these could take it before the program that it is for.
var ports atomic.Uint32

// FreeAddress is a free loopback address that no other test is given. Linux answers for all of 127.0.0.0/8,
// so each process that tests has an IP address of its own. With one for all, two processes that look for free
// ports at the same time may find the same one, or take it for the moment in which the other's program starts.
func FreeAddress(t testing.TB) string {
	t.Helper()
	pid := os.Getpid()
	ip, first := fmt.Sprintf("127.%d.%d.%d", 128|pid>>16&63, pid>>8&255, pid&255), uint32(16000)
	if runtime.GOOS != "linux" {
		ip, first = "127.0.0.1", first+uint32(pid%160*100)
	}
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", ip, first+ports.Add(1)))
		if err == nil {
			l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// MoveWall changes the wall clock's reading of a time from time.Now by whole seconds, and leaves the
// monotonic one. The first word of a time.Time has the wall clock's seconds above 30 bits of nanoseconds.
func MoveWall(t time.Time, d time.Duration) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(d/time.Second) << 30
	return t
}
