// Package inbox keeps webhooks safe until their receiver has accepted them. Before a sender gets 200 its webhook is a
// row in a database, in a file or shared by replicas.
//
// A lane is the queue of one tenant, and a row, too. The transaction that has locked the lane's row decides about it.
// All decisions are methods of package lane, in plain Go. This package brings lanes and the database together. Read its
// files in this order:
//
//	names.go        tenants as people write them
//	rows.go         lanes, webhooks and others as rows
//	config.go       where an inbox is, and its limits
//	health.go       whether the database can be written; clock.go: what its clock says
//	store.go        the database, as one process sees it: all that follows reads and writes through it
//	views.go        what people see of webhooks
//	pause.go        what is held back; tenants.go: what people see of tenants
//	missed.go       webhooks that got a 5xx, and times without a gate
//	figures.go      counts, and how much room there is
//	places.go       which lanes are claimed, and who gets a place
//	transaction.go  a transaction: locks and reads lanes, lets operations decide, and writes what lanes remember
//	queue.go        hands operations to the writer
//	courier.go      delivers, and has what came of it written
//	actions.go      what people do, and who did it; pausing.go: they pause deliveries
//	ops.go          what the gate hands in, and what people do with webhooks and tenants
//	feed.go         tells programs that keep a copy what has changed
//	history.go      what was wrong, from when to when, and who says it
//	heartbeat.go    says that a gate is up, and stores what was missed
//	reconcile.go    a run of 'usher reconcile'; pass.go: a pass over a list, line by line
//	catchup.go      a run over the billing service's webhook log
//	writer.go       runs one transaction for all operations that have arrived
//	retention.go    what is finished goes after a while
//	loop.go         the one goroutine that does all of this writing
//	inbox.go        puts it together
//
// engine/ says what a database must do; sqlite/ and postgres/ do it, and know nothing about webhooks.
package inbox

import "usher/internal/inbox/engine"

// An Inbox keeps webhooks and delivers them. Each of its parts knows only parts before it.
type Inbox struct {
	*store
	*pauses
	*figures
	*queue
	*courier
	*feed
	*pulse
}

// Open opens the inbox. Run delivers the webhooks that wait there.
func Open(cfg Config) (*Inbox, error) {
	e, err := openEngine(cfg)
	if err != nil {
		return nil, err
	}
	return New(e, cfg), nil
}

// New makes an inbox on an engine whose tables exist.
func New(e engine.Engine, cfg Config) *Inbox {
	if cfg.Limits == (Limits{}) {
		cfg.Limits = DefaultLimits
	}
	if cfg.Content == nil {
		cfg.Content = builtInRules()
	}
	if cfg.Changed == nil {
		cfg.Changed = func(string) {}
	}
	s := newStore(e, cfg)
	p := newPauses(s)
	f := newFigures(p)
	q := newQueue(s)
	c := newCourier(q, newPlaces(p), f)
	i := &Inbox{store: s, pauses: p, figures: f, queue: q, courier: c, feed: newFeed(q), pulse: newPulse(f)}
	w := newWriter(q, f, c, i.feed)
	go (&loop{writer: w, pulse: i.pulse, sweeper: &sweeper{writer: w}}).serve()
	s.background.Go(c.refreshPauses)
	s.background.Go(f.runCounter)
	if e.Shared() {
		s.background.Go(i.feed.watch)
	}
	return i
}

// Close ends the writer, after it has written what was submitted, and closes the engine.
func (i *Inbox) Close() error {
	i.stop()
	<-i.closed
	i.background.Wait()
	return i.engine.Close()
}
