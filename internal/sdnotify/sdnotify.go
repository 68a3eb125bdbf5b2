// Package sdnotify tells systemd how a service stands, as sd_notify(3) does: one datagram
// to the socket that NOTIFY_SOCKET names. Whoever else sets these variables (Podman, a
// test) is told the same.
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

// Notifier speaks to one service manager. A nil one speaks to nobody.
type Notifier struct {
	socket *net.UnixAddr
	pings  time.Duration // between two signs of life; 0: none are wanted
}

// New returns who is to be told by this environment, or nil.
func New(environ []string) *Notifier {
	var socket, usec, pid string
	for _, kv := range environ {
		switch name, value, _ := strings.Cut(kv, "="); name {
		case "NOTIFY_SOCKET":
			socket = value
		case "WATCHDOG_USEC":
			usec = value
		case "WATCHDOG_PID":
			pid = value
		}
	}
	// A path, or a name without a file, which begins with @. vsock addresses are for virtual
	// machines' own systemd.
	if !strings.HasPrefix(socket, "/") && !strings.HasPrefix(socket, "@") {
		return nil
	}
	n := &Notifier{socket: &net.UnixAddr{Name: socket, Net: "unixgram"}}
	limit, err := strconv.ParseInt(usec, 10, 64)
	own := pid == "" || pid == strconv.Itoa(os.Getpid()) // else it was inherited, and is another's
	if err == nil && limit > 0 && limit <= math.MaxInt64/int64(time.Microsecond) && own {
		n.pings = time.Duration(limit) * time.Microsecond / 2 // as sd_watchdog_enabled(3) advises
	}
	return n
}

// Ready says that the service has started.
func (n *Notifier) Ready() error { return n.send("READY=1") }

// Stopping says that it has begun to shut down.
func (n *Notifier) Stopping() error { return n.send("STOPPING=1") }

// Watch gives signs of life until ctx ends, if they are wanted. One that can't be sent is
// left out: systemd misses it, and acts.
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
