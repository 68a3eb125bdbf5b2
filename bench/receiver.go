package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// receiver takes webhooks as fast as it can, and notes of each tenant whether they
// come in order. It can be down: then nobody listens at its address.
type receiver struct {
	address string
	server  *http.Server  // nil while it is down
	delay   time.Duration // how long it takes for each

	delivered atomic.Int64 // webhooks, each counted once
	repeats   atomic.Int64 // that had been delivered before
	disorder  atomic.Int64 // that came after one that was sent later
	strange   atomic.Int64 // that it can make nothing of

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

// up has it listen: where it did before.
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

// down ends it, in the middle of whatever it is doing.
func (rc *receiver) down() {
	rc.server.Close()
}

func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body bytes.Buffer
	body.Grow(int(max(0, min(r.ContentLength, 64<<10))) + bytes.MinRead)
	if _, err := io.Copy(&body, r.Body); err != nil {
		return // it broke off, and will come again
	}
	time.Sleep(rc.delay)
	tenant, n, ok := numberOf(body.Bytes())
	if !ok {
		rc.strange.Add(1)
		return
	}
	rc.note(tenant, n)
}

func (rc *receiver) note(tenant []byte, n int) {
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
		rc.disorder.Add(1)
	default:
		rc.repeats.Add(1)
		return
	}
	rc.delivered.Add(1)
}

// numberOf reads who a webhook of ours is about, and the how manieth it is.
func numberOf(body []byte) (tenant []byte, n int, ok bool) {
	_, rest, ok := bytes.Cut(body, []byte(`"code":"`))
	tenant, rest, more := bytes.Cut(rest, []byte(`"`))
	_, rest, counted := bytes.Cut(rest, []byte(`"quantity":`))
	digits, _, _ := bytes.Cut(rest, []byte(`}`))
	n, err := strconv.Atoi(string(digits))
	return tenant, n, ok && more && counted && err == nil
}
