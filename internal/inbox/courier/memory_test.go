package courier

import (
	"fmt"
	"net/http"
	"testing"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
)

// What waits takes little memory, however small the bodies are: what comes with them, above all the
// headers, is many times as large, and counts towards what may be held.
func TestMemoryOfSmallWebhooks(t *testing.T) {
	const webhooks = 20_000
	c := New(config(new(inboxtest.Receiver))) // which does not run, as if the receiver were down
	d := new(desk)
	c.Begin(d, nil)
	before := inboxtest.Heap()
	for n := range uint64(webhooks) {
		w := inboxtest.Webhook(fmt.Sprint(n), "a small body")
		w.Header = make(http.Header)
		for h := range 10 {
			w.Header.Set(fmt.Sprint("X-Header-", h), fmt.Sprint("a value of some length ", n))
		}
		c.Take(d, &record.Record{ID: n + 1, Webhook: w, Status: record.Status{State: record.Waiting}}, w, false)
	}
	if each := (inboxtest.Heap() - before) / webhooks; each > 1500 {
		t.Errorf("%d bytes for each", each)
	}
	if s := c.Stats(); s.Pending != webhooks {
		t.Errorf("%+v", s)
	}
}
