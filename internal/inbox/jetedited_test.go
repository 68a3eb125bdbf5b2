package inbox

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/webhookgate"
)

// What people do to the stream of an inbox that is in use. What they delete is gone;
// nothing else may be, and usher goes on by itself.

// With the lease's message gone nobody could renew it, nor take it over.
func TestSharedInboxDeliversAfterAPurge(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []jetstream.StreamPurgeOpt
	}{
		{"of all", nil},
		{"of the lease", []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject("usher.lease")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := new(receiver)
			replicas(t, 2, r, func(t *testing.T, replicas []*running, _ []*wire) {
				replicas[0].mustKeep("acme", "A")
				time.Sleep(time.Second)
				if err := replicas[0].store.(*jetStore).stream().Purge(t.Context(), c.opts...); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				replicas[0].mustKeep("acme", "B")
				replicas[1].mustKeep("other", "C")
				time.Sleep(time.Second)
				got := r.accepted()
				slices.Sort(got)
				if !slices.Equal(got, []string{"acme:A", "acme:B", "other:C"}) {
					t.Errorf("delivered %q", got)
				}
				delivering(t, replicas)
			})
		})
	}
}

// A note builds on the last one of its webhook. With that one gone it is written all
// the same, and the servers are not asked again and again.
func TestSharedInboxNotesWhereTheLastNoteIsGone(t *testing.T) {
	r := new(receiver)
	r.set(status(500))
	replicas(t, 2, r, func(t *testing.T, replicas []*running, _ []*wire) {
		replicas[0].mustKeep("acme", "A")
		replicas[1].mustKeep("acme", "B")
		time.Sleep(time.Second)
		store := replicas[delivering(t, replicas)].store.(*jetStore)
		if err := store.stream().Purge(t.Context(), jetstream.WithPurgeSubject("usher.status.*")); err != nil {
			t.Fatal(err)
		}
		r.set(nil)
		before := store.nc.Stats().OutMsgs
		time.Sleep(time.Minute)
		if got := r.accepted(); !slices.Equal(got, []string{"acme:A", "acme:B"}) {
			t.Errorf("delivered %q", got)
		}
		if sent := store.nc.Stats().OutMsgs - before; sent > 200 { // the lease alone is sixty
			t.Errorf("%d requests in a minute", sent)
		}
		for n, replica := range replicas {
			if s := replica.Stats(); s.Pending != 0 {
				t.Errorf("replica %d: %+v", n, s)
			}
		}
	})
}

// To look for a lane's end does not make its copies webhooks of their own.
func TestSharedInboxRefreshKeepsTheLanesMemory(t *testing.T) {
	replicas(t, 1, new(receiver), func(t *testing.T, replicas []*running, _ []*wire) {
		one := replicas[0]
		store := one.store.(*jetStore)
		one.mustKeep("acme", "A")
		time.Sleep(time.Second)
		lane := webhook("acme", "").Lane
		last, _ := store.mirror.tail(laneToken(lane), new(webhookgate.Webhook))
		if err := store.refresh(t.Context(), lane, last.ID); err != nil {
			t.Fatal(err)
		}
		if !one.mustKeep("acme", "A") {
			t.Error("a copy was taken for a webhook of its own")
		}
	})
}

// Nothing of a store that was closed goes on.
func TestSharedInboxEndsWhenClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newBubbleServer()
		defer server.end()
		cfg := shared(config("", new(receiver)), &wire{server: server, delay: 300 * time.Millisecond})
		s, err := openJetStream(cfg.NATS, time.Minute, cfg.Log)
		if err != nil {
			t.Fatal(err)
		}
		for s.Err() != nil {
			time.Sleep(10 * time.Millisecond)
		}
		if _, err := s.Append(webhook("acme", "A")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		waiting, err := s.Unfinished()
		if err != nil || len(waiting) != 1 {
			t.Fatal(len(waiting), err)
		}
		s.until.Store(&deadline{from: time.Now()})
		s.Update(waiting[0])
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_ = s.catchUp(ctx) // nobody waits for its mark
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for _, f := range []string{"makeMarks", "writeNotes"} {
			if strings.Contains(string(stacks), "(*jetStore)."+f) {
				t.Errorf("%s goes on", f)
			}
		}
	})
}

