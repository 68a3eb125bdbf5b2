package inbox

import (
	"testing"

	"usher/internal/inbox/store"
	"usher/internal/receiver"
)

// What is there can be seen as soon as the inbox is open, also by an usher that takes nothing in and delivers nothing.
func TestSeenFromTheStart(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() store.Engine) {
		d := newDesk(t, open)
		d.take("crm/t", "A")
		d.idle("")
		d.shut()
		for _, set := range []*receiver.Set{d.cfg.Store.Receivers, nil} {
			cfg := d.cfg
			cfg.Store.Receivers = set
			i := New(open(), cfg)
			all, err := i.List(store.Filter{})
			if err != nil || len(all) != 1 || all[0].Platform != "crm" {
				t.Errorf("%d receivers: %+v %v", len(set.All()), all, err)
			}
			if s, err := i.Snapshots(t.Context(), []string{"t"}); err != nil || len(s) != 1 {
				t.Errorf("%d receivers: %+v %v", len(set.All()), s, err)
			}
			if s := i.Stats(); s.Unknown || i.Err() != nil || !i.Ready() {
				t.Errorf("%d receivers: %+v %v", len(set.All()), s, i.Err())
			}
			check(t, i.Close())
		}
	})
}
