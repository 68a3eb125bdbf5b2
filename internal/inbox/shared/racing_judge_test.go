package shared

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

func (x *race) judge(tenants []string) {
	for _, tenant := range tenants {
		for x.any().resumed(tenant) != nil {
			time.Sleep(time.Second)
		}
	}
	x.mu.Lock()
	x.healthy = true
	clear(x.paused)
	x.note("calm")
	x.mu.Unlock()
	time.Sleep(x.calm)
	r := x.replicas[0]
	entries, err := r.List(record.Filter{})
	if err != nil {
		x.t.Fatal(err)
	}
	var held int
	type last struct {
		replica int
		tenant  string
		id      uint64
	}
	var lasts []last
	for n, o := range x.replicas {
		held += o.courier.Stats().Parked
		for _, tenant := range tenants {
			_, id, err := o.Snapshot(context.Background(), webhookgate.Lane{Platform: "p", Tenant: tenant})
			if err != nil {
				id = 0
			}
			lasts = append(lasts, last{n, tenant, id})
		}
	}
	counts := make(map[string]int)
	for _, kind := range []string{"in", "state"} {
		err := r.servers.Waiting.Visit(context.Background(), r.subjects.Prefix+"*."+kind+".>", 1, math.MaxUint64, func(m jetstream.Msg, _ uint64) {
			_, place, _ := r.subjects.Split(m.Subject())
			counts[kind]++
			if kind == "in" {
				counts["in "+place]++
			}
		})
		if err != nil {
			x.t.Fatal(err)
		}
	}
	all := r.contents(x.t)
	byState := 0
	for _, state := range record.States {
		some, err := r.List(record.Filter{State: state})
		if err != nil {
			x.t.Fatal(err)
		}
		byState += len(some)
	}
	spots, lanes, lines := 0, 0, 0
	for _, o := range x.replicas {
		for part := range o.subjects.Parts {
			t := o.term(part)
			if t == nil {
				continue
			}
			t.mu.Lock()
			spots, lanes, lines = spots+len(t.spots), lanes+len(t.lanes), lines+len(t.writing.lanes)
			t.mu.Unlock()
		}
		o.lines.mu.Lock()
		lines += len(o.lines.lanes)
		o.lines.mu.Unlock()
	}
	load, known := r.leases.Load()
	x.mu.Lock()
	defer x.mu.Unlock()
	if lanes > 0 || lines > 3 || spots != held || !known || load.Waiting != 0 || (load.Bytes != 0) != (held > 0) {
		x.fault("left in memory: %d spots, %d lanes, %d lines, load %v, %d parked", spots, lanes, lines, load, held)
	}
	if byState != len(entries) {
		x.fault("%d are listed, and %d by their states", len(entries), byState)
	}
	at := make(map[string]record.Entry)
	parked := 0
	for _, e := range entries {
		at[e.Webhook] = e
		if e.State == record.Waiting {
			x.fault("%s %d still waits (%d)", e.Tenant, x.byID[e.Webhook].n, e.ID)
		}
		if e.State == record.Parked {
			parked++
		}
	}
	for _, s := range x.sent {
		if _, there := at[s.w.ID]; s.acked && s.original == "" && !there && s.erased.IsZero() && !x.erasedSince(s) {
			x.fault("%s %d was answered 200, and is nowhere", s.tenant, s.n)
		}
	}
	accepted := make(map[string]bool)
	for _, try := range x.tries {
		if try.ok {
			accepted[try.s.w.ID] = true
		}
	}
	for id, e := range at {
		if s := x.byID[id]; e.State == record.Kept && !s.kept {
			x.fault("%s %d is kept", e.Tenant, s.n)
		}
		if e.State == record.Delivered && !accepted[id] {
			x.fault("%s %d is %s, accepted: %v", e.Tenant, x.byID[id].n, e.State, accepted[id])
		}
	}
	x.judgeActs(at)
	x.judgeEnds(tenants, at)
	for _, l := range lasts {
		if known := x.known[l.replica][l.tenant]; known != l.id {
			x.fault("replica %d knows %d of %s, and its last is %d", l.replica, known, l.tenant, l.id)
		}
	}
	if held != parked {
		x.fault("%d are listed as parked, and the couriers have %d", parked, held)
	}
	if counts["state"] != parked {
		x.fault("left: %v", counts)
	}
	for what, n := range counts {
		if strings.HasPrefix(what, "in ") && n > 8 {
			x.fault("%d messages in %s", n, what)
		}
	}
	for _, s := range x.sent {
		if !x.back && !s.erased.IsZero() && s.original == "" && strings.Contains(all, string(s.w.Body)) && !x.resent(s) {
			x.fault("%s %d was erased, and is there", s.tenant, s.n)
		}
	}
}

// judgeActs compares what people were told with what was done.
func (x *race) judgeActs(at map[string]record.Entry) {
	times, tried := make(map[*raceSent]int), make(map[*raceSent]time.Time)
	for _, try := range x.tries {
		if try.ok {
			times[try.s]++
		}
		tried[try.s] = try.ended
	}
	for _, s := range x.sent {
		e, there := at[s.w.ID]
		if times[s] > 1 && len(s.again) == 0 && !x.troubled {
			x.fault("%s %d was accepted %d times, and nothing was wrong", s.tenant, s.n, times[s])
		}
		if !there {
			continue
		}
		if e.State == record.Discarded && !done(s.discard) {
			x.fault("%s %d is discarded, though everybody was told that it is not: %v", s.tenant, s.n, s.discard)
		}
		if !e.Again.IsZero() && !done(s.again) {
			x.fault("%s %d was sent again, though everybody was told that it was not: %v", s.tenant, s.n, s.again)
		}
		for _, a := range s.again {
			if a.err == nil && tried[s].Before(a.began) && !e.State.Finished() {
				x.fault("%s %d was to be sent again at %v, and was last tried at %v", s.tenant, s.n, a.began, tried[s])
			}
		}
	}
}

// judgeEnds looks whether each receiver holds what it was last to get.
func (x *race) judgeEnds(tenants []string, at map[string]record.Entry) {
	for _, tenant := range tenants {
		var last *raceSent
		var touched bool // by somebody, since
		for _, s := range x.sent {
			if s.tenant == tenant && s.w.Snapshot {
				last = s
			}
		}
		if last == nil || !last.acked {
			continue
		}
		for _, s := range x.sent {
			for _, a := range s.again {
				touched = touched || s.tenant == tenant && a.ended.After(last.at)
			}
		}
		e, there := at[last.w.ID]
		if last.original != "" {
			e, there = at[last.original]
		}
		if touched || !there || e.State != record.Delivered {
			continue
		}
		holds := ""
		for _, try := range x.tries {
			if try.ok && try.s.tenant == tenant && try.s.w.Snapshot {
				holds = string(try.s.w.Body)
			}
		}
		if holds != string(last.w.Body) {
			x.fault("the receiver holds %q of %s, and the last was %q", holds, tenant, last.w.Body)
		}
	}
}

func (x *race) resent(s *raceSent) bool {
	for _, o := range x.sent {
		if o != s && o.tenant == s.tenant && o.n == s.n {
			return true
		}
	}
	return false
}

// erasedSince: an erasure that failed, or met with it, may have taken it.
func (x *race) erasedSince(s *raceSent) bool {
	for _, line := range x.log {
		if strings.Contains(line, "erased "+s.tenant+":") {
			return true
		}
	}
	return false
}

func (r *replica) resumed(tenant string) error {
	_, err := r.Resume(record.Pause{Platform: "p", Tenant: tenant})
	return err
}
