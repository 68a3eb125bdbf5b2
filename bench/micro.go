package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// microPackages are those whose benchmarks are a part of the results.
var microPackages = []string{"usher/tokens", "usher/proxy", "usher/webhookgate", "usher/internal/entitlements"}

// micro runs the benchmarks of the parts alone, those of go test.
func micro(ctx context.Context, b *bench) ([]*table, error) {
	b.say("the parts alone")
	args := []string{"test", "-run", "^$", "-bench", ".", "-benchmem", "-cpu", "1",
		"-benchtime", pick(b, "50ms", "300ms"), "-count", pick(b, "1", "5")}
	out, err := exec.CommandContext(ctx, "go", append(args, microPackages...)...).Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return nil, fmt.Errorf("go test: %w: %s%s", err, out, exit.Stderr)
	} else if err != nil {
		return nil, err
	}
	t := &table{title: "go test -bench, on one core", header: []string{"", "time", "allocated", "allocations"}}
	order, all := parseBenchmarks(string(out))
	for _, name := range order {
		runs := all[name]
		t.add(name, nanos(median(runs, func(m measure) float64 { return m.nanos })),
			fmt.Sprintf("%.0f B", median(runs, func(m measure) float64 { return m.bytes })),
			number(median(runs, func(m measure) float64 { return m.allocs })))
	}
	t.note("Token is the read of a valid token; Handler is a call with everything but its connections, Port one with them, caller and service included; " +
		"ParseAndValidate is a webhook of 1.2 KB, of which 30 µs was the aim; Lane is a webhook's way through its tenant's lane, without the delivery; " +
		"Check is a check with net/http's server and without the network, beside a bare handler that answers from a map; Parse is a webhook's snapshot.")
	return []*table{t}, nil
}

// measure is one line of go test -bench.
type measure struct{ nanos, bytes, allocs float64 }

var benchmarkLine = regexp.MustCompile(`(?m)^Benchmark(\S+)\s+\d+\s+([\d.]+) ns/op(?:\s+[\d.]+ MB/s)?\s+([\d.]+) B/op\s+([\d.]+) allocs/op`)

// parseBenchmarks returns the runs of each benchmark, and the order that they came in.
func parseBenchmarks(out string) (order []string, all map[string][]measure) {
	all = make(map[string][]measure)
	for _, m := range benchmarkLine.FindAllStringSubmatch(out, -1) {
		name := strings.ReplaceAll(m[1], "_", " ")
		if all[name] == nil {
			order = append(order, name)
		}
		figure := func(i int) float64 {
			f, _ := strconv.ParseFloat(m[i], 64) // digits, as the expression says
			return f
		}
		all[name] = append(all[name], measure{figure(2), figure(3), figure(4)})
	}
	return order, all
}

// nanos writes a time that may be very short.
func nanos(f float64) string {
	if f < 1000 {
		return fmt.Sprintf("%.0f ns", f)
	}
	return microseconds(f / 1e3)
}
