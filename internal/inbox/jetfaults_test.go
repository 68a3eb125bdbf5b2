package inbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/webhookgate"
)

// The servers have A, but their answer is lost, and before the replica is back another
// one has appended B. A must not be appended again: it would undo B.
func TestSharedInboxAppendsOnceThoughTheAnswerIsLost(t *testing.T) {
	r := new(receiver)
	replicas(t, 2, r, func(t *testing.T, replicas []*running, wires []*wire) {
		var sending sync.WaitGroup
		sending.Go(func() {
			if replicas[0].mustKeep("acme", "A") {
				t.Error("A was taken for a copy")
			}
		})
		time.Sleep(3 * wires[0].delay / 2) // it is there, its answer is on the way
		wires[0].sever()
		time.Sleep(100 * time.Millisecond)
		replicas[1].mustKeep("acme", "B")
		wires[0].mend()
		sending.Wait()
		time.Sleep(time.Minute)
		if got := r.accepted(); !slices.Equal(got, []string{"acme:A", "acme:B"}) {
			t.Errorf("delivered %q", got)
		}
	})
}

// A does not get to the servers, and its sender, tired of waiting, goes on through another
// replica. The first A must not be appended now: it would undo what came after it. Nor may
// it be dropped, as it could be a change back to A: its sender, if it is still there, is
// to come again.
func TestSharedInboxRefusesWhatItsSenderHasGoneBeyond(t *testing.T) {
	for name, tc := range map[string]struct{ before, elsewhere []string }{
		"it sends A elsewhere, then B":                {nil, []string{"A", "B"}},
		"elsewhere A is known from a try before that": {[]string{"A"}, []string{"A", "B"}},
		"it gives A up, and sends B":                  {nil, []string{"B"}},
		"it goes back to B, which is there":           {[]string{"B"}, []string{"B"}},
	} {
		for how, trouble := range map[string]struct{ begin, end func(*wire) }{
			"lost":  {(*wire).sever, (*wire).mend},
			"stuck": {func(w *wire) { w.stuck.Store(true) }, func(w *wire) { w.stuck.Store(false) }},
		} {
			t.Run(name+"; the first is "+how, func(t *testing.T) {
				r := new(receiver)
				replicas(t, 2, r, func(t *testing.T, replicas []*running, wires []*wire) {
					var want []string
					keep := func(snapshots []string) {
						for _, s := range snapshots {
							if !replicas[1].mustKeep("acme", s) {
								want = append(want, "acme:"+s)
							}
						}
					}
					keep(tc.before)
					time.Sleep(time.Second)
					var sending sync.WaitGroup
					sending.Go(func() {
						if _, err := replicas[0].Keep(webhook("acme", "A")); !errors.Is(err, errStale) {
							t.Errorf("it says %v", err)
						}
					})
					time.Sleep(wires[0].delay / 2) // it is on its way
					trouble.begin(wires[0])
					time.Sleep(time.Second)
					keep(tc.elsewhere)
					trouble.end(wires[0])
					sending.Wait()
					if replicas[0].mustKeep("acme", "A") {
						t.Error("a change back to A was taken for a copy")
					}
					time.Sleep(time.Minute)
					if got := r.accepted(); !slices.Equal(got, append(want, "acme:A")) {
						t.Errorf("delivered %q", got)
					}
				})
			})
		}
	}
}

// Webhooks of a tenant that came at once, and stand in line while the servers say nothing,
// are all answered, and the line goes on afterwards.
func TestSharedInboxLineOutlivesAnOutage(t *testing.T) {
	r := new(receiver)
	replicas(t, 1, r, func(t *testing.T, replicas []*running, wires []*wire) {
		one := replicas[0]
		wires[0].stuck.Store(true)
		var sending sync.WaitGroup
		for n := range 5 {
			sending.Go(func() {
				if _, err := one.Keep(webhook("acme", strconv.Itoa(n))); err == nil {
					t.Error("taken in without servers")
				}
			})
		}
		sending.Wait()
		wires[0].stuck.Store(false)
		for one.Err() != nil {
			time.Sleep(time.Second)
		}
		one.mustKeep("acme", "last")
		time.Sleep(time.Minute)
		if got := r.accepted(); len(got) == 0 || got[len(got)-1] != "acme:last" {
			t.Errorf("delivered %q", got)
		}
	})
}

