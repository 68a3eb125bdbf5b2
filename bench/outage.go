package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	outageRate    = 300 // webhooks per second
	outageTenants = 50
	outageLength  = 5 * time.Second
)

// outage is what becomes of a steady flow of webhooks while the receiver is away.
type outage struct {
	sent, refused int
	disorder      int64
	repeats       int64
	lost          int
	waited        int           // when the receiver was back
	first         time.Duration // from then until the first delivery
	all           time.Duration // and until all were delivered that had come before
}

func (y *yard) outage(ctx context.Context, u *usher) (*outage, error) {
	f, err := y.fleet(u, outageTenants, 1)
	if err != nil {
		return nil, err
	}
	defer f.close()
	disorder, repeats := y.receiver.disorder.Load(), y.receiver.repeats.Load()
	stop, ended := make(chan struct{}), make(chan struct{})
	var sent load
	var sendErr error
	go func() {
		defer close(ended)
		sent, sendErr = f.steady(stop, outageRate)
	}()

	edge := pick(y.bench, time.Second, 3*time.Second) // before and after
	time.Sleep(edge)
	o := new(outage)
	err = y.away(ctx, u, f, o)
	time.Sleep(edge)
	close(stop)
	<-ended
	if err := errors.Join(err, sendErr); err != nil {
		return nil, err
	}
	if err := u.drained(ctx); err != nil {
		return nil, err
	}
	for _, s := range f {
		o.lost += y.receiver.lacks(s.tenants[0], int(s.sent[0].Load()))
	}
	o.sent, o.refused = sent.acknowledged, sent.refused
	y.refused += sent.refused
	o.disorder = y.receiver.disorder.Load() - disorder
	o.repeats = y.receiver.repeats.Load() - repeats
	return o, nil
}

// away takes the receiver down for a while, and watches what happens when it is back.
func (y *yard) away(ctx context.Context, u *usher, f fleet, o *outage) (err error) {
	y.receiver.down()
	time.Sleep(outageLength)
	if o.waited, err = u.pending(); err != nil {
		return err
	}
	delivered := y.receiver.delivered.Load()
	came := make([]int, len(f))
	for i, s := range f {
		came[i] = int(s.sent[0].Load())
	}
	back := time.Now()
	if err := y.receiver.up(); err != nil {
		return err
	}
	o.first, err = since(ctx, back, func() bool { return y.receiver.delivered.Load() > delivered })
	if err != nil {
		return err
	}
	o.all, err = since(ctx, back, func() bool {
		for i, s := range f {
			if y.receiver.lacks(s.tenants[0], came[i]) > 0 {
				return false
			}
		}
		return true
	})
	return err
}

// since waits until done says so, and returns how long after began that was.
func since(ctx context.Context, began time.Time, done func() bool) (time.Duration, error) {
	for !done() {
		if ctx.Err() != nil || time.Since(began) > 2*time.Minute {
			return 0, fmt.Errorf("not everything was delivered within %v of the receiver's return", time.Since(began).Round(time.Second))
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(began), nil
}

func (o *outage) table() *table {
	t := &table{
		title:  fmt.Sprintf("The receiver is down for %v, under %d webhooks/s of %d tenants", outageLength, outageRate, outageTenants),
		header: []string{"", ""},
	}
	t.add("webhooks acknowledged / refused", fmt.Sprintf("%d / %d", o.sent, o.refused))
	t.add("waiting when the receiver was back", fmt.Sprint(o.waited))
	t.add("first delivery after its return", seconds(o.first))
	t.add("all that had come before its return were delivered after", seconds(o.all))
	t.add("out of order / lost", fmt.Sprintf("%d / %d", o.disorder, o.lost))
	t.add("delivered twice", fmt.Sprint(o.repeats))
	return t
}
