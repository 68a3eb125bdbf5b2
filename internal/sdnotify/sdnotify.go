// Package sdnotify tells systemd the state of a service, as sd_notify(3) does: with a datagram to the
// socket in NOTIFY_SOCKET. Other programs that set this variable (such as Podman) get the same messages.
package sdnotify

import (
	"context"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Notifier sends messages to one service manager. A nil Notifier sends nothing.
type Notifier struct {
	socket *net.UnixAddr
	pings  time.Duration // the time between two watchdog messages; 0: systemd wants none
}

// New returns the Notifier for an environment, or nil if it has no NOTIFY_SOCKET that can be used.
func New(env map[string]string) *Notifier {
	socket, pid := env["NOTIFY_SOCKET"], env["WATCHDOG_PID"]
	// The socket has a path, or an abstract name, which begins with @. (vsock addresses are for the
	// systemd inside virtual machines.)
	if !strings.HasPrefix(socket, "/") && !strings.HasPrefix(socket, "@") {
		return nil
	}
	n := &Notifier{socket: &net.UnixAddr{Name: socket, Net: "unixgram"}}
	limit, err := strconv.ParseInt(env["WATCHDOG_USEC"], 10, 64)
	own := pid == "" || pid == strconv.Itoa(os.Getpid()) // otherwise WATCHDOG_USEC is for the parent process
	if err == nil && limit > 0 && limit <= math.MaxInt64/int64(time.Microsecond) && own {
		n.pings = time.Duration(limit) * time.Microsecond / 2 // as sd_watchdog_enabled(3) advises
	}
	return n
}

// Ready tells systemd that the service has started.
func (n *Notifier) Ready() error { return n.send("READY=1") }

// Stopping tells systemd that the service has begun to shut down.
func (n *Notifier) Stopping() error { return n.send("STOPPING=1") }

// Watch sends watchdog messages until ctx ends, if systemd wants them. It ignores errors: systemd
// notices that a message is missing, and restarts the service.
func (n *Notifier) Watch(ctx context.Context) {
	if n == nil || n.pings == 0 {
		return
	}
	tick := time.NewTicker(n.pings)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = n.send("WATCHDOG=1")
		case <-ctx.Done():
			return
		}
	}
}

func (n *Notifier) send(state string) error {
	if n == nil {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, n.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	// A manager that does not read must not keep a service from starting or ending.
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	return err
}
