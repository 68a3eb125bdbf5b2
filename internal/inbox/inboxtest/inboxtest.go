// Package inboxtest has what the tests of the inbox's rooms share: a receiver, and
// webhooks to send to it.
package inboxtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/webhookgate"
	"usher/webhookgate/content"
)

// Answer is what a receiver does with its nth try, counted from 1.
type Answer func(w *webhookgate.Webhook, n int) webhookgate.Attempt

// Receiver notes what it gets, and answers as told.
type Receiver struct {
	mu       sync.Mutex
	got      []string    // tenant:body, as accepted
	tries    []time.Time // of all
	answer   Answer      // nil: 200
	underway int
	most     int // at once
	delay    time.Duration
}

// Try is one try.
func (r *Receiver) Try(ctx context.Context, w *webhookgate.Webhook) webhookgate.Attempt {
	r.mu.Lock()
	r.tries = append(r.tries, time.Now())
	r.underway++
	r.most = max(r.most, r.underway)
	n, answer, delay := len(r.tries), r.answer, r.delay
	r.mu.Unlock()
	defer func() { r.mu.Lock(); r.underway--; r.mu.Unlock() }()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return webhookgate.Attempt{Err: ctx.Err()}
	}
	a := webhookgate.Attempt{Status: 200}
	if answer != nil {
		a = answer(w, n)
	}
	if a.Accepted() {
		r.mu.Lock()
		r.got = append(r.got, w.Lane.Tenant+":"+string(w.Body))
		r.mu.Unlock()
	}
	return a
}

// Set has it answer so from now on; nil: 200.
func (r *Receiver) Set(answer Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// Slow has each try take so long from now on.
func (r *Receiver) Slow(delay time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = delay
}

// Accepted is what it has accepted: tenant:body.
func (r *Receiver) Accepted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.got...)
}

// Tried is when each try began.
func (r *Receiver) Tried() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]time.Time(nil), r.tries...)
}

// Most is how many tries there were at once.
func (r *Receiver) Most() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

// Want compares what it has accepted.
func (r *Receiver) Want(t *testing.T, want ...string) {
	t.Helper()
	if got := r.Accepted(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the receiver accepted %v, want %v", got, want)
	}
}

// Status answers every try so.
func Status(code int) Answer {
	return func(*webhookgate.Webhook, int) webhookgate.Attempt { return webhookgate.Attempt{Status: code} }
}

// Refusing is a receiver that is down.
func Refusing(*webhookgate.Webhook, int) webhookgate.Attempt {
	return webhookgate.Attempt{Err: errDown}
}

var errDown = errors.New("connection refused")

// Ill answers the tries of one tenant with 500, others with 200.
func Ill(tenant string) Answer {
	return func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
		if w.Lane.Tenant == tenant {
			return webhookgate.Attempt{Status: 500}
		}
		return webhookgate.Attempt{Status: 200}
	}
}

var counter atomic.Int64

// Webhook is a snapshot of a tenant on platform p.
func Webhook(tenant, body string) *webhookgate.Webhook {
	return &webhookgate.Webhook{
		ID: fmt.Sprintf("id-%d", counter.Add(1)), Type: content.TenantProvisioningChange,
		Lane: webhookgate.Lane{Platform: "p", Tenant: tenant}, Snapshot: true,
		Digest: sha256.Sum256([]byte(body)), Body: []byte(body), Received: time.Now(),
		Header: http.Header{"X-Test": {"1"}},
	}
}

// Heap is the memory in use, without garbage.
func Heap() uint64 {
	runtime.GC()
	runtime.GC() // what is in pools goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
