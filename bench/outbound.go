package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
)

// scenario is one way of calling.
type scenario struct {
	way         string
	size        int // of an answer
	connections int
}

func (s scenario) String() string {
	return fmt.Sprintf("%d KB, %s, %s", s.size>>10, plural(s.connections, "connection"), s.way)
}

// scenarios are those that every peer is measured in.
var scenarios = []scenario{
	{plain, sizes[0], 64}, {plain, sizes[1], 64}, {plain, sizes[0], 1}, {plain, sizes[1], 1},
	{tls1, sizes[0], 64}, {tls1, sizes[1], 64},
}

// direct is nobody in between: what is left is the service and the load.
const direct = "direct"

// reading is what one load says of one peer.
type reading struct {
	calls
	cpu    float64 // of the peer, in seconds per call
	beside float64 // usher's, right before or after
	rss    int64   // of the peer, at its highest
}

// outbound measures usher and its peers, each in turn, in each scenario.
func outbound(ctx context.Context, b *bench) ([]*table, error) {
	o, stop, err := newCourt(ctx, b)
	if err != nil {
		return nil, err
	}
	defer stop()
	f := &findings{court: o, versions: o.versions(ctx), readings: make(map[scenario]map[string][]reading)}
	for _, way := range []string{plain, tls1} {
		if err := o.measureWay(ctx, f, way); err != nil {
			return nil, err
		}
	}
	b.say("start and memory")
	if err := o.footprint(ctx, f); err != nil {
		return nil, err
	}
	return f.tables(), nil
}

// newCourt starts the service, and finds out what can be measured.
func newCourt(ctx context.Context, b *bench) (o *court, stop func(), err error) {
	o = &court{bench: b, pins: findPins(), token: newToken(), programs: make(map[string]string)}
	if o.wrk, err = exec.LookPath("wrk"); err != nil {
		return nil, nil, errors.New("wrk makes the load here, and is not installed; -only measures another part")
	}
	if o.reverseProxy, err = build(ctx, b.dir, "usher/bench/reverseproxy"); err != nil {
		return nil, nil, err
	}
	for _, p := range peers {
		if path, err := exec.LookPath(p.program); err == nil {
			o.programs[p.program] = path
		}
	}
	o.cert = filepath.Join(b.dir, "service.pem")
	key := filepath.Join(b.dir, "service-key.pem")
	if err := newCertificate(o.cert, key); err != nil {
		return nil, nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, nil, err
	}
	o.service = map[string]string{plain: ports[0], tls1: ports[1]}
	service, err := o.launchRole(o.pins.others, "service", serviceRole{o.token, o.cert, key, o.service}, "GOMAXPROCS=1")
	if err != nil {
		return nil, nil, err
	}
	return o, service.stop, nil
}

// measureWay runs all peers, and loads one after the other.
func (o *court) measureWay(ctx context.Context, f *findings, way string) error {
	var all []*running
	defer func() {
		for _, r := range all {
			r.stop()
		}
	}()
	for _, p := range o.installed() {
		r, err := o.run(ctx, p, way)
		if err != nil {
			return err
		}
		all = append(all, r)
	}
	rounds := cmp.Or(o.rounds, pick(o.bench, 1, 8))
	for round := range rounds {
		for _, s := range scenarios {
			if s.way != way || o.quick && s.size != sizes[0] && (way != plain || s.connections == 1) {
				continue
			}
			o.say("%s, round %d of %d", s, round+1, rounds)
			if f.readings[s] == nil {
				f.readings[s] = make(map[string][]reading)
			}
			if err := o.round(ctx, f.readings[s], s, all, round); err != nil {
				return err
			}
		}
	}
	return nil
}

// round takes one reading of each peer, and one of usher right before or after it: what
// else the machine does changes from second to second, and should hit both. Nobody is
// always the first.
func (o *court) round(ctx context.Context, readings map[string][]reading, s scenario, all []*running, round int) error {
	usher := all[slices.IndexFunc(all, func(r *running) bool { return r.name == ours })]
	for turn := range all {
		r := all[(turn+round)%len(all)]
		if r == usher || r.pool && (s.connections == 1 || s.way != plain) {
			continue
		}
		var us, them reading
		pair := []struct {
			*running
			to *reading
		}{{usher, &us}, {r, &them}}
		if (turn+round)%2 == 1 {
			slices.Reverse(pair)
		}
		for _, p := range pair {
			var err error
			if *p.to, err = o.reading(ctx, p.process, s, p.address); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
		them.beside = us.cpu
		readings[ours], readings[r.name] = append(readings[ours], us), append(readings[r.name], them)
	}
	if s.connections > 1 {
		return nil
	}
	c, err := o.load(ctx, 1, openTarget(s.size), o.service[plain])
	readings[direct] = append(readings[direct], reading{calls: c})
	return err
}

// reading loads a program and watches it meanwhile.
func (o *court) reading(ctx context.Context, p *process, s scenario, address string) (r reading, err error) {
	for range 3 { // on a machine that is busy with other things, nothing may get done for a second
		before, highest := cpuOf(p.pid()), watchMemory(p)
		r.calls, err = o.load(ctx, s.connections, target(s.size), address)
		r.rss = highest()
		if err != nil {
			return r, err
		}
		if r.requests > 0 {
			r.cpu = (cpuOf(p.pid()) - before) / float64(r.requests)
			return r, nil
		}
	}
	return r, errors.New("no call was answered")
}
