package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// scenario is one way of calling.
type scenario struct {
	way         string
	size        int // of an answer
	connections int
}

func (s scenario) String() string {
	plural := "s"
	if s.connections == 1 {
		plural = ""
	}
	return fmt.Sprintf("%d KB, %d connection%s, %s", s.size>>10, s.connections, plural, s.way)
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
	for _, step := range []struct {
		name string
		do   func(context.Context, *findings) error
	}{
		{"start and memory", o.footprint}, {"growth", o.growth}, {"a thousand cold callers", o.cold},
	} {
		b.say("%s", step.name)
		if err := step.do(ctx, f); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return f.tables(), nil
}

// newCourt starts the service, and finds out what can be measured.
func newCourt(ctx context.Context, b *bench) (o *court, stop func(), err error) {
	o = &court{bench: b, pins: findPins(), token: newToken(), service: make(map[string]string), programs: make(map[string]string)}
	if o.self, err = build(ctx, b.dir, "usher/bench"); err != nil {
		return nil, nil, err
	}
	o.wrk, _ = exec.LookPath("wrk") // empty: not there
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
	o.service[plain], o.service[tls1] = ports[0], ports[1]
	service, err := o.launch(slices.Concat(o.pins.others, []string{
		o.self, "service", "-token", o.token, "-cert", o.cert, "-key", key, "-plain", ports[0], "-tls1", ports[1],
	}), []string{"GOMAXPROCS=1"})
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
	rounds := cmp.Or(o.rounds, pick(o.bench, 1, 11))
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
			if *p.to, err = o.reading(ctx, p.process, s, window, p.address); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
		them.beside = us.cpu
		readings[ours], readings[r.name] = append(readings[ours], us), append(readings[r.name], them)
	}
	if s.connections > 1 {
		return nil
	}
	c, err := o.load(ctx, 1, window, openTarget(s.size), o.service[plain])
	readings[direct] = append(readings[direct], reading{calls: c})
	return err
}

// window is how long a load lasts: many short ones in turns say more than a few long
// ones where other things run too. (wrk counts in whole seconds.)
const window = time.Second

// reading loads a program and watches it meanwhile.
func (o *court) reading(ctx context.Context, p *process, s scenario, length time.Duration, addresses ...string) (r reading, err error) {
	for range 3 { // on a machine that is busy with other things, nothing may get done for a second
		before, highest := cpuOf(p.pid()), watchMemory(p)
		r.calls, err = o.load(ctx, s.connections, length, target(s.size), addresses...)
		r.rss = highest()
		if err != nil {
			return r, err
		}
		if r.Requests > 0 {
			r.cpu = (cpuOf(p.pid()) - before) / float64(r.Requests)
			return r, nil
		}
	}
	return r, errors.New("no call was answered")
}

// watchMemory looks at a program's memory until it is asked for the most of it.
func watchMemory(p *process) (highest func() int64) {
	done, most := make(chan struct{}), make(chan int64)
	go func() {
		rss := int64(0)
		for {
			rss = max(rss, statusOf(p.pid(), "VmRSS"))
			select {
			case <-done:
				most <- rss
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() int64 { close(done); return <-most }
}

// names are the peers that there are readings of, in the usual order.
func names(readings map[string][]reading) []string {
	order := []string{direct}
	for _, p := range peers {
		order = append(order, p.name)
	}
	have := slices.Collect(maps.Keys(readings))
	return slices.DeleteFunc(order, func(name string) bool { return !slices.Contains(have, name) })
}
