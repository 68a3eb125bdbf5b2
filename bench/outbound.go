package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// query is the body of every call.
const query = `{"query":"query Tenant($code: String!) {` +
	` tenant(code: $code) { id code name platform { code } subscriptions { id state } } }",` +
	`"variables":{"code":"acme-4711"}}`

// A scenario is one way of calling.
type scenario struct{ size, connections int }

var scenarios = []scenario{{sizes[0], 64}, {sizes[1], 64}, {sizes[0], 1}}

func (s scenario) String() string { return fmt.Sprintf("%d KB, %d", s.size>>10, s.connections) }

// The court is where calls are measured. What is measured has a core of its own, if there are two.
type court struct {
	*bench
	measured, others []string // the commands that pin programs to cores
	reverseProxy     string   // built like usher
	token, service   string   // what the service gives out, and its address
}

// An entrant is a peer that runs.
type entrant struct {
	peer
	*process
	address  string
	idle     int64 // memory
	readings map[scenario][]reading
}

// A reading is what one load says of one peer.
type reading struct {
	rate     float64       // calls a second that were answered with 200
	p50, p99 time.Duration // of these
	cpu      float64       // of the peer, in seconds for each
	beside   float64       // usher's, right before or after
}

// outbound measures usher and its peers, each in turn, in each scenario.
func outbound(ctx context.Context, b *bench) ([]*table, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	o := &court{bench: b, token: strings.Repeat(rand.Text(), 35), service: ports[0]} // 900 bytes, as a JWT
	if path, err := exec.LookPath("taskset"); err == nil {
		o.measured, o.others = []string{path, "-c", "0"}, []string{path, "-c", "1"}
	}
	if o.reverseProxy, err = build(ctx, b.dir, "usher/bench/reverseproxy"); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	service, err := b.launch(append(o.others, self, serviceRole, o.service, o.token), []string{"GOMAXPROCS=1"})
	if err != nil {
		return nil, err
	}
	defer service.stop()
	var all []*entrant
	for _, p := range peers {
		if p.program != "" && o.program(p.program) == "" {
			continue
		}
		e, err := o.enter(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		defer e.stop()
		all = append(all, e)
	}
	rounds := pick(b, 2, 8)
	for round := range rounds {
		b.say("calls, round %d of %d", round+1, rounds)
		for _, s := range scenarios {
			if err := o.round(ctx, s, all[0], all[1:], round); err != nil {
				return nil, err
			}
		}
	}
	return []*table{o.table(all)}, nil
}

func (o *court) enter(ctx context.Context, p peer) (*entrant, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	args, env, err := p.command(o, ports[0])
	if err != nil {
		return nil, err
	}
	r, err := o.launch(append(slices.Clone(o.measured), args...), append(env, "GOMAXPROCS=1"))
	if err != nil {
		return nil, err
	}
	if err := r.answers(ctx, http.MethodPost, "http://"+ports[0]+target(sizes[0]), query); err != nil {
		r.stop()
		return nil, err
	}
	time.Sleep(300 * time.Millisecond) // its start is over
	return &entrant{p, r, ports[0], r.memory(), make(map[scenario][]reading)}, nil
}

// round takes one reading of each peer, and one of usher right before or after it: what else the machine does changes
// from second to second, and should hit both. No peer is always the first.
func (o *court) round(ctx context.Context, s scenario, usher *entrant, others []*entrant, round int) error {
	for turn := range others {
		them := others[(turn+round)%len(others)]
		pair := []*entrant{usher, them}
		if (turn+round)%2 == 1 {
			slices.Reverse(pair)
		}
		for _, e := range pair {
			r, err := o.reading(ctx, e, s)
			if err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			e.readings[s] = append(e.readings[s], r)
		}
		theirs, ours := them.readings[s], usher.readings[s]
		theirs[len(theirs)-1].beside = ours[len(ours)-1].cpu
	}
	return nil
}

// reading loads a program for a second, from another process: each connection with its next call when the last one is
// answered.
func (o *court) reading(ctx context.Context, e *entrant, s scenario) (r reading, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	args := append(slices.Clone(o.others), self, loadRole, e.address, target(s.size), strconv.Itoa(s.connections))
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	before := e.cpu()
	out, err := cmd.Output()
	var l callsDone
	if err == nil {
		err = json.Unmarshal(out, &l)
	}
	if err == nil && l.Calls == 0 {
		err = errors.New("no call was answered")
	}
	if err != nil {
		return r, err
	}
	return reading{rate: float64(l.Calls) / l.Took.Seconds(), p50: l.P50, p99: l.P99, cpu: (e.cpu() - before) / float64(l.Calls)}, nil
}

// loadRole is the first argument with which this program is a load.
const loadRole = "load"

// callsDone are what a load got done.
type callsDone struct {
	Calls          int
	Took, P50, P99 time.Duration
}

// makeLoad calls an address for a second, and prints what it got done.
func makeLoad(address, target, connections string) error {
	n, err := strconv.Atoi(connections)
	if err != nil {
		return err
	}
	request := []byte("POST " + target + " HTTP/1.1\r\nHost: " + address +
		"\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(query)) + "\r\n\r\n" + query)
	began := time.Now()
	took, errs := make([][]time.Duration, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			conn, err := net.Dial("tcp", address)
			if errs[i] = err; err != nil {
				return
			}
			defer conn.Close()
			answers := bufio.NewReaderSize(conn, 16<<10)
			for sent := time.Now(); sent.Sub(began) < time.Second; {
				status := 0
				if _, err = conn.Write(request); err == nil {
					status, err = readAnswer(answers)
				}
				if err == nil && status != http.StatusOK {
					err = fmt.Errorf("a call was answered with %d", status)
				}
				if errs[i] = err; err != nil {
					return
				}
				now := time.Now()
				took[i] = append(took[i], now.Sub(sent))
				sent = now
			}
		})
	}
	all.Wait()
	done := callsDone{Took: time.Since(began)}
	latencies := slices.Sorted(slices.Values(slices.Concat(took...)))
	done.Calls, done.P50, done.P99 = len(latencies), quantile(latencies, 0.5), quantile(latencies, 0.99)
	return errors.Join(errors.Join(errs...), json.NewEncoder(os.Stdout).Encode(done))
}

