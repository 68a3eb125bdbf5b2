package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// soakSample is how large usher is at a time, by its own metrics.
type soakSample struct {
	at                      time.Duration
	memory                  memory // what is mapped of the inbox, which grows, apart
	heap, goroutines, files float64
}

// watch samples usher until ctx ends: twenty times, once it has settled.
func (s *soak) watch(ctx context.Context) (samples []soakSample) {
	deadline, _ := ctx.Deadline()
	every := max((time.Until(deadline)-soakSettle)/20, time.Second)
	wait := soakSettle
	for {
		select {
		case <-ctx.Done():
			return samples
		case <-time.After(wait):
			samples = append(samples, s.sample())
			wait = every
		}
	}
}

// sample reads usher's metrics. What can't be read is zero, and shows in the report.
func (s *soak) sample() soakSample {
	p := soakSample{at: time.Since(s.began), memory: memoryOf(s.subject.pid())}
	resp, err := http.Get("http://" + s.subject.admin + "/metrics")
	if err != nil {
		return p
	}
	defer resp.Body.Close()
	fields := map[string]*float64{
		"go_memstats_heap_inuse_bytes": &p.heap, "go_goroutines": &p.goroutines, "process_open_fds": &p.files,
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if field := fields[name]; field != nil {
			*field, _ = strconv.ParseFloat(value, 64)
		}
	}
	return p
}

// grown compares the last quarter of a run with its first, by what is usual in each:
// whoever leaks a little with each call or webhook would by then have leaked a lot,
// while an outage that a sample happens to see passes. Memory may differ by a fifth and
// 4 MB, which is the collector's rhythm, the counts by a few connections.
func grown(samples []soakSample, after soakSample) error {
	n := len(samples) / 4
	if n < 3 {
		return errors.New("too short to tell whether usher grows: take a minute or more")
	}
	var errs []error
	check := func(what string, of func(soakSample) float64, factor, slack float64) {
		first, last := median(samples[:n], of), median(samples[len(samples)-n:], of)
		if last > first*factor+slack {
			errs = append(errs, fmt.Errorf("%s grew from %.0f to %.0f", what, first, last))
		}
	}
	check("memory", func(p soakSample) float64 { return float64(p.memory.anon) }, 1.2, 4<<20)
	check("goroutines", func(p soakSample) float64 { return p.goroutines }, 1.1, 20)
	check("descriptors", func(p soakSample) float64 { return p.files }, 1.1, 10)
	most := 0.0
	for _, p := range samples {
		most = max(most, p.goroutines)
	}
	if after.goroutines > most {
		errs = append(errs, fmt.Errorf("%.0f goroutines when all was done, %.0f at most before", after.goroutines, most))
	}
	return errors.Join(errs...)
}