// A tenant that changes back and forth faster than the servers take it in is not taken
// for one whose sender has gone elsewhere, neither for what came in here just before nor
// for what came in elsewhere before that and is only now learned of.
func TestSharedInboxTakesABurst(t *testing.T) {
	r := new(receiver)
	replicas(t, 2, r, func(t *testing.T, replicas []*running, wires []*wire) {
		wires[0].delay = 100 * time.Millisecond
		wires[0].sever() // what is there goes by the old one
		wires[0].mend()
		time.Sleep(10 * time.Second)
		replicas[1].mustKeep("acme", "A")
		replicas[1].mustKeep("acme", "B")
		want := []string{"acme:A", "acme:B"}
		var sending sync.WaitGroup
		for n := range 12 {
			snapshot := string("CDAB"[n%4])
			want = append(want, "acme:"+snapshot)
			sending.Go(func() { replicas[0].mustKeep("acme", snapshot) })
			synctest.Wait() // it stands in the line
		}
		sending.Wait()
		time.Sleep(time.Minute)
		if got := r.accepted(); !slices.Equal(got, want) {
			t.Errorf("delivered %q, want %q", got, want)
		}
	})
}

// twoDelivered has two webhooks of a lane delivered.
func (r *running) twoDelivered() (first, second uint64) {
	r.t.Helper()
	r.mustKeep("acme", "A")
	r.mustKeep("acme", "B")
	time.Sleep(time.Second)
	entries, err := r.List(Filter{})
	if err != nil || len(entries) != 2 {
		r.t.Fatal(len(entries), err)
	}
	return entries[1].ID, entries[0].ID
}

// One that is gone already is no reason to leave the rest in the log for ever.
func TestSharedInboxErasesTheRest(t *testing.T) {
	replicas(t, 1, new(receiver), func(t *testing.T, replicas []*running, _ []*wire) {
		one := replicas[0]
		store := one.store.(*jetStore)
		first, second := one.twoDelivered()
		for _, ids := range [][]uint64{{first}, {first, second}} {
			if err := store.erase(context.Background(), ids, 0); err != nil {
				t.Error(err)
			}
		}
		if _, err := store.message(context.Background(), second); !errors.Is(err, jetstream.ErrMsgNotFound) {
			t.Errorf("the second is still there: %v", err)
		}
	})
}

