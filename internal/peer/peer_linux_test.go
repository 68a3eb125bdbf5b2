package peer

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// dialAs connects to addr with a socket of this family that belongs to a user; a negative uid stands for our
// own.
func dialAs(t *testing.T, family, uid int, addr net.Addr) (fd int) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never let go of: the thread ends with the goroutine
		if uid >= 0 {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0); errno != 0 {
				done <- errno
				return
			}
		}
		var err error
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			done <- err
			return
		}
		port := addr.(*net.TCPAddr).Port
		var to unix.Sockaddr = &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
		if family == unix.AF_INET6 {
			to = &unix.SockaddrInet6{Port: port, Addr: netip.MustParseAddr("::ffff:127.0.0.1").As16()}
		}
		done <- unix.Connect(fd, to)
	}()
	if err := <-done; err != nil {
		if family == unix.AF_INET6 && errors.Is(err, unix.EAFNOSUPPORT) {
			t.Skip("no IPv6 here")
		}
		t.Fatal(err)
	}
	return fd
}

const nobody = 65534

func TestOwner(t *testing.T) {
	l := listen(t)
	for _, tc := range []struct {
		name        string
		family, uid int
	}{
		{"IPv4", unix.AF_INET, -1},
		{"dual-stack", unix.AF_INET6, -1},
		{"another user", unix.AF_INET, nobody},
		{"another user, dual-stack", unix.AF_INET6, nobody},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := uint32(os.Geteuid())
			if tc.uid >= 0 {
				if os.Geteuid() != 0 {
					t.Skip("only root can be somebody else")
				}
				want = uint32(tc.uid)
			}
			fd := dialAs(t, tc.family, tc.uid, l.Addr())
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			client, server := conn.RemoteAddr().(*net.TCPAddr), conn.LocalAddr().(*net.TCPAddr)
			if uid, err := askKernel(client, server); err != nil || uid != want {
				t.Errorf("user %d, %v, want %d", uid, err, want)
			}
			// A connection that no process holds any more would seem to be root's.
			unix.Close(fd)
			if uid, err := askKernel(client, server); !errors.Is(err, errGone) {
				t.Errorf("once it is closed: user %d, %v", uid, err)
			}
		})
	}
	// There is a listener on that port, but no connection.
	if uid, err := askKernel(listen(t).Addr().(*net.TCPAddr), l.Addr().(*net.TCPAddr)); !errors.Is(err, errGone) {
		t.Errorf("no connection: user %d, %v", uid, err)
	}
}

func TestSameUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	inner := listen(t)
	var log bytes.Buffer
	l, err := SameUser(inner, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		stranger := dialAs(t, family, nobody, l.Addr())
		defer unix.Close(stranger)
		gone := dialAs(t, family, nobody, l.Addr())
		if _, err := unix.Write(gone, []byte("POST /graphql HTTP/1.1\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		unix.Close(gone)
		own := dialAs(t, family, -1, l.Addr())
		defer unix.Close(own)
		if _, err := unix.Write(own, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		got := make([]byte, 5)
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
		if n, err := unix.Read(stranger, got); n != 0 || err != nil {
			t.Errorf("the stranger reads %d bytes, %v", n, err)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings: %s", n, log.String())
	}
}