// A limit that somebody gives to the stream may cost webhooks that wait: no more are taken in, it is said why, and those that are there are delivered. Without the limit all
// is well again.
func TestSharedInboxNoticesThatItsStreamIsEdited(t *testing.T) {
	r := new(receiver)
	r.set(status(500))
	replicas(t, 2, r, func(t *testing.T, replicas []*running, wires []*wire) {
		replicas[0].mustKeep("acme", "A")
		store := replicas[0].store.(*jetStore)
		edit := func(most int64) {
			cfg := store.wanted()
			cfg.MaxMsgs = most
			if _, err := store.js.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
		}
		edit(1e6)
		for n, replica := range replicas {
			if err := replica.Err(); err == nil || !strings.Contains(err.Error(), "max_msgs") {
				t.Errorf("replica %d says %v", n, err)
			}
			if _, err := replica.Keep(webhook("acme", "B")); err == nil {
				t.Errorf("replica %d took a webhook in", n)
			}
		}
		for _, w := range wires { // a new connection makes no difference
			w.sever()
			w.mend()
		}
		time.Sleep(time.Minute)
		r.set(nil)
		time.Sleep(10 * time.Minute)
		if got := r.accepted(); !slices.Equal(got, []string{"acme:A"}) {
			t.Errorf("delivered %q", got)
		}
		edit(-1)
		for _, replica := range replicas {
			if err := replica.Err(); err != nil {
				t.Error(err)
			}
		}
		replicas[1].mustKeep("acme", "C")
	})
}

// A redelivery and the deletion of what is old may meet. Either the webhook is sent again,
// or it is said that it is gone; nobody waits for it in vain.
func TestSharedInboxRedeliversOrDeletes(t *testing.T) {
	const rounds = 40
	r := new(receiver)
	replicas(t, 2, r, func(t *testing.T, replicas []*running, wires []*wire) {
		leader := delivering(t, replicas)
		other := 1 - leader
		wires[other].sever()
		wires[other].delay = testWire
		wires[other].mend()
		time.Sleep(time.Second)
		waitReady(replicas[other])
		want := 0
		for n := range rounds {
			replicas[leader].mustKeep("acme", strconv.Itoa(n))
			want++
			time.Sleep(time.Second)
			newest, ok, err := replicas[other].store.Newest(webhook("acme", "").Lane)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			answer := make(chan error, 1)
			go func() { answer <- replicas[other].Redeliver(newest.ID, false) }()
			time.Sleep(time.Duration(n) * 10 * time.Millisecond)
			if err := replicas[leader].store.(*jetStore).trim(t.Context(), time.Now().Add(keepAge+time.Duration(n)*trimEvery)); err != nil {
				t.Fatal(err)
			}
			switch err := <-answer; {
			case err == nil:
				want++
			case !errors.Is(err, ErrNotFound):
				t.Errorf("round %d: %v", n, err)
			}
			time.Sleep(time.Second)
			if got := len(r.accepted()); got != want {
				t.Errorf("round %d: %d deliveries, and %d were expected", n, got, want)
				want = got
			}
			for i, replica := range replicas {
				if s := replica.Stats(); s.Pending != 0 {
					t.Errorf("round %d, replica %d: %+v", n, i, s)
				}
			}
		}
		if want == rounds || want == 2*rounds {
			t.Error("they never met")
		}
	})
}

// What was to go, and is still there because who delivered then is no more, goes all the
// same.
func TestSharedInboxDeletesWhatOthersLeft(t *testing.T) {
	replicas(t, 1, new(receiver), func(t *testing.T, replicas []*running, _ []*wire) {
		one := replicas[0]
		store := one.store.(*jetStore)
		older, newer := one.twoDelivered()
		if _, err := store.publish(t.Context(), message("usher.trim", strconv.AppendUint(nil, older, 10))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if _, err := store.message(t.Context(), older); !errors.Is(err, jetstream.ErrMsgNotFound) {
			t.Errorf("it is still there: %v", err)
		}
		if _, err := store.message(t.Context(), newer); err != nil {
			t.Error(err)
		}
	})
}
