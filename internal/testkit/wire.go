package testkit

import (
	"errors"
	"net"
	"sync"
)

// Wire is a network that fails on demand: a TCP proxy in front of one server. A sandbox.Fault is a
// server that fails; a Disturbance is a failure on the way.
type Wire struct {
	// Tap is called with all bytes that were passed on, in order for each direction; the two
	// directions are concurrent. Set it before the first connection.
	Tap func(d Direction, p []byte)

	listener net.Listener
	target   string
	pumps    sync.WaitGroup

	mu     sync.Mutex         // guards what follows
	now    Disturbance        // the current one
	links  map[*link]struct{} // open connections
	dialed int
	closed bool
}

// Direction of the bytes on a [Wire].
type Direction int

const (
	Up   Direction = iota // from the client to the server
	Down                  // from the server to the client
)

// How a connection ends on a [Wire].
type How int

const (
	Unbroken How = iota // it does not end
	Reset               // both ends see a reset
	HangUp              // both ends see an orderly close
)

// Disturbance is what a [Wire] does to its connections: it ends each after After bytes in a direction, counted from when
// the disturbance was set. The next byte is not passed on. The zero one is a good wire.
type Disturbance struct {
	Break     How
	Direction Direction
	After     int
}

// link is one connection through the wire.
type link struct {
	wire   *Wire
	ends   [2]*net.TCPConn // client, server: indexed by the direction of the bytes that they send
	passed [2]int          // bytes since the disturbance was set; guarded by wire.mu
	silent bool            // passes nothing on any more; guarded by wire.mu
}

// NewWire returns a good wire to target, a host and port, that listens on loopback.
func NewWire(target string) (*Wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &Wire{listener: l, target: target, links: make(map[*link]struct{})}
	w.pumps.Go(w.accept)
	return w, nil
}

// URL returns the address of the wire.
func (w *Wire) URL() string { return "http://" + w.listener.Addr().String() }

// Disturb sets what happens from now on, also on open connections.
func (w *Wire) Disturb(d Disturbance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = d
	for l := range w.links {
		l.passed = [2]int{}
	}
}

// Dialed returns how many connections there ever were.
func (w *Wire) Dialed() int { w.mu.Lock(); defer w.mu.Unlock(); return w.dialed }

// BreakAll ends every open connection as how says, whatever is in progress.
func (w *Wire) BreakAll(how How) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		l.breakOff(how)
	}
}

// Close ends the wire and all of its connections.
func (w *Wire) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.listener.Close()
	w.BreakAll(Reset)
	w.pumps.Wait()
}

func (w *Wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", w.target)
		if err != nil {
			client.Close()
			continue
		}
		l := &link{wire: w, ends: [2]*net.TCPConn{client.(*net.TCPConn), server.(*net.TCPConn)}}
		w.mu.Lock()
		w.dialed++
		w.links[l] = struct{}{}
		if w.closed {
			l.breakOff(Reset)
		}
		w.mu.Unlock()
		w.pumps.Go(l.serve)
	}
}

// serve passes bytes on until both directions have ended.
func (l *link) serve() {
	var both sync.WaitGroup
	both.Go(func() { l.pump(Up) })
	both.Go(func() { l.pump(Down) })
	both.Wait()
	l.wire.mu.Lock()
	delete(l.wire.links, l)
	l.wire.mu.Unlock()
	l.ends[Up].Close()
	l.ends[Down].Close()
}

func (l *link) pump(d Direction) {
	from, to := l.ends[d], l.ends[1-d]
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			pass := l.admit(d, n)
			if l.wire.Tap != nil && pass > 0 {
				l.wire.Tap(d, buf[:pass])
			}
			if _, werr := to.Write(buf[:pass]); werr != nil {
				err = errors.Join(err, werr)
			}
			if pass < n {
				l.exceed()
			}
		}
		if err != nil {
			_ = to.CloseWrite()
			return
		}
	}
}

// admit returns how many of the next n bytes may pass.
func (l *link) admit(d Direction, n int) int {
	l.wire.mu.Lock()
	defer l.wire.mu.Unlock()
	now := &l.wire.now
	pass := n
	switch {
	case l.silent:
		return 0
	case now.Break != Unbroken && now.Direction == d:
		pass = min(n, max(0, now.After-l.passed[d]))
	}
	l.passed[d] += pass
	return pass
}

// exceed ends the connection as the disturbance says, unless it has already ended.
func (l *link) exceed() {
	l.wire.mu.Lock()
	defer l.wire.mu.Unlock()
	if !l.silent {
		l.breakOff(l.wire.now.Break)
	}
}

// breakOff ends the connection. wire.mu is held.
func (l *link) breakOff(how How) {
	l.silent = true
	for _, end := range l.ends {
		switch how {
		case Reset:
			_ = end.SetLinger(0)
			_ = end.Close()
		case HangUp: // the connection ends when both sides have closed theirs, too
			_ = end.CloseWrite()
		}
	}
}
