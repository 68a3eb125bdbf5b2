package shared

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// A server that was just elected says for a moment that it does not have the lane's last snapshot. The tenant's snapshot
// is not thrown away for that.
func TestSnapshotOutlivesAnElection(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.startAt(&natstest.Wire{Server: c.server, Delay: time.Millisecond})
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		acme := webhookgate.Lane{Platform: "p", Tenant: "acme"}
		r.send(t, "acme", "A")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		time.Sleep(5 * time.Second)
		last, err := r.readEnd(t.Context(), message.PlaceOf(acme))
		if err != nil {
			t.Fatal(err)
		}
		said := unready(t, c, func(seq uint64, _ string) bool { return seq == last.Bearer })
		event := inboxtest.Webhook("acme", "other")
		event.Type, event.Snapshot = "Other", false
		r.keep(t, event)
		time.Sleep(time.Minute)
		if w, _, err := r.Snapshot(t.Context(), acme); err != nil || string(w.Body) != "A" {
			t.Errorf("its last snapshot is %v, %v; said %d times that it is not there", w, err, *said)
		}
	})
}

// The same of a lane's end, which has changed since it was read: the webhook is still taken out of its lane once it was
// delivered.
func TestLaneOutlivesAnElection(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Set(inboxtest.Refusing)
		r := c.startAt(&natstest.Wire{Server: c.server, Delay: time.Millisecond})
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		r.send(t, "acme", "A")
		time.Sleep(5 * time.Second)
		acme := webhookgate.Lane{Platform: "p", Tenant: "acme"}
		in := r.subjects.Lane(message.PlaceOf(acme))
		said := unready(t, c, func(_ uint64, lastOn string) bool { return lastOn == in })
		term := r.term(r.subjects.PartOf(message.PlaceOf(acme)))
		term.mu.Lock()
		term.lanes[acme].end.Seq-- // as if its end were another by now
		term.mu.Unlock()
		c.receiver.Set(nil)
		time.Sleep(time.Minute)
		last, err := r.readEnd(t.Context(), message.PlaceOf(acme))
		if err != nil || last.Kind != message.Memory || last.Accepted.IsZero() || *said != 1 {
			t.Errorf("delivered %q, and its lane ends with %+v, %v; said %d times that it is not there", c.receiver.Accepted(), last, err, *said)
		}
	})
}

// unready has one read that is like that answered as a server does that was just elected. It returns how often that happened.
func unready(t *testing.T, c *cluster, like func(seq uint64, lastOn string) bool) *int {
	t.Helper()
	near, err := nats.Connect("", nats.InProcessServer(c.server))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(near.Close)
	// The server's own answer must not come first: it gets only what is passed on to it.
	const api, here = "$JS.API.STREAM.MSG.GET.USHER", "unready"
	account := c.server.GlobalAccount()
	intercept := func() {
		if err := account.AddMapping(api, here); err != nil {
			t.Error(err)
		}
	}
	answers := new(int)
	_, err = near.Subscribe(here, func(m *nats.Msg) {
		var asked struct {
			Seq    uint64
			LastOn string `json:"last_by_subj"`
		}
		account.RemoveMapping(api)
		if json.Unmarshal(m.Data, &asked) == nil && like(asked.Seq, asked.LastOn) {
			*answers++
			_ = m.Respond([]byte(`{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","error":{"code":404,"err_code":10037,"description":"no message found"}}`))
			return
		}
		_ = near.PublishRequest(api, m.Reply, m.Data)
		_ = near.Flush()
		intercept()
	})
	intercept()
	if err == nil {
		err = near.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return answers
}
