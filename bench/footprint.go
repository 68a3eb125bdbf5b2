package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	for range pick(o.bench, 2, 5) {
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
	f.beforeMain = o.beforeMain(ctx)
	return nil
}

// beforeMain is what usher's packages take to get ready, before its first line runs, and
// the one among them that takes the most.
type beforeMain struct {
	all, most []float64 // milliseconds
	name      string
}

var initLine = regexp.MustCompile(`(?m)^init (\S+) @\S+ ms, (\S+) ms clock`)

// beforeMain has the runtime tell.
func (o *court) beforeMain(ctx context.Context) (b beforeMain) {
	for range pick(o.bench, 1, 9) {
		args := slices.Concat(o.pins.measured, []string{o.usher, "version"})
		c := exec.CommandContext(ctx, args[0], args[1:]...)
		c.Env = append(os.Environ(), "GODEBUG=inittrace=1", "GOMAXPROCS=1")
		out, _ := c.CombinedOutput() // then the results do not speak of it
		sum, most := 0.0, 0.0
		for _, line := range initLine.FindAllSubmatch(out, -1) {
			took, _ := strconv.ParseFloat(string(line[2]), 64) // zero: not a number, which can't be
			if sum += took; took > most {
				most, b.name = took, string(line[1])
			}
		}
		b.all, b.most = append(b.all, sum), append(b.most, most)
	}
	return b
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
	at64, err := o.reading(ctx, r.process, scenario{plain, sizes[0], 64}, window, r.address)
	if err != nil {
		return err
	}
	many, err := o.reading(ctx, r.process, scenario{plain, sizes[0], crowd}, window, r.address)
	if err != nil {
		return err
	}
	f.at64, f.atCrowd = append(f.at64, at64.rss), append(f.atCrowd, many.rss)
	return nil
}

// coldStart is what happens when many call before there is a token.
type coldStart struct {
	callers  int
	grants   int64         // token requests that they made
	answered int64         // with 200
	asked    time.Duration // from usher's start to its first token request
	served   time.Duration // from the token to the last caller's answer
}

// cold has a thousand callers wait for usher's very first token.
func (o *court) cold(ctx context.Context, f *findings) error {
	ports, err := freePorts(2)
	if err != nil {
		return err
	}
	var began, asked time.Time
	first, release := make(chan struct{}), make(chan struct{})
	s := newService(o.token)
	s.granting = sync.OnceFunc(func() {
		asked = time.Now()
		close(first)
		<-release
	})
	l, err := net.Listen("tcp", ports[0])
	if err != nil {
		return err
	}
	defer l.Close()
	go s.serve(l, plain, tls.Certificate{}) // ends with l

	args, env, err := usherCommand(o, ports[1], plain)
	if err != nil {
		return err
	}
	env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, "USHER_BASE_URL=") })
	began = time.Now()
	u, err := o.launch(slices.Concat(o.pins.measured, args), append(env, "USHER_BASE_URL=http://"+ports[0], "GOMAXPROCS=1"))
	if err != nil {
		return err
	}
	defer u.stop()
	select {
	case <-first:
	case <-time.After(20 * time.Second):
		return errors.New("usher asks for no token")
	case <-ctx.Done():
		return ctx.Err()
	}
	c := &coldStart{callers: crowd, asked: asked.Sub(began)}
	answered := callAtOnce(ports[1], c.callers)
	released := time.Now()
	close(release)
	c.answered = answered()
	c.served = time.Since(released)
	c.grants = s.grants.Load()
	f.coldStart = c
	return nil
}

// callAtOnce sends so many calls at once, each on a connection of its own, and
// returns when all have left; what it returns waits for the answers and counts those
// with 200.
func callAtOnce(address string, n int) (answered func() int64) {
	var sent, all sync.WaitGroup
	var ok atomic.Int64
	for range n {
		sent.Add(1)
		all.Go(func() {
			c, err := dialCaller(address)
			if err == nil {
				defer c.close()
				err = c.send(target(sizes[0]))
			}
			sent.Done()
			if err != nil {
				return
			}
			if status, err := readAnswer(c.answers); err == nil && status == http.StatusOK {
				ok.Add(1)
			}
		})
	}
	sent.Wait()
	time.Sleep(100 * time.Millisecond) // until usher has read them
	return func() int64 { all.Wait(); return ok.Load() }
}