func (o *court) table(all []*entrant) *table {
	t := &table{title: "CPU time of a call in µs (usher's over it); p50/p99 in ms; calls a second", header: []string{""}}
	for _, s := range scenarios {
		t.header = append(t.header, s.String(), "p50/p99", "calls/s")
	}
	t.header = append(t.header, "MB idle", "most")
	for _, e := range all {
		row := []string{e.name}
		for _, s := range scenarios {
			all := e.readings[s]
			cpu := tenths(median(all, func(r reading) float64 { return r.cpu }) * 1e6)
			if e.name != ours {
				cpu += " (" + times(median(all, func(r reading) float64 { return r.beside / max(r.cpu, 1e-9) })) + ")"
			}
			row = append(row, cpu,
				fmt.Sprintf("%.2f/%.2f", median(all, func(r reading) float64 { return r.p50.Seconds() * 1e3 }),
					median(all, func(r reading) float64 { return r.p99.Seconds() * 1e3 })),
				number(median(all, func(r reading) float64 { return r.rate })))
		}
		t.add(append(row, megabytes(e.idle), megabytes(e.mostMemory()))...)
	}
	where := "Nothing is pinned."
	if o.measured != nil {
		where = "What is measured has one core; the load and the service share another."
	}
	t.note = fmt.Sprintf("Columns: the size of the answer, and how many connections. A call is a POST of %d bytes with a token "+
		"of %d bytes. %s ReverseProxy is Go's httputil.ReverseProxy with a fixed header; each peer keeps up to 1024 "+
		"connections. Memory is RSS, idle and at its highest.", len(query), len(o.token), where)
	return t
}
