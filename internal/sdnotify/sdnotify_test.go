//go:build unix

package sdnotify

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// manager is the socket of a service manager.
func manager(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func read(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := conn.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestNotify(t *testing.T) {
	names := map[string]string{"a path": filepath.Join(t.TempDir(), "notify")}
	if runtime.GOOS == "linux" {
		names["an abstract name"] = "@usher-test-" + strconv.Itoa(os.Getpid())
	}
	for what, name := range names {
		t.Run(what, func(t *testing.T) {
			conn := manager(t, name)
			n := New(map[string]string{"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2000", "WATCHDOG_PID": strconv.Itoa(os.Getpid())})
			for want, say := range map[string]func() error{"READY=1": n.Ready, "STOPPING=1": n.Stopping} {
				if err := say(); err != nil {
					t.Fatal(err)
				}
				if got := read(t, conn); got != want {
					t.Errorf("told %q, want %q", got, want)
				}
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); n.Watch(ctx) }()
			for range 3 {
				if got := read(t, conn); got != "WATCHDOG=1" {
					t.Errorf("told %q", got)
				}
			}
			stop()
			<-ended
		})
	}
}

func TestNobodyIsTold(t *testing.T) {
	for _, socket := range []string{"", "vsock:2:1", "relative"} {
		n := New(map[string]string{"NOTIFY_SOCKET": socket})
		if n != nil {
			t.Errorf("%q: %+v", socket, n)
		}
		if n.Ready() != nil || n.Stopping() != nil {
			t.Errorf("%q: an error from nobody", socket)
		}
		n.Watch(t.Context())
	}
	if err := New(map[string]string{"NOTIFY_SOCKET": filepath.Join(t.TempDir(), "gone")}).Ready(); err == nil {
		t.Error("no error from a socket that is not there")
	}
}

// How often signs of life are given: twice as often as they must be.
func TestPings(t *testing.T) {
	own := strconv.Itoa(os.Getpid())
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"30000000", "", 15 * time.Second},
		{"30000000", own, 15 * time.Second},
		{"30000000", own + "0", 0}, // meant for another process
		{"", own, 0}, {"0", own, 0}, {"-1", own, 0}, {"soon", own, 0}, {"9223372036854775807", own, 0},
	} {
		n := New(map[string]string{"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": c.usec, "WATCHDOG_PID": c.pid})
		if n.pings != c.want {
			t.Errorf("WATCHDOG_USEC=%q WATCHDOG_PID=%q: each %v, want %v", c.usec, c.pid, n.pings, c.want)
		}
	}
}
