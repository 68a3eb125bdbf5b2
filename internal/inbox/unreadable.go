package inbox

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"usher/internal/lane"
	"usher/webhookgate"
)

// A row of a tenant that cannot be read stops that tenant: its webhooks are neither taken in nor delivered. Nobody else
// waits for it. It is logged once, and a trouble for as long as this process has not read it.

// unreadable are the tenants whose rows this process could not read.
type unreadable struct {
	mu    sync.Mutex // guards what follows
	lanes map[webhookgate.LaneName]bool
}

var errUnreadable = errors.New("the tenant's row in the inbox is damaged: restore a backup")

// noteUnreadable notes that a row of this lane cannot be read.
func (s *Inbox) noteUnreadable(name webhookgate.LaneName) {
	u := &s.unreadable
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.lanes[name] {
		u.lanes[name] = true
		s.cfg.Log.Error("a row of this tenant in the inbox cannot be read: its webhooks are neither taken in nor delivered",
			"tenant", name.Tenant, "platform", name.Platform)
	}
}

// names returns the tenants.
func (u *unreadable) names() (all []TenantRef) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, name := range slices.SortedFunc(maps.Keys(u.lanes), lane.CompareNames) {
		all = append(all, TenantRef{name.Platform, name.Tenant})
	}
	return all
}
