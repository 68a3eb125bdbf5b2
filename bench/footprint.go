package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// crowd is how many callers are many.
const crowd = 1000

// footprint is what a peer takes of the machine.
type footprint struct {
	starts     []time.Duration
	idle       []int64
	at64       []int64
	atCrowd    []int64
	executable int64
}

// footprint starts each peer several times, and looks at its memory.
func (o *court) footprint(ctx context.Context, f *findings) error {
	f.footprints = make(map[string]*footprint)
	for range pick(o.bench, 1, 3) {
		for _, p := range o.installed() {
			if p.pool {
				continue
			}
			if f.footprints[p.name] == nil {
				f.footprints[p.name] = new(footprint)
			}
			if err := o.weigh(ctx, p, f.footprints[p.name]); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return nil
}

// weigh takes the figures of a freshly started peer.
func (o *court) weigh(ctx context.Context, p peer, f *footprint) error {
	r, err := o.run(ctx, p, plain)
	if err != nil {
		return err
	}
	defer r.stop()
	f.starts = append(f.starts, r.started)
	if info, err := os.Stat(fmt.Sprintf("/proc/%d/exe", r.pid())); err == nil {
		f.executable = info.Size()
	}
	time.Sleep(200 * time.Millisecond) // the start is over by then
	f.idle = append(f.idle, statusOf(r.pid(), "VmRSS"))
	at64, err := o.reading(ctx, r.process, scenario{plain, sizes[0], 64}, r.address)
	if err != nil {
		return err
	}
	many, err := o.reading(ctx, r.process, scenario{plain, sizes[0], crowd}, r.address)
	if err != nil {
		return err
	}
	f.at64, f.atCrowd = append(f.at64, at64.rss), append(f.atCrowd, many.rss)
	return nil
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

func megabytes(sizes []int64) string {
	return tenths(median(sizes, func(n int64) float64 { return float64(n) }) / 1e6)
}

// footprint is the table of what the peers take.
func (f *findings) footprint() *table {
	t := &table{title: "Start and memory", header: []string{"", "start, ms", "RSS idle, MB", "64 connections",
		fmt.Sprintf("%d connections", crowd), "binary, MB"}}
	for _, p := range peers {
		w := f.footprints[p.name]
		if w == nil {
			continue
		}
		start := median(w.starts, func(d time.Duration) float64 { return float64(d) })
		t.add(p.name,
			millis(time.Duration(start)),
			megabytes(w.idle),
			megabytes(w.at64),
			megabytes(w.atCrowd),
			megabytes([]int64{w.executable}))
	}
	t.note("Start is until the first 200. RSS is idle, then at its highest with answers of 1 KB.")
	return t
}
