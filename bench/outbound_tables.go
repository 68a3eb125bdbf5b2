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

func cpuMicros(r reading) float64    { return r.cpu * 1e6 }
func perSecond(r reading) float64    { return r.rate() }
func (f *findings) tables() []*table { return []*table{f.aims(), f.cpu(), f.latency(), f.footprint()} }

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
	t := &table{
		title:  "Aims: CPU time per call, usher's over another's right beside it",
		header: []string{"", "aim", "reached"},
		aside:  true,
	}
	for _, a := range []struct {
		s    scenario
		peer string
		aim  float64
	}{
		{scenarios[0], asItIs, 0.42},
		{scenarios[1], asItIs, 0.48},
		{scenarios[2], asItIs, 0.85},
		{scenarios[3], asItIs, 0.85},
		{scenarios[0], "Caddy", 0.60},
		{scenarios[1], "Caddy", 0.65},
		{scenarios[0], "nginx", 2.7},
		{scenarios[1], "nginx", 1.8},
		{scenarios[2], "nginx", 2.2},
		{scenarios[4], "nginx", 2.0},
		{scenarios[0], before, 0.78},
		{scenarios[1], before, 0.78},
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
	t.add("memory (RSS), idle", "≤ 20 MB", megabytes(us.idle)+" MB")
	t.add(fmt.Sprintf("memory (RSS), %d connections", crowd), "≤ 85 MB", megabytes(us.atCrowd)+" MB")
	return t
}

// measured are the scenarios that there are readings of, and how they head a column.
func (f *findings) measured() (all []scenario, header []string) {
	header = []string{""}
	for _, s := range scenarios {
		if f.readings[s] == nil {
			continue
		}
		tls := ""
		if s.way == tls1 {
			tls = "TLS, "
		}
		all, header = append(all, s), append(header, fmt.Sprintf("%s%d KB, %d", tls, s.size>>10, s.connections))
	}
	return all, header
}

// cpu is what a call costs.
func (f *findings) cpu() *table {
	all, header := f.measured()
	t := &table{title: "CPU time per call in µs, and usher's over it", header: header}
	for _, p := range peers {
		row, measured := []string{p.name}, false
		for _, s := range all {
			cell := ""
			if readings := f.readings[s][p.name]; len(readings) > 0 {
				cell, measured = tenths(median(readings, cpuMicros)), true
				if ratio, ok := f.share(s, p.name); ok && p.name != ours {
					cell += " (" + times(ratio) + ")"
				}
				if refused, sum := refusals(readings); refused > 0 {
					t.note("What should not be: %d of %d calls to %s were not answered with 200.", refused, sum, p.name)
				}
			}
			row = append(row, cell)
		}
		if measured {
			t.add(row...)
		}
	}
	var rates []string
	for _, s := range all {
		rates = append(rates, number(median(f.readings[s][ours], perSecond)))
	}
	t.note("Columns: the size of the answer, and how many connections. usher's calls a second: %s.",
		strings.Join(rates, ", "))
	for _, line := range f.method() {
		t.note("%s", line)
	}
	return t
}

// latency is what a caller waits.
func (f *findings) latency() *table {
	all, header := f.measured()
	t := &table{title: "p50/p99 in ms", header: header}
	for _, name := range append([]string{direct}, peerNames()...) {
		row, measured := []string{name}, false
		for _, s := range all {
			cell := ""
			if readings := f.readings[s][name]; len(readings) > 0 {
				cell, measured = fmt.Sprintf("%.2f/%.2f", median(readings, p50)/1e3, median(readings, p99)/1e3), true
			}
			row = append(row, cell)
		}
		if measured {
			t.add(row...)
		}
	}
	return t
}

func peerNames() (names []string) {
	for _, p := range peers {
		names = append(names, p.name)
	}
	return names
}

// method is how all this was measured.
func (f *findings) method() []string {
	where := "Nothing is pinned: that takes two cores and taskset."
	if f.pins.measured != nil {
		where = "What is measured has one core, the load (wrk) and the service share another."
	}
	lines := []string{
		fmt.Sprintf("A call is a POST of %d bytes with a token of %d bytes. %s %s is Go's httputil.ReverseProxy "+
			"with a fixed header; \"pool\" keeps %d idle connections, as nginx and haproxy do; Caddy keeps 32.",
			len(query), len(f.token), where, asItIs, keptPool),
	}
	if f.versions != "" {
		lines = append(lines, "Beside it: "+f.versions+".")
	}
	if missing := f.missing(); missing != nil {
		lines = append(lines, "Not installed here: "+strings.Join(missing, ", ")+".")
	}
	return lines
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
