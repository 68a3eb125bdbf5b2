package inbox

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
)

// TestMain starts the one goroutine that all servers of a process share here, outside
// of any test's bubble: there it would keep time from passing.
func TestMain(m *testing.M) {
	ats.Register()
	os.Exit(m.Run())
}

// bubbleServer is a NATS server that is reached without a network, so that it can run
// in a synctest bubble: its time is the test's.
type bubbleServer struct {
	*server.Server
	dir string
}

func newBubbleServer() *bubbleServer {
	dir, err := os.MkdirTemp("", "nats")
	if err != nil {
		panic(err)
	}
	return startBubbleServer(dir)
}

// startBubbleServer starts a server on what is in dir.
func startBubbleServer(dir string) *bubbleServer {
	s, err := server.NewServer(&server.Options{ServerName: "one", DontListen: true, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		panic(err)
	}
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		panic("the server does not start")
	}
	return &bubbleServer{Server: s, dir: dir}
}

func (s *bubbleServer) end() {
	// The server sleeps with a lock held when it shuts down. Whoever waits for that lock
	// keeps time from passing, so what is on any wire has to arrive before.
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

// wire connects a replica with the server. It can be cut.
type wire struct {
	server *bubbleServer
	delay  time.Duration // each way
	stuck  atomic.Bool   // what is on its way arrives when it no longer is

	mu    sync.Mutex // guards what follows
	cut   bool
	conns []net.Conn
}

var errCut = errors.New("the wire is cut")

// InProcessConn is how the client connects.
func (w *wire) InProcessConn() (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut || w.stuck.Load() {
		return nil, errCut
	}
	c, err := w.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	near, far := w.delayed(c)
	w.conns = append(w.conns, c, far) // what is on its way is lost with it, answers too
	return near, nil
}

func (w *wire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
}

// replace has the wire lead to another server. It is mended.
func (w *wire) replace(server *bubbleServer) {
	w.mu.Lock()
	w.server = server
	w.mu.Unlock()
	w.mend()
}

// delayed is c with a delay in both directions, once the two have greeted each other.
// Nothing waits in a Write, nor in the greeting: clients do both under a lock, and who
// waits for a lock keeps a bubble's time from passing.
func (w *wire) delayed(c net.Conn) (near, far net.Conn) {
	near, far = net.Pipe()
	var greeted atomic.Bool
	go w.pump(c, far, w.delay, &greeted)
	go w.pump(far, c, w.delay, &greeted)
	return near, far
}

func (w *wire) pump(dst, src net.Conn, delay time.Duration, greeted *atomic.Bool) {
	type piece struct {
		data []byte
		due  time.Time
		late bool // with a delay, and after what is stuck
	}
	pieces := make(chan piece, 100_000)
	go func() {
		defer dst.Close()
		for p := range pieces {
			time.Sleep(time.Until(p.due))
			for p.late && w.stuck.Load() {
				time.Sleep(time.Millisecond)
			}
			if _, err := dst.Write(p.data); err != nil {
				src.Close()
			}
		}
	}()
	defer close(pieces)
	for {
		b := make([]byte, 64<<10)
		n, err := src.Read(b)
		if err != nil {
			return
		}
		p := piece{data: b[:n], due: time.Now()}
		if greeted.Load() {
			p.due, p.late = p.due.Add(delay), true
		} else if bytes.Contains(p.data, []byte("PONG")) {
			greeted.Store(true)
		}
		pieces <- p
	}
}

// shared makes cfg that of a replica at the end of w.
func shared(cfg Config, w *wire) Config {
	cfg.URL = ""
	cfg.NATS = &NATS{Servers: []string{nats.DefaultURL}, Stream: "USHER", options: []nats.Option{nats.InProcessServer(w)}}
	if testing.Verbose() {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return cfg
}
