package main

import (
	"fmt"
	"strings"
)

// findings are all that the outbound half has found out.
type findings struct {
	*court
	versions   string
	readings   map[scenario]map[string][]reading // by the peer's name
	footprints map[string]*footprint
}

func cpuMicros(r reading) float64 { return r.cpu * 1e6 }
func perSecond(r reading) float64 { return r.rate() }
func (f *findings) tables() []*table {
	tables := []*table{f.aims()}
	for _, s := range scenarios {
		if f.readings[s] != nil {
			tables = append(tables, f.scenario(s))
		}
	}
	return append(tables, f.footprint())
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
			reached = times(share)
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
	lines := []string{
		fmt.Sprintf("A call is a POST of %d bytes; its answer comes with a Content-Length. The service refuses calls without the token, a JWT of %d bytes. "+
			"Load: wrk, one thread. %s CPU time is user and system, of the whole process.", len(query), len(f.token), where),
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
			share = times(ratio)
		}
		if name == direct {
			cpu = ""
		}
		t.add(name, cpu, share, number(median(all, perSecond)), microseconds(median(all, p50)), microseconds(median(all, p99)))
		if refused, sum := refusals(all); refused > 0 {
			t.note("What should not be: %d of %d calls to %s were not answered with 200.", refused, sum, name)
		}
	}
	return t
}

// refusals counts the calls that were not answered with 200, and all.
func refusals(all []reading) (refused, sum int) {
	for _, r := range all {
		refused += r.refused
		sum += r.refused + r.requests
	}
	return refused, sum
}

func p50(r reading) float64 { return r.p50.Seconds() * 1e6 }
func p99(r reading) float64 { return r.p99.Seconds() * 1e6 }
