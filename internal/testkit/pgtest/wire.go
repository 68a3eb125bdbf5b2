package pgtest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Wire stands between clients and a server, and breaks where a test says. It reads their messages, so that it
// finds a statement also where only the name of a prepared one is sent. It offers no TLS.
type Wire struct {
	t        testing.TB
	listener net.Listener
	target   string

	mu      sync.Mutex // guards what follows
	changed *sync.Cond // mode, or a link that closed
	mode    mode
	latency time.Duration
	cuts    []*cut
	links   map[*link]bool
}

type mode int

const (
	passing mode = iota
	refusing
	blackhole
)

// Side says who sent something.
type Side int

// The two sides of a wire.
const (
	FromClient Side = iota
	FromServer
)

// When says on which side of a statement a connection breaks.
type When int

// Before: the server does not see it. After: the server has executed it, and the client does not see the answer.
const (
	Before When = iota
	After
)

// cut says where a connection breaks.
type cut struct {
	from  Side
	left  int    // bytes, or appearances of a statement
	text  string // what the statement contains; empty: bytes count
	when  When
	fired chan struct{}
}

// Cut makes a wire to a server's address. Until a test says otherwise it passes everything on.
func Cut(t testing.TB, target string) *Wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{t: t, listener: l, target: target, links: make(map[*link]bool)}
	w.changed = sync.NewCond(&w.mu)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.connect(c)
		}
	}()
	t.Cleanup(func() { l.Close(); w.Refuse() })
	return w
}

// Addr is where clients connect.
func (w *Wire) Addr() string { return w.listener.Addr().String() }

// Through is an address of the server that leads through the wire.
func (w *Wire) Through(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic("no address")
	}
	u.Host = w.Addr()
	return u.String()
}

// Bytes breaks the connection on which the n-th byte from that side passes, counted over all from now on.
// That byte is the last one that arrives. What is returned is closed once it has happened.
func (w *Wire) Bytes(from Side, n int) <-chan struct{} {
	return w.add(&cut{from: from, left: n})
}

// Statement breaks the connection of the n-th statement from now on that contains the text, before or after the server
// executes it. What is returned is closed once it has happened.
func (w *Wire) Statement(text string, n int, when When) <-chan struct{} {
	return w.add(&cut{text: text, left: n, when: when})
}

func (w *Wire) add(c *cut) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.fired = make(chan struct{})
	w.cuts = append(w.cuts, c)
	return c.fired
}

// Latency delays everything by so much, each way. What is on its way already is not delayed.
func (w *Wire) Latency(each time.Duration) { w.mu.Lock(); defer w.mu.Unlock(); w.latency = each }

// Sever breaks all connections. New ones are possible.
func (w *Wire) Sever() {
	w.mu.Lock()
	links := slices.Collect(maps.Keys(w.links))
	w.mu.Unlock()
	for _, l := range links {
		l.close()
	}
}

// Refuse breaks all connections, and refuses new ones.
func (w *Wire) Refuse() { w.set(refusing); w.Sever() }

// Blackhole holds back everything, in both directions. New connections are made, and get no answer.
func (w *Wire) Blackhole() { w.set(blackhole) }

// Pass passes everything on again, also what was held back.
func (w *Wire) Pass() { w.set(passing) }

func (w *Wire) set(m mode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mode = m
	w.changed.Broadcast()
}

// link is one connection.
type link struct {
	w              *Wire
	client, server net.Conn
	prepared       map[string]string // statements by their names
	closed         bool              // guarded by w.mu, as is what follows
	muted          *cut              // its statement is with the server; no answer is passed on
}

func (w *Wire) connect(client net.Conn) {
	w.mu.Lock()
	refused := w.mode == refusing
	w.mu.Unlock()
	server, err := net.Dial("tcp", w.target)
	if refused || err != nil {
		_ = client.(*net.TCPConn).SetLinger(0) // a reset
		client.Close()
		if err == nil {
			server.Close()
		}
		return
	}
	l := &link{w: w, client: client, server: server, prepared: make(map[string]string)}
	w.mu.Lock()
	w.links[l] = true
	w.mu.Unlock()
	go l.pump(server, client, FromClient)
	go l.pump(client, server, FromServer)
}

