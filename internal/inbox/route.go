package inbox

import (
	"context"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/receiver"
	"usher/webhookgate"
)

// A lane has the name of its receiver, so that claims find it. The settings may have changed since: a platform has
// another receiver now, or a receiver another name.

const (
	// routeInterval is the time between two looks for lanes whose receiver is gone. Other replicas may still have it.
	routeInterval = 5 * time.Second
	// fullRouteInterval is the time between two looks at the lanes of the receivers that there are: all of them are
	// read. A file has only this process, whose settings do not change.
	fullRouteInterval = time.Minute
)

// routeLanes finds lanes that have the wrong receiver, at the start and from time to time, and gives them the right
// one.
func (s *Inbox) routeLanes() {
	tick := time.NewTicker(routeInterval)
	defer tick.Stop()
	var lastFull time.Time
	for s.run.Err() == nil {
		full := lastFull.IsZero() || s.engine.Shared() && time.Since(lastFull) >= fullRouteInterval
		if err := s.route(full); err == nil && full { // else the writer notices the outage
			lastFull = time.Now()
		}
		select {
		case <-tick.C:
		case <-s.run.Done():
		}
	}
}

// route looks once. full: also at the lanes of receivers that there are.
func (s *Inbox) route(full bool) error {
	known := make(map[string]*receiver.Receiver)
	claimed := engine.Listed{} // the platforms that have a receiver of their own
	for _, rc := range s.cfg.Receivers.All() {
		known[rc.Name] = rc
		claimed = append(claimed, rc.Platforms...)
	}
	var names []string
	err := s.read(s.run, func(tx engine.Tx) (err error) {
		names, err = receiversOf(tx)
		return err
	})
	for _, name := range names {
		rc := known[name]
		if rc != nil && !full {
			continue
		}
		// Whether the wrong ones are those on these platforms, or all others.
		listed, platforms := int64(1), claimed
		switch {
		case rc != nil && len(rc.Platforms) > 0:
			listed, platforms = 0, rc.Platforms
		case rc == nil && s.cfg.Receivers.Main() != nil:
			listed, platforms = 0, engine.Listed{}
		}
		for moved := 1; err == nil && moved > 0; {
			var lanes []webhookgate.LaneName
			leasesEndedBy := int64(0) // none did, while nobody may take over a lane
			if s.clock.mayTakeOver(s.leaseTime) {
				leasesEndedBy = s.Now().UnixMicro()
			}
			err = s.read(s.run, func(tx engine.Tx) error {
				tx.Queue("misrouted", func(r engine.Row) error {
					var l webhookgate.LaneName
					err := r.Scan(&l.Tenant, &l.Platform, &l.Type)
					lanes = append(lanes, l)
					return err
				}, name, platforms, listed, leasesEndedBy, int64(s.cfg.Limits.Step))
				return tx.Send()
			})
			if moved = 0; err == nil && len(lanes) > 0 {
				moved, err = s.reroute(lanes)
			}
		}
	}
	return err
}

// reroute gives lanes the receiver that the settings say, has the courier look for them, and says how many got
// another one: those that are being delivered keep theirs.
func (s *Inbox) reroute(lanes []webhookgate.LaneName) (moved int, err error) {
	ctx, cancel := context.WithTimeout(s.run, actionPatience)
	defer cancel()
	return do(ctx, s, work{known: lanes}, func(t *sqlTurn) (moved int) {
		for _, name := range lanes {
			if l := t.Lanes[name]; l != nil {
				before := l.ReceiverName
				if l.UpdateReceiver(); l.ReceiverName != before {
					moved++
				}
			}
		}
		t.Then(s.wakeCourier)
		return moved
	})
}
