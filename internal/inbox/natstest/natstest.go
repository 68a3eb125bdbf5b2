// Package natstest has NATS servers for tests: in a synctest bubble, so that time is the test's, and
// wires to them that can be slow, stuck or cut.
package natstest

import (
	"bytes"
	"errors"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
)

// Main runs the tests of a package. It starts the one goroutine that all servers of a process
// share here, outside of any test's bubble: there it would keep time from passing.
func Main(m *testing.M) {
	ats.Register()
	debug.SetGCPercent(400) // each test leaves a server behind
	os.Exit(m.Run())
}

// Server is a NATS server that is reached without a network, so that it can run
// in a synctest bubble: its time is the test's.
type Server struct {
	*server.Server
	dir string
}

// New starts a server with nothing in it.
func New(options ...func(*server.Options)) *Server {
	dir, err := os.MkdirTemp("", "nats")
	if err != nil {
		panic(err)
	}
	return Start(dir, options...)
}

// Start starts a server on what is in dir.
func Start(dir string, options ...func(*server.Options)) *Server {
	o := &server.Options{ServerName: "one", DontListen: true, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true}
	for _, change := range options {
		change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		panic(err)
	}
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		panic("the server does not start")
	}
	return &Server{Server: s, dir: dir}
}

// End ends the server, and what it has kept.
func (s *Server) End() {
	// The server sleeps with a lock held when it shuts down. A goroutine that waits for that lock
	// keeps time from passing, so everything on a wire has to arrive before.
	time.Sleep(time.Second)
	s.Shutdown()
	s.WaitForShutdown()
	time.Sleep(time.Second) // until nothing is on any wire again
	os.RemoveAll(s.dir)
	// Client and server keep timers in pools, and one of this bubble is of no use in
	// the next. After two collections pools are empty.
	runtime.GC()
	runtime.GC()
}

// Restart ends the server, and starts another one on what it has kept. All wires to it have been cut.
func (s *Server) Restart(options ...func(*server.Options)) *Server {
	time.Sleep(time.Second) // as in End
	s.Shutdown()
	s.WaitForShutdown()
	time.Sleep(time.Second)
	return Start(s.dir, options...)
}

// Wire connects a replica with the server. It can be cut.
type Wire struct {
	Server *Server
	Delay  time.Duration // each way
	Rate   int           // bytes in a second to the server; zero: as many as there are
	Stuck  atomic.Bool   // what is on its way arrives when it no longer is
	Read   atomic.Int64  // bytes that came from the server

	mu    sync.Mutex // guards what follows
	cut   bool
	conns []net.Conn
}

var errCut = errors.New("the wire is cut")

// InProcessConn is how the client connects.
func (w *Wire) InProcessConn() (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut || w.Stuck.Load() {
		return nil, errCut
	}
	c, err := w.Server.InProcessConn()
	if err != nil {
		return nil, err
	}
	near, far := w.delayed(c)
	w.conns = append(w.conns, c, far) // what is on its way is lost with it, answers too
	return near, nil
}

// Sever cuts the wire. What is on its way is lost.
func (w *Wire) Sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

// Mend has it as it was.
func (w *Wire) Mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
}

// Replace makes the wire lead to another server, and repairs it.
func (w *Wire) Replace(server *Server) {
	w.mu.Lock()
	w.Server = server
	w.mu.Unlock()
	w.Mend()
}

// delayed is c with a delay in both directions, once the two have greeted each other.
// Nothing waits in a Write, nor in the greeting: clients do both under a lock, and who
// waits for a lock keeps a bubble's time from passing.
func (w *Wire) delayed(c net.Conn) (near, far net.Conn) {
	near, far = net.Pipe()
	var greeted atomic.Bool
	go w.pump(c, far, w.Rate, &greeted, nil)
	go w.pump(far, c, 0, &greeted, &w.Read)
	return near, far
}

func (w *Wire) pump(dst, src net.Conn, rate int, greeted *atomic.Bool, count *atomic.Int64) {
	type piece struct {
		data []byte
		due  time.Time
		late bool // with a delay, and after what is stuck
	}
	pieces := make(chan piece, 10_000)
	go func() {
		defer dst.Close()
		for p := range pieces {
			time.Sleep(time.Until(p.due))
			for p.late && w.Stuck.Load() {
				time.Sleep(time.Millisecond)
			}
			if _, err := dst.Write(p.data); err != nil {
				src.Close()
			}
		}
	}()
	defer close(pieces)
	b := make([]byte, 64<<10)
	var free time.Time // when the wire has sent all that came before
	for {
		n, err := src.Read(b)
		if err != nil {
			return
		}
		if count != nil {
			count.Add(int64(n))
		}
		p := piece{data: bytes.Clone(b[:n]), due: time.Now()}
		if greeted.Load() {
			if rate > 0 {
				if free.Before(p.due) {
					free = p.due
				}
				free = free.Add(time.Duration(n) * time.Second / time.Duration(rate))
				p.due = free
			}
			p.due, p.late = p.due.Add(w.Delay), true
		} else if bytes.Contains(p.data, []byte("PONG")) {
			greeted.Store(true)
		}
		pieces <- p
	}
}
