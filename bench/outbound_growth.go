package main

import "fmt"

func megabytes(sizes []int64) string {
	return fmt.Sprintf("%.1f MB", median(sizes, fromSize)/1e6)
}

// footprint is the table of what the peers take.
func (f *findings) footprint() *table {
	t := &table{title: "Start and memory", header: []string{"", "start to first 200", "RSS idle", "64 connections",
		fmt.Sprintf("%d connections", crowd), "binary"}}
	for _, p := range peers {
		w := f.footprints[p.name]
		if w == nil {
			continue
		}
		t.add(p.name, fmt.Sprintf("%.1f ms", median(w.starts, fromTime)/1e6), megabytes(w.idle), megabytes(w.at64), megabytes(w.atCrowd),
			megabytes([]int64{w.executable}))
	}
	t.note("A peer of its own for each round: idle after one call, then at its highest while 1 KB answers are asked for. " +
		"usher's start includes the fetching of its token. The binaries of usher and of " + asItIs + " (which is this whole bench) have their symbols.")
	if b := f.beforeMain; b.name != "" {
		t.note("%.1f ms of usher's start are over before its first line runs, while the packages that it is built of get ready: %.1f ms for %s alone.",
			median(b.all, self), median(b.most, self), b.name)
	}
	return t
}

func (f *findings) connections() *table {
	t := &table{title: "Growth: connections, 1 KB, plain HTTP/1.1",
		header: []string{"connections", "CPU per call", asItIs, "calls/s", "p50", "p99", "RSS"}}
	for _, n := range connectionCounts {
		us := f.spread.connections[n]
		t.add(fmt.Sprint(n), microseconds(median(us, cpuMicros)), microseconds(median(f.spread.peer[n], cpuMicros)),
			number(median(us, perSecond)), quick(us, calls.p50), quick(us, calls.p99),
			fmt.Sprintf("%.1f MB", median(us, func(r reading) float64 { return float64(r.rss) })/1e6))
	}
	return t
}

func (f *findings) ports() *table {
	t := &table{title: "Growth: local ports, 60 connections, 1 KB", header: []string{"ports", "CPU per call", "calls/s"}}
	for _, n := range portCounts {
		all := f.spread.ports[n]
		t.add(fmt.Sprint(n), microseconds(median(all, cpuMicros)), number(median(all, perSecond)))
	}
	t.note("With our own generator, as wrk calls one address only: compare these with each other.")
	return t
}

// rest is the table of what is one figure each.
func (f *findings) rest() *table {
	s, c := f.spread, f.coldStart
	t := &table{title: "Tenants, and callers before the first token", header: []string{"", ""}}
	for i, n := range s.tenants {
		t.add(fmt.Sprintf("memory of its own, a gate that remembers %d tenants", n), mebibytes(s.memory[i].anon))
	}
	t.add(fmt.Sprintf("token requests for %d callers at once, none at hand", c.callers), fmt.Sprint(c.grants))
	t.add("of them answered with 200", fmt.Sprint(c.answered))
	t.add("from usher's start to that token request", millis(c.asked))
	t.add("from the token to the last answer", millis(c.served))
	if c.grants != 1 || c.answered != int64(c.callers) {
		t.note("What must not be: there has to be one token request, and an answer for everyone.")
	}
	return t
}