// Replicas' clocks differ. That must not make a redelivery look like an earlier one.
func TestSharedInboxRedeliversWhateverTheClocksSay(t *testing.T) {
	r := new(receiver)
	replicas(t, 2, r, func(t *testing.T, replicas []*running, _ []*wire) {
		replicas[0].mustKeep("acme", "A")
		time.Sleep(time.Second)
		entries, err := replicas[0].List(Filter{})
		if err != nil || len(entries) != 1 {
			t.Fatal(len(entries), err)
		}
		again, err := replicas[0].store.Read(entries[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		ahead := time.Now().Add(time.Minute)
		again.status = Status{State: Waiting, Changed: ahead, Again: ahead}
		if err := replicas[0].store.Again(again, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := replicas[1].Redeliver(again.id, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := r.accepted(); len(got) != 3 {
			t.Errorf("delivered %q", got)
		}
	})
}

// A second try needs the webhook's content from the servers. Where those can't be
// reached for a moment the lane waits for a moment.
func TestSharedInboxReadsAgainSoon(t *testing.T) {
	r := new(receiver)
	var tried []time.Time
	r.set(func(*webhookgate.Webhook, int) webhookgate.Attempt {
		tried = append(tried, time.Now())
		return webhookgate.Attempt{Status: map[bool]int{true: 500, false: 200}[len(tried) == 1]}
	})
	replicas(t, 1, r, func(t *testing.T, replicas []*running, wires []*wire) {
		replicas[0].mustKeep("acme", "A")
		for range 10 {
			time.Sleep(10 * time.Millisecond)
			wires[0].sever()
			time.Sleep(time.Millisecond)
			wires[0].mend()
			time.Sleep(200 * time.Millisecond)
		}
		time.Sleep(time.Hour)
		if len(tried) != 2 || tried[1].Sub(tried[0]) > time.Minute {
			t.Errorf("tried at %v", tried)
		}
	})
}

// A lane lives on while something of it is parked. What it ended with may be dropped
// before that, and is then no longer what a copy could be one of.
func TestSharedInboxWindowEndsWithTheRecord(t *testing.T) {
	r := new(receiver)
	replicas(t, 1, r, func(t *testing.T, replicas []*running, _ []*wire) {
		one := replicas[0]
		r.set(status(422))
		event := webhook("acme", "an event")
		event.Snapshot = false // no snapshot will supersede it
		if _, err := one.Keep(event); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		r.set(nil)
		one.mustKeep("acme", "A")
		time.Sleep(time.Hour)
		if err := one.store.(*jetStore).trim(t.Context(), time.Now().Add(keepAge)); err != nil {
			t.Fatal(err)
		}
		if left := standing(t, one); len(left) != 1 {
			t.Fatalf("%d are left", len(left))
		}
		if one.mustKeep("acme", "A") {
			t.Error("taken for a copy, long after the window")
		}
	})
}

// A consumer that hangs is not waited for. A pause stands for that here: its server is
// well, and its heartbeats come.
func TestSharedInboxLeavesAConsumerThatHangs(t *testing.T) {
	replicas(t, 2, new(receiver), func(t *testing.T, replicas []*running, _ []*wire) {
		stream := replicas[0].store.(*jetStore).stream()
		for consumer := range stream.ListConsumers(context.Background()).Info() {
			if _, err := stream.PauseConsumer(context.Background(), consumer.Name, time.Now().Add(24*time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		for _, replica := range replicas {
			if err := replica.Err(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Servers that come back without the end of the log give its sequences to other
// webhooks. Nobody who has read the former ones would read those: nothing may be taken
// in on that, and who is asked has to say what to do.
func TestSharedInboxNoticesThatTheLogIsShorter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := newBubbleServer()
		r := new(receiver)
		w := &wire{server: first, delay: time.Millisecond}
		one := open(t, shared(config("", r), w))
		waitReady(one)
		stop := func(s *bubbleServer) {
			w.sever()
			s.Shutdown()
			s.WaitForShutdown()
		}
		stop(first)
		backup := t.TempDir()
		if err := os.CopyFS(backup, os.DirFS(first.dir)); err != nil {
			t.Fatal(err)
		}
		second := startBubbleServer(first.dir)
		w.replace(second)
		time.Sleep(time.Minute)
		for n := range 20 {
			one.mustKeep("acme", strconv.Itoa(n))
		}
		time.Sleep(time.Second)
		stop(second)
		restored := startBubbleServer(backup)
		defer second.end()
		defer restored.end()
		w.replace(restored)
		taken := 0
		for range 1000 {
			time.Sleep(time.Millisecond)
			if _, err := one.Keep(webhook("other", strconv.Itoa(taken))); err == nil {
				taken++
			}
		}
		if err := one.Err(); !errors.Is(err, errShorter) {
			t.Errorf("it says %v", err)
		}
		one.stop()
		one = open(t, shared(config("", r), w))
		time.Sleep(time.Minute)
		got := r.accepted()
		if got = got[20:]; len(got) != taken {
			t.Errorf("%d were acknowledged, and %d delivered", taken, len(got))
		}
		one.stop()
	})
}

// While there is no leader the servers say so at once, and need not be asked at once
// again.
func TestSharedInboxDoesNotStormServersWithoutALeader(t *testing.T) {
	replicas(t, 1, new(receiver), func(t *testing.T, replicas []*running, _ []*wire) {
		store := replicas[0].store.(*jetStore)
		if err := store.js.DeleteStream(context.Background(), store.cfg.Stream); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		before := store.nc.Stats().OutMsgs
		if err := store.catchUp(ctx); err == nil {
			t.Error("caught up with nothing")
		}
		if sent := store.nc.Stats().OutMsgs - before; sent > 60 {
			t.Errorf("%d requests in a second", sent)
		}
	})
}

// A note that is refused, and then lost with the replica, takes those after it along:
// a lane whose second is noted as delivered, and its first is not, would be delivered
// the wrong way round by whoever takes over.
func TestSharedInboxNotesALaneInOrder(t *testing.T) {
	r := new(receiver)
	r.set(refusing)
	replicas(t, 2, r, func(t *testing.T, replicas []*running, wires []*wire) {
		time.Sleep(leaseTime)
		leader, other := 0, 1
		if !replicas[leader].store.(*jetStore).leading() {
			leader, other = other, leader
		}
		wires[leader].sever() // and come back by a longer wire
		wires[leader].delay = testWire
		wires[leader].mend()
		time.Sleep(leaseTime)
		replicas[other].mustKeep("acme", "A")
		replicas[other].mustKeep("acme", "B")
		time.Sleep(time.Minute)
		near, far := replicas[other].store.(*jetStore), replicas[leader].store.(*jetStore)
		if !far.leading() {
			t.Fatal("it did not keep the lease")
		}
		waiting, err := far.Unfinished()
		if err != nil || len(waiting) != 2 {
			t.Fatal(len(waiting), err)
		}
		status, err := encodeStatus(&waiting[0].status)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := near.publish(context.Background(), message(near.statusSubject(waiting[0].id), status)); err != nil {
			t.Fatal(err)
		}
		for _, r := range waiting { // the first is refused: the leader does not know of that yet
			r.enter(Delivered, "")
			far.Update(r)
		}
		time.Sleep(testWire + testWire/2)
		wires[leader].sever()
		time.Sleep(time.Minute)
		if left, err := near.Unfinished(); err != nil || len(left) == 1 {
			t.Errorf("%d are left: %v", len(left), err)
		}
	})
}

// Who is cut off delivers one more of each lane at most: the next waits until the
// servers know of the last. So no more than that comes again from who takes over.
func TestTakeoverRepeatsOneOfALane(t *testing.T) {
	const lanes, each = 5, 20
	r := &receiver{delay: 50 * time.Millisecond}
	replicas(t, 2, r, func(t *testing.T, replicas []*running, wires []*wire) {
		first := delivering(t, replicas)
		var sending sync.WaitGroup
		for lane := range lanes {
			sending.Go(func() {
				for n := range each {
					replicas[1-first].mustKeep(fmt.Sprint("t", lane), fmt.Sprint(n))
				}
			})
		}
		sending.Wait()
		time.Sleep(200 * time.Millisecond)
		wires[first].sever()
		time.Sleep(10 * time.Second)
		wires[first].mend()
		time.Sleep(time.Minute)
		got := r.accepted()
		if repeated := len(got) - lanes*each; repeated < 0 || repeated > lanes {
			t.Errorf("%d deliveries of %d webhooks in %d lanes", len(got), lanes*each, lanes)
		}
		next := make(map[string]int)
		for _, delivery := range got {
			tenant, number, _ := strings.Cut(delivery, ":")
			n, err := strconv.Atoi(number)
			if err != nil || n > next[tenant] {
				t.Errorf("%s came when %d was next", delivery, next[tenant])
			}
			next[tenant] = n + 1
		}
	})
}
