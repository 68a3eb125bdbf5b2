package entitlements

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/snapshot"
)

// BenchmarkCheck measures a check with net/http's server and the handler, and for comparison a bare
// handler that answers from a map. It has no network; with one, the two differ even less.
func BenchmarkCheck(b *testing.B) {
	const request = "GET /v1/check?tenant=acme&feature=users HTTP/1.1\r\nHost: 127.0.0.1:8070\r\nUser-Agent: app/1.0\r\nAccept: */*\r\n"
	const key = "X-Usher-Key: first-key-0123456789\r\n"
	type right struct{ tenant, feature string }
	rights := map[right]bool{{"acme", "users"}: true}
	bare := func(w http.ResponseWriter, r *http.Request) {
		params := r.URL.Query()
		if !rights[right{params.Get("tenant"), params.Get("feature")}] {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
	cfg := config(b)
	cfg.Checked = func(string) {}
	keyed := cfg
	keyed.Key = func() string { return "first-key-0123456789" }
	b.Run("bare", func(b *testing.B) { throughServer(b, http.HandlerFunc(bare), request+"\r\n") })
	b.Run("usher", func(b *testing.B) { throughServer(b, New(cfg), request+"\r\n") })
	b.Run("usher with a key", func(b *testing.B) { throughServer(b, New(keyed), request+key+"\r\n") })
}

// throughServer lets net/http's server answer the same request b.N times on one connection.
func throughServer(b *testing.B, h http.Handler, request string) {
	b.ReportAllocs()
	conn := &loop{request: request, left: b.N, closed: make(chan struct{})}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	b.ResetTimer()
	_ = server.Serve(&single{conn: conn})
	<-conn.closed
	b.StopTimer()
	if conn.answers == 0 {
		b.Fatal("no answer")
	}
}

// single is a listener of one connection.
type single struct {
	once sync.Once
	conn net.Conn
}

func (l *single) Accept() (conn net.Conn, err error) {
	err = errors.New("that was all")
	l.once.Do(func() { conn, err = l.conn, nil })
	return conn, err
}

func (l *single) Close() error   { return nil }
func (l *single) Addr() net.Addr { return &net.TCPAddr{} }

// loop is a connection that sends the same request again and again.
type loop struct {
	request string
	left    int
	rest    string
	answers int
	once    sync.Once
	closed  chan struct{}
}

func (c *loop) Read(p []byte) (int, error) {
	if c.rest == "" {
		if c.left == 0 {
			return 0, io.EOF
		}
		c.left--
		c.rest = c.request
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *loop) Write(p []byte) (int, error) {
	c.answers++
	return len(p), nil
}

func (c *loop) Close() error                     { c.once.Do(func() { close(c.closed) }); return nil }
func (c *loop) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *loop) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *loop) SetDeadline(time.Time) error      { return nil }
func (c *loop) SetReadDeadline(time.Time) error  { return nil }
func (c *loop) SetWriteDeadline(time.Time) error { return nil }

// BenchmarkLookup measures a Book: a tenant that it holds, and tenants that it has to ask for while others
// change, with a store that takes a millisecond.
func BenchmarkLookup(b *testing.B) {
	store := func(_ context.Context, tenants []string) (found []snapshot.Stored, _ error) {
		time.Sleep(time.Millisecond)
		for _, t := range tenants {
			found = append(found, snapshot.Stored{Tenant: t, Features: []byte(`[{"code":"users","limit":5}]`)})
		}
		return found, nil
	}
	lookups := func(b *testing.B, callers, tenants int) {
		book := NewBook(store, true)
		var n atomic.Int64
		b.SetParallelism(callers)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				i := int(n.Add(1))
				tenant := fmt.Sprint("t", i%tenants)
				if _, err := book.Lookup(context.Background(), tenant, nil); err != nil {
					b.Error(err)
				}
				if tenants > 1 && i%100 == 0 {
					book.Changed(tenant)
				}
			}
		})
	}
	b.Run("held", func(b *testing.B) { lookups(b, 1, 1) })
	b.Run("asked", func(b *testing.B) { lookups(b, 500, 100_000) })
}
