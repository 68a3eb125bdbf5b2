package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// growth is what usher holds after so many webhooks.
type growth struct {
	after  [2]int
	memory [2]memory
	file   [2]int64
}

// growth sends so many webhooks, 64 at once.
func (y *yard) growth(ctx context.Context, u *usher) (*growth, error) {
	g := &growth{after: pick(y.bench, [2]int{2_000, 12_000}, [2]int{10_000, 100_000})}
	f, err := y.fleet(u, 64, tenantsEach)
	if err != nil {
		return nil, err
	}
	defer f.close()
	sent := 0
	for i, n := range g.after {
		// In portions: this is not about what piles up, but about what stays.
		for sent < n {
			portion := min(n-sent, 5_000)
			l, err := f.run(ctx, time.Minute, portion)
			if err != nil {
				return nil, err
			}
			if l.acknowledged < portion {
				return nil, fmt.Errorf("%d of %d webhooks were acknowledged", l.acknowledged, portion)
			}
			if err := u.drained(ctx); err != nil {
				return nil, err
			}
			sent += portion
		}
		g.memory[i] = memoryOf(u.pid())
		if info, err := os.Stat(u.inbox); err == nil {
			g.file[i] = info.Size()
		}
	}
	return g, nil
}

// alone is the courier's rate while nobody sends: webhooks come while the receiver
// is down, then it is back. The first tenth and the last are left out, as
// the one includes the wait for the next probe and the other lanes that have ended.
func (y *yard) alone(ctx context.Context, u *usher) (rate float64, err error) {
	count := pick(y.bench, 4_000, 10_000)
	f, err := y.fleet(u, 64, tenantsEach)
	if err != nil {
		return 0, err
	}
	defer f.close()
	y.receiver.down()
	if _, err := f.run(ctx, time.Minute, count); err != nil {
		return 0, err
	}
	before := y.receiver.delivered.Load()
	if err := y.receiver.up(); err != nil {
		return 0, err
	}
	reached := func(share float64) (time.Time, error) {
		for y.receiver.delivered.Load()-before < int64(share*float64(count)) {
			if ctx.Err() != nil {
				return time.Time{}, ctx.Err()
			}
			time.Sleep(time.Millisecond)
		}
		return time.Now(), nil
	}
	began, err := reached(0.1)
	if err != nil {
		return 0, err
	}
	ended, err := reached(0.9)
	if err != nil {
		return 0, err
	}
	return 0.8 * float64(count) / ended.Sub(began).Seconds(), u.drained(ctx)
}

// transactions is how many the inbox file has seen: bbolt writes the number of each
// into one of two pages at the file's beginning. Unlike a trace of the syncs, looking
// there does not make them slower, and slow syncs would be shared by more webhooks.
func transactions(file string) int {
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer f.Close()
	const sizeAt, numberAt = 16 + 8, 16 + 48 // in a page of that kind, after its header
	var first, second [numberAt + 8]byte
	if _, err := f.ReadAt(first[:], 0); err != nil {
		return 0
	}
	if _, err := f.ReadAt(second[:], int64(binary.NativeEndian.Uint32(first[sizeAt:]))); err != nil {
		return 0
	}
	return int(max(binary.NativeEndian.Uint64(first[numberAt:]), binary.NativeEndian.Uint64(second[numberAt:])))
}

// syncsEach counts usher's syncs for each transaction, with strace; 0 without it.
func (y *yard) syncsEach(ctx context.Context) (float64, error) {
	strace, err := exec.LookPath("strace")
	if errors.Is(err, exec.ErrNotFound) {
		return 0, nil
	}
	trace := filepath.Join(y.dir, "trace")
	u, err := y.gate(ctx, []string{strace, "-D", "-f", "--seccomp-bpf", "-qq", "-e", "trace=fsync,fdatasync,msync", "-o", trace},
		filepath.Join(y.dir, "traced.db"), y.log)
	if err != nil {
		return 0, fmt.Errorf("with strace: %w", err)
	}
	defer u.stop()
	f, err := y.fleet(u, 16, tenantsEach)
	if err != nil {
		return 0, err
	}
	defer f.close()
	time.Sleep(100 * time.Millisecond) // until what the start took is written down
	syncs, seen := countSyncs(trace), transactions(u.inbox)
	if _, err := f.run(ctx, time.Second, 0); err != nil {
		return 0, err
	}
	if err := u.drained(ctx); err != nil {
		return 0, err
	}
	time.Sleep(100 * time.Millisecond) // and what was delivered
	return float64(countSyncs(trace)-syncs) / float64(max(1, transactions(u.inbox)-seen)), nil
}

// countSyncs counts the calls in strace's output. One during which another thread
// had its say has a second line, but without an opening parenthesis after its name.
func countSyncs(trace string) int {
	b, _ := os.ReadFile(trace) // it may not be there yet
	return bytes.Count(b, []byte("sync("))
}

// quiet measures both gates once more at 64 senders, with a log of warnings alone.
func (y *yard) quiet(ctx context.Context, m *measurements) error {
	y.say("without the log")
	passing, err := y.gate(ctx, nil, "", "warn")
	if err != nil {
		return err
	}
	defer passing.stop()
	durable, err := y.gate(ctx, nil, filepath.Join(y.dir, "quiet.db"), "warn")
	if err != nil {
		return err
	}
	defer durable.stop()
	window := pick(y.bench, 400*time.Millisecond, 2*time.Second)
	for range pick(y.bench, 3, 5) {
		p, err := y.sample(ctx, passing, 64, window)
		if err != nil {
			return err
		}
		d, err := y.sample(ctx, durable, 64, window)
		if err != nil {
			return err
		}
		m.quietPassing, m.quietDurable = append(m.quietPassing, p), append(m.quietDurable, d)
	}
	return nil
}
