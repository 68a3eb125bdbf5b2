package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A receiver takes webhooks as fast as it can, and notes whether each tenant's come in order. It can be down: then
// nobody listens at its address.
type receiver struct {
	address   string
	server    *http.Server
	delivered atomic.Int64 // webhooks, each counted once
	faulty    atomic.Int64 // that came after one that was sent later, or that it can make nothing of

	mu      sync.Mutex // guards what follows
	tenants map[string]*arrivals
}

// arrivals are a tenant's webhooks. They are numbered from 0.
type arrivals struct {
	next    int          // the one after the highest that has come
	missing map[int]bool // those below it that have not come
}

func newReceiver() (*receiver, error) {
	rc := &receiver{address: "127.0.0.1:0", tenants: make(map[string]*arrivals)}
	return rc, rc.up()
}

// up makes it listen: where it did before.
func (rc *receiver) up() error {
	l, err := net.Listen("tcp", rc.address)
	if err != nil {
		return err
	}
	rc.address = l.Addr().String()
	rc.server = &http.Server{Handler: rc}
	go rc.server.Serve(l)
	return nil
}

// down ends it, in the middle of whatever it does.
func (rc *receiver) down() { rc.server.Close() }

func (rc *receiver) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // it comes again
	}
	_, rest, _ := bytes.Cut(body, []byte(`"code":"`))
	tenant, rest, _ := bytes.Cut(rest, []byte(`"`))
	_, rest, _ = bytes.Cut(rest, []byte(`"quantity":`))
	digits, _, _ := bytes.Cut(rest, []byte(`}`))
	n, err := strconv.Atoi(string(digits))
	if err != nil {
		rc.faulty.Add(1)
		return
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	a := rc.tenants[string(tenant)]
	if a == nil {
		a = &arrivals{missing: make(map[int]bool)}
		rc.tenants[string(tenant)] = a
	}
	switch {
	case n >= a.next:
		for i := a.next; i < n; i++ {
			a.missing[i] = true
		}
		a.next = n + 1
	case a.missing[n]:
		delete(a.missing, n)
		rc.faulty.Add(1)
	default:
		return // it came before
	}
	rc.delivered.Add(1)
}

// lostAfter is for how long nothing is delivered before what is missing counts as lost.
const lostAfter = 40 * time.Second // more than a lease, which another try may have to wait for

// wait waits until so many are delivered, and says how long that took since it began.
func (rc *receiver) wait(ctx context.Context, want int64, began time.Time) (took time.Duration, err error) {
	ended, last := time.Now(), rc.delivered.Load()
	for last < want && time.Since(ended) < lostAfter && ctx.Err() == nil {
		if n := rc.delivered.Load(); n > last {
			ended, last = time.Now(), n
		}
		time.Sleep(time.Millisecond)
	}
	if missing := want - last; missing > 0 || rc.faulty.Load() > 0 {
		err = fmt.Errorf("%d webhooks are missing, %d came out of order", missing, rc.faulty.Load())
	}
	return ended.Sub(began), err
}
