package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// findings are all that the outbound half has found out.
type findings struct {
	*court
	versions   string
	readings   map[scenario]map[string][]reading // by the peer's name
	footprints map[string]*footprint
	beforeMain beforeMain
	spread     *spread
	coldStart  *coldStart
}

func cpuMicros(r reading) float64 { return r.cpu * 1e6 }
func perSecond(r reading) float64 { return r.rate() }
func self(f float64) float64      { return f }
func fromSize(n int64) float64    { return float64(n) }

func fromTime(d time.Duration) float64 { return float64(d) }

// microseconds writes a time that may be well below one millisecond.
func microseconds(f float64) string {
	if f >= 1000 {
		return fmt.Sprintf("%.1f ms", f/1e3)
	}
	return fmt.Sprintf("%.1f µs", f)
}

func (f *findings) tables() []*table {
	tables := []*table{f.aims()}
	for _, s := range scenarios {
		if f.readings[s] != nil {
			tables = append(tables, f.scenario(s))
		}
	}
	return append(tables, f.latency(), f.footprint(), f.connections(), f.ports(), f.rest())
}

// share is the median of usher's CPU time per call over a peer's right beside it.
func (f *findings) share(s scenario, name string) (float64, bool) {
	var shares []float64
	for _, r := range f.readings[s][name] {
		if r.cpu > 0 && r.beside > 0 {
			shares = append(shares, r.beside/r.cpu)
		}
	}
	return median(shares, self), len(shares) > 0
}

// aims puts what was reached beside what was aimed at.
func (f *findings) aims() *table {
	t := &table{title: "Aims: CPU time per call, usher's over another's right beside it", header: []string{"", "aim", "reached"}}
	for _, a := range []struct {
		s    scenario
		peer string
		aim  float64
	}{
		{scenarios[0], asItIs, 0.42}, {scenarios[1], asItIs, 0.48}, {scenarios[2], asItIs, 0.85}, {scenarios[3], asItIs, 0.85},
		{scenarios[0], "Caddy", 0.60}, {scenarios[1], "Caddy", 0.65},
		{scenarios[0], "nginx", 2.7}, {scenarios[1], "nginx", 1.8}, {scenarios[2], "nginx", 2.2}, {scenarios[4], "nginx", 2.0},
		{scenarios[0], before, 0.78}, {scenarios[1], before, 0.78},
	} {
		reached := "not measured"
		share, ok := f.share(a.s, a.peer)
		if !ok && a.peer == before {
			continue // it was not asked for
		}
		if ok {
			reached = fmt.Sprintf("%.2f", share)
		}
		t.add(fmt.Sprintf("%s, over %s", a.s, a.peer), fmt.Sprintf("≤ %.2f", a.aim), reached)
	}
	us := f.footprints[ours]
	t.add("memory (RSS), idle", "≤ 20 MB", megabytes(us.idle))
	t.add(fmt.Sprintf("memory (RSS), %d connections", crowd), "≤ 85 MB", megabytes(us.atCrowd))
	t.note("%s", "What was reached is the median of the rounds, each of them a second of one and a second of the other: on a virtual machine "+
		"the speed can change by a half from one second to the next.")
	for _, line := range f.method() {
		t.note("%s", line)
	}
	return t
}

// method is how all this was measured.
func (f *findings) method() []string {
	where := "Nothing is pinned: that takes two cores and taskset."
	if f.pins.measured != nil {
		where = "What is measured has one core (GOMAXPROCS=1, one worker), the load and the service share another."
	}
	with := "our own generator"
	if f.wrk != "" {
		with = "wrk, one thread"
	}
	lines := []string{
		fmt.Sprintf("A call is a POST of %d bytes; its answer comes with a Content-Length. The service refuses calls without the token, a JWT of %d bytes. "+
			"Load: %s. %s CPU time is user and system, of the whole process.", len(query), len(f.token), with, where),
		"usher runs as it comes: metrics on, log at info. " + asItIs + " is Go's httputil.ReverseProxy with a fixed header and all else as it comes, " +
			"built with the same compiler; \"pool\" keeps " + fmt.Sprint(keptPool) + " idle connections. nginx and haproxy keep as many, Caddy 32 unless told.",
	}
	if f.versions != "" {
		lines = append(lines, "Beside it: "+f.versions+".")
	}
	if missing := f.missing(); missing != nil {
		lines = append(lines, "Not installed here: "+strings.Join(missing, ", ")+".")
	}
	return lines
}

// scenario is the table of one way of calling.
func (f *findings) scenario(s scenario) *table {
	t := &table{title: s.String(), header: []string{"", "CPU per call", "usher's over it", "calls/s", "p50", "p99"}}
	for _, name := range names(f.readings[s]) {
		all := f.readings[s][name]
		cpu, share := microseconds(median(all, cpuMicros)), ""
		if ratio, ok := f.share(s, name); ok && name != ours {
			share = fmt.Sprintf("%.2f", ratio)
		}
		if name == direct {
			cpu = ""
		}
		t.add(name, cpu, share, number(median(all, perSecond)), quick(all, calls.p50), quick(all, calls.p99))
		if refused, sum := refusals(all); refused > 0 {
			t.note("What should not be: %d of %d calls to %s were not answered with 200.", refused, sum, name)
		}
	}
	return t
}

// refusals counts the calls that were not answered with 200, and all.
func refusals(all []reading) (refused, sum int) {
	for _, r := range all {
		refused += r.Refused
		sum += r.Refused + r.Requests
	}
	return refused, sum
}

func (c calls) p50() time.Duration { return c.P50 }
func (c calls) p99() time.Duration { return c.P99 }

// quick writes the median of a latency.
func quick(all []reading, get func(calls) time.Duration) string {
	return microseconds(median(all, func(r reading) float64 { return get(r.calls).Seconds() * 1e6 }))
}

// latency is what a proxy adds for a lone caller.
func (f *findings) latency() *table {
	s := scenarios[2]
	t := &table{title: "Added latency, " + s.String(), header: []string{"", "p50", "p99"}}
	none := f.readings[s][direct]
	added := func(name string, get func(calls) time.Duration) string {
		var all []float64
		readings := f.readings[s][name]
		each := len(readings) / len(none) // of a round
		for i, r := range readings {
			all = append(all, (get(r.calls)-get(none[i/each].calls)).Seconds()*1e6)
		}
		return microseconds(median(all, self))
	}
	for _, name := range slices.DeleteFunc(names(f.readings[s]), func(name string) bool { return name == direct }) {
		t.add(name, added(name, calls.p50), added(name, calls.p99))
	}
	t.note("Over a call straight to the service in the same round.")
	return t
}
