//go:build unix

package serve

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"usher/internal/settings"
)

func TestIsAddressOf(t *testing.T) {
	tcp := func(addr string) net.Addr { a, _ := net.ResolveTCPAddr("tcp", addr); return a }
	unix := func(path string) net.Addr { return &net.UnixAddr{Net: "unix", Name: path} }
	relative, _ := filepath.Abs("usher.sock")
	for _, tt := range []struct {
		setting string
		socket  net.Addr
		want    bool
	}{
		{"127.0.0.1:8090", tcp("127.0.0.1:8090"), true},
		{"localhost:8090", tcp("127.0.0.1:8090"), true},
		{"127.0.0.1:8090", tcp("127.0.0.1:8091"), false},
		{"127.0.0.1:8090", tcp("127.0.0.2:8090"), false},
		{"127.0.0.1:8090", tcp("[::]:8090"), false},
		{"127.0.0.1:8090", tcp("0.0.0.0:8090"), false},
		{"0.0.0.0:8090", tcp("0.0.0.0:8090"), true},
		{"0.0.0.0:8090", tcp("[::]:8090"), false},
		{"[::1]:8090", tcp("[::1]:8090"), true},
		{":8090", tcp("[::]:8090"), true},
		{":8090", tcp("127.0.0.1:8090"), false},
		{"127.0.0.1:0", tcp("127.0.0.1:8090"), false},
		{"unix:/run/usher.sock", unix("/run/usher.sock"), true},
		{"unix:usher.sock", unix(relative), true},
		{"unix:/run/usher.sock", unix("/run/other.sock"), false},
		{"unix:/run/usher.sock", tcp("127.0.0.1:8090"), false},
		{"127.0.0.1:8090", unix("127.0.0.1:8090"), false},
	} {
		if got := isAddressOf(tt.setting, tt.socket); got != tt.want {
			t.Errorf("%s and %s: %v", tt.setting, tt.socket, got)
		}
	}
}

// passed opens a socket as a service manager does, and returns its descriptor for usher.
func passed(t *testing.T) (address string, fd uintptr) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	own, err := syscall.Dup(int(f.Fd())) // nobody else closes this one
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	l.Close()
	return l.Addr().String(), uintptr(own)
}

func TestInherited(t *testing.T) {
	address, fd := passed(t)
	self := "LISTEN_PID=" + strconv.Itoa(os.Getpid())
	for _, environ := range [][]string{nil, {"LISTEN_FDS=1"}, {"LISTEN_FDS=1", "LISTEN_PID=1"}, {self}, {self, "LISTEN_FDS=0"}} {
		if sockets, err := inheritedSockets(environ, os.Getpid(), fd); err != nil || len(sockets) != 0 {
			t.Errorf("%q: %v %v", environ, sockets, err)
		}
	}
	if _, err := inheritedSockets([]string{self, "LISTEN_FDS=one"}, os.Getpid(), fd); err == nil {
		t.Error("LISTEN_FDS=one was accepted")
	}
	sockets, err := inheritedSockets([]string{self, "LISTEN_FDS=1", "LISTEN_FDNAMES=usher-gate.socket"}, os.Getpid(), fd)
	if err != nil || len(sockets) != 1 || sockets[0].Addr().String() != address {
		t.Fatalf("%v %v", sockets, err)
	}

	s, err := settings.Read([]string{"USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_LISTEN=" + address, "USHER_ADMIN_LISTEN=127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	u, err := Open(s, slog.New(slog.DiscardHandler), sockets...)
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	if u.gateListener.socket != sockets[0] {
		t.Error("the gate did not take its socket")
	}
}

// A socket with an address that no listener has is an error that names both, also if that socket occupies the
// address of a listener.
func TestSocketThatFitsNobody(t *testing.T) {
	address, fd := passed(t)
	sockets, err := inheritedSockets([]string{"LISTEN_FDS=1", "LISTEN_PID=1"}, 1, fd)
	if err != nil {
		t.Fatal(err)
	}
	s, err := settings.Read([]string{"USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_LISTEN=0.0.0.0" + address[strings.Index(address, ":"):],
		"USHER_WEBHOOK_INSECURE=true", "USHER_ADMIN_LISTEN=127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(s, slog.New(slog.DiscardHandler), sockets...)
	var bad settings.Problems
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), "a socket for "+address+",") || !strings.Contains(err.Error(), "USHER_WEBHOOK_LISTEN is "+s.Webhook.Listen) {
		t.Errorf("%v", err)
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Error("the socket is still open")
	}
}
