package main

import (
	"context"
	"slices"
	"strconv"
	"time"
)

// spread is how usher's cost per call grows.
type spread struct {
	connections map[int][]reading // by how many there are, for usher
	peer        map[int][]reading // and for ReverseProxy
	ports       map[int][]reading // by how many local ports share the calls
	tenants     [2]int            // that the gate remembers
	memory      [2]memory         // of a gate that remembers so many
}

var (
	connectionCounts = []int{1, 8, 64, 256, 1000}
	portCounts       = []int{1, 2, 5, 10}
)

// growth measures usher under more and more connections, with more and more ports,
// and with a gate full of tenants.
func (o *court) growth(ctx context.Context, f *findings) error {
	f.spread = &spread{connections: make(map[int][]reading), peer: make(map[int][]reading), ports: make(map[int][]reading)}
	if err := o.growConnections(ctx, f.spread); err != nil {
		return err
	}
	if err := o.growPorts(ctx, f.spread); err != nil {
		return err
	}
	return o.growTenants(ctx, f.spread)
}

func (o *court) growConnections(ctx context.Context, s *spread) error {
	var all [2]*running
	for i, name := range []string{ours, asItIs} {
		p := peers[slices.IndexFunc(peers, func(p peer) bool { return p.name == name })]
		r, err := o.run(ctx, p, plain)
		if err != nil {
			return err
		}
		defer r.stop()
		all[i] = r
	}
	for range pick(o.bench, 1, 3) {
		for _, n := range connectionCounts {
			for i, to := range []map[int][]reading{s.connections, s.peer} {
				r, err := o.reading(ctx, all[i].process, scenario{plain, sizes[0], n}, window, all[i].address)
				if err != nil {
					return err
				}
				to[n] = append(to[n], r)
			}
		}
	}
	return nil
}

// growPorts spreads 60 connections over the local ports of one usher. wrk can't: this
// is the load of our own.
func (o *court) growPorts(ctx context.Context, s *spread) error {
	addresses, err := freePorts(portCounts[len(portCounts)-1])
	if err != nil {
		return err
	}
	many := peer{name: ours, command: func(o *court, listen, way string) ([]string, []string, error) {
		args, env, err := usherCommand(o, listen, way)
		for i, a := range addresses {
			env = append(env, "USHER_PORTS_"+strconv.Itoa(i)+"_LISTEN="+a)
		}
		return args, env, err
	}}
	r, err := o.run(ctx, many, plain)
	if err != nil {
		return err
	}
	defer r.stop()
	for range pick(o.bench, 1, 3) {
		for _, n := range portCounts {
			// Not a whole second, so that all of them have the same load.
			one, err := o.reading(ctx, r.process, scenario{plain, sizes[0], 60}, window-time.Millisecond, addresses[:n]...)
			if err != nil {
				return err
			}
			s.ports[n] = append(s.ports[n], one)
		}
	}
	return nil
}

// growTenants has a gate that passes webhooks through remember more and more tenants.
func (o *court) growTenants(ctx context.Context, s *spread) error {
	s.tenants = pick(o.bench, [2]int{1_000, 20_000}, [2]int{1_000, 100_000})
	billing, stop := startBilling()
	defer stop()
	rc, err := newReceiver()
	if err != nil {
		return err
	}
	defer rc.down()
	y := &yard{bench: o.bench, billing: billing, receiver: rc}
	u, err := y.gate(ctx, nil, "", "warn", "USHER_WEBHOOK_DEDUP_SIZE="+strconv.Itoa(s.tenants[1]))
	if err != nil {
		return err
	}
	defer u.stop()
	const senders = 50
	seen := 0
	for i, n := range s.tenants {
		f, err := y.fleet(u, senders, (n-seen)/senders)
		if err != nil {
			return err
		}
		_, err = f.run(ctx, 2*time.Minute, n-seen)
		f.close()
		if err != nil {
			return err
		}
		seen = n
		s.memory[i] = memoryOf(u.pid())
	}
	return nil
}