func (l *link) close() {
	l.client.Close()
	l.server.Close()
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.closed = true
	delete(l.w.links, l)
	l.w.changed.Broadcast()
}

// pump passes messages on, each when it is due.
func (l *link) pump(dst, src net.Conn, from Side) {
	type message struct {
		data []byte
		due  time.Time
	}
	messages := make(chan message, 10_000)
	go func() {
		out := bufio.NewWriterSize(dst, 64<<10)
		for m := range messages {
			time.Sleep(time.Until(m.due))
			pass, cut := l.judge(m.data, from)
			_, err := out.Write(pass)
			if cut != nil || len(messages) == 0 {
				err = out.Flush()
			}
			if err != nil || cut != nil {
				l.close()
			}
			if cut != nil {
				close(cut.fired)
			}
		}
		l.close()
	}()
	defer close(messages)
	in := bufio.NewReaderSize(src, 64<<10)
	for starting := from == FromClient; ; {
		data, err := read(in, starting)
		if err != nil {
			return
		}
		if starting && binary.BigEndian.Uint32(data[4:]) == askTLS {
			if _, err := src.Write([]byte("N")); err != nil {
				return
			}
			continue
		}
		starting = false
		l.w.mu.Lock()
		due := time.Now().Add(l.w.latency)
		l.w.mu.Unlock()
		messages <- message{data, due}
	}
}

const askTLS = 80877103

// read reads a message: its type, which a client's first one has not, its length, and what that counts.
func read(in *bufio.Reader, first bool) ([]byte, error) {
	header := 5
	if first {
		header = 4
	}
	data := make([]byte, header)
	if _, err := io.ReadFull(in, data); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(data[header-4:])) - 4
	if size < 0 || first && size < 4 {
		return nil, io.ErrUnexpectedEOF
	}
	data = slices.Grow(data, size)[:header+size]
	_, err := io.ReadFull(in, data[header:])
	return data, err
}

// judge says what of a message is passed on, and whether the connection breaks behind it.
func (l *link) judge(data []byte, from Side) (pass []byte, hit *cut) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	for l.w.mode == blackhole && !l.closed {
		l.w.changed.Wait()
	}
	if l.closed {
		return nil, nil
	}
	if from == FromServer && l.muted != nil {
		if data[0] == 'Z' { // ready for the next statement
			return nil, l.muted
		}
		return nil, nil
	}
	statement := ""
	if from == FromClient {
		statement = l.statement(data)
	}
	for i, c := range l.w.cuts {
		switch {
		case c.from != from || c.text != "" && !strings.Contains(statement, c.text):
			continue
		case c.text == "" && c.left > len(data):
			c.left -= len(data)
			continue
		case c.text != "" && c.left > 1:
			c.left--
			continue
		}
		l.w.cuts = slices.Delete(slices.Clone(l.w.cuts), i, i+1)
		switch {
		case c.text == "":
			return data[:c.left], c
		case c.when == Before:
			return nil, c
		}
		l.muted = c
		break
	}
	return data, nil
}

// statement is what a client's message has the server execute.
func (l *link) statement(data []byte) string {
	body := data[min(5, len(data)):]
	switch data[0] {
	case 'Q':
		return string(body)
	case 'P': // prepares it: its name, its text
		if parts := bytes.SplitN(body, []byte{0}, 3); len(parts) == 3 {
			l.prepared[string(parts[0])] = string(parts[1])
		}
	case 'B': // executes it: where to, its name
		if parts := bytes.SplitN(body, []byte{0}, 3); len(parts) == 3 {
			return l.prepared[string(parts[1])]
		}
	}
	return ""
}

// Again is a new wire to the same server.
func (w *Wire) Again() *Wire { return Cut(w.t, w.target) }

// Calm forgets what the wire was told: it passes everything on at once, and breaks nothing.
func (w *Wire) Calm() {
	w.mu.Lock()
	w.cuts, w.latency = nil, 0
	w.mu.Unlock()
	w.Pass()
}
