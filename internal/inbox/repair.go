package inbox

import (
	"time"

	"usher/internal/inbox/engine"
	"usher/webhookgate"
)

// A damaged row is found when it is read. Here are those that no other statement finds. They are looked for, and made
// such that they are found.

const (
	// maxRepairs is how many lanes, webhooks or snapshots are repaired at a time.
	maxRepairs = int64(100)
	// unreadInterval is the time between two looks at all snapshots.
	unreadInterval = time.Hour
)

// repair is for a row of the statement damaged: a lane that no claim finds although something waits in it, or a
// webhook whose state is none.
func (s *Inbox) repair(r engine.Row) (*work, error) {
	var name webhookgate.LaneName
	var seq int64
	err := r.Scan(&name.Tenant, &name.Platform, &name.Type, &seq)
	w := &work{known: []webhookgate.LaneName{name}, failed: func(error) {}}
	if seq != 0 {
		w.hooks = []int64{seq} // Lane.Load parks it
	}
	w.decide = func(t *sqlTurn) {
		if l := t.Lanes[name]; l != nil && seq == 0 {
			l.Repair()
		}
		t.Then(s.wakeCourier)
	}
	return w, err
}

// repairSnapshots has features that cannot be read be none, so that they are counted and listed as unknown. It is for
// a file: PostgreSQL does not take them.
func (s *Inbox) repairSnapshots() {
	tick := time.NewTicker(unreadInterval)
	defer tick.Stop()
	for s.run.Err() == nil {
		var unread []webhookgate.LaneName
		err := s.read(s.run, func(tx engine.Tx) error {
			tx.Queue("snapshots_unread", func(r engine.Row) error {
				var l webhookgate.LaneName
				err := r.Scan(&l.Tenant, &l.Platform)
				unread = append(unread, l)
				return err
			}, maxRepairs)
			return tx.Send()
		})
		if err == nil && len(unread) > 0 {
			s.submit(s.forgetFeatures(unread))
		}
		select {
		case <-tick.C:
		case <-s.run.Done():
		}
	}
}

func (s *Inbox) forgetFeatures(of []webhookgate.LaneName) *work {
	return &work{known: of, failed: func(error) {}, decide: func(t *sqlTurn) {
		tenants, platforms, _ := laneColumns(of)
		t.tx.Queue("snapshot_unread", nil, tenants, platforms)
		for _, l := range of {
			t.LogError("the features of a tenant were damaged in the inbox: they are unknown until its next snapshot",
				"tenant", l.Tenant, "platform", l.Platform)
			t.Then(func() { s.cfg.Changed(l.Tenant) })
		}
		t.Then(s.changed)
	}}
}
