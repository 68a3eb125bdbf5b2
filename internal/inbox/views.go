package inbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
)

// What people see. All of it are queries, with the same result on every replica.

// Filter selects webhooks; empty fields select all.
type Filter struct {
	State    state.State
	Tenant   string
	Platform *string   // nil: any
	Since    time.Time // received at that time or later
	Until    time.Time // received before
	Before   int64     // only ids below this one, to continue a former list
	After    int64     // if it is not zero: only ids above this one, and the oldest come first
	Limit    int       // only so many, the first; 0: all
}

// match checks the conditions that are not part of the query.
func (f *Filter) match(w *lane.Webhook) bool {
	return (f.Tenant == "" || w.Tenant == f.Tenant) && (f.Platform == nil || w.Platform == *f.Platform)
}

// A period is some time: from its first microsecond on, and before its last.
type period struct{ from, to int64 }

// periodOf returns the time between two; zero times: since ever, and for ever.
func periodOf(since, until time.Time) period {
	in := period{since.UnixMicro(), clock.Never}
	if !until.IsZero() {
		in.to = until.UnixMicro()
	}
	return in
}

// pageSize is how many rows one query returns: a long list must not keep a transaction open for long.
const pageSize = 500

// List returns the webhooks that f selects, newest first, without their content.
func (s *store) List(ctx context.Context, f Filter) ([]*lane.Webhook, error) {
	var out []*lane.Webhook
	err := s.Each(ctx, f, false, func(w *lane.Webhook) bool {
		out = append(out, w)
		return f.Limit == 0 || len(out) < f.Limit
	})
	return out, err
}

// Each calls fn for the webhooks that f selects, newest first, until fn returns false. If withContent is true they
// have their content, and their tenant's snapshot before them (Webhook.Previous).
func (s *store) Each(ctx context.Context, f Filter, withContent bool, fn func(*lane.Webhook) bool) error {
	return s.pages(ctx, f, withContent, func(page []*lane.Webhook) (more bool, err error) {
		for i, w := range page {
			if page[i] = nil; withContent { // one at a time, since what was before it may be large, too
				if err := s.addPrevious(ctx, w); err != nil {
					return false, err
				}
			}
			if !fn(w) {
				return false, nil
			}
		}
		return true, nil
	})
}

// EachPage calls fn for some hundred of the webhooks that f selects at a time, newest first, without their content.
func (s *store) EachPage(ctx context.Context, f Filter, fn func([]*lane.Webhook) error) error {
	return s.pages(ctx, f, false, func(page []*lane.Webhook) (bool, error) { return true, fn(page) })
}

// An eachPage gets one page of a list after the other, until it returns false.
type eachPage func(page []*lane.Webhook) (more bool, err error)

// pages reads the webhooks that f selects, newest first, page by page, until fn returns false. No transaction lasts
// longer than a page.
func (s *store) pages(ctx context.Context, f Filter, withContent bool, fn eachPage) error {
	if !storable(f.Tenant) {
		return nil
	}
	from, up := cmp.Or(f.Before, clock.Never), ""
	if f.After > 0 {
		from, up = f.After, "_up"
	}
	number := int64(-1)
	if f.State != "" {
		number = f.State.Number()
	}
	in := periodOf(f.Since, f.Until)
	query := func(bodies bool, size int64) (page []*lane.Webhook, err error) {
		err = s.browse(ctx, func(tx engine.Tx) error {
			each := intoPage(&page, scanWhole)
			args := []any{from, number, in.from, in.to, boolNumber(bodies), size}
			switch {
			case f.Tenant != "" && f.Platform != nil:
				tx.Queue("list_lane"+up, each, append(args, f.Tenant, *f.Platform)...)
			case f.Tenant != "":
				tx.Queue("list_tenant"+up, each, append(args, f.Tenant)...)
			case f.State.Is(state.Attention):
				tx.Queue("list_attention"+up, each, args...)
			default:
				tx.Queue("list"+up, each, args...)
			}
			return tx.Send()
		})
		return page, err
	}
	for {
		size := int64(pageSize)
		if f.Limit > 0 && f.Limit < pageSize {
			size = int64(f.Limit)
		}
		if withContent { // first without them, because they may be large
			sizes, err := query(false, min(size, 50))
			if err != nil || len(sizes) == 0 {
				return err
			}
			size = s.fitting(sizes)
		}
		page, err := query(withContent, size)
		if err != nil {
			return err
		}
		last := int64(len(page)) < size
		if !last {
			from = page[size-1].ID
		}
		page = slices.DeleteFunc(page, func(w *lane.Webhook) bool { return !f.match(w) })
		if more, err := fn(page); err != nil || !more || last {
			return err
		}
	}
}

// Behind returns those of some webhooks that wait behind another of their tenant that f selects by its times.
func (s *store) Behind(ctx context.Context, f Filter, page []*lane.Webhook) (map[int64]bool, error) {
	behind, in := make(map[int64]bool), periodOf(f.Since, f.Until)
	var waiting, since, until []int64
	for _, w := range page {
		if w.State == state.Waiting && w.Tenant != "" {
			waiting, since, until = append(waiting, w.ID), append(since, in.from), append(until, in.to)
		}
	}
	if len(waiting) == 0 {
		return behind, nil
	}
	return behind, s.browse(ctx, func(tx engine.Tx) error {
		tx.Queue("waiting_behind", func(r engine.Row) error {
			var id int64
			err := r.Scan(&id)
			behind[id] = true
			return err
		}, waiting, since, until)
		return tx.Send()
	})
}

// fitting is how many of these webhooks, one at least, can be held at once with their bodies.
func (s *store) fitting(page []*lane.Webhook) (count int64) {
	bytes := int64(0)
	for _, w := range page {
		if bytes += w.Size; count > 0 && bytes > s.cfg.Limits.PageBytes {
			break
		}
		count++
	}
	return count
}

// Show returns a webhook with its content, and with its tenant's snapshot before it.
func (s *store) Show(ctx context.Context, id int64) (*lane.Webhook, error) {
	w, err := s.find(ctx, id)
	if err != nil {
		return nil, err
	}
	return w, s.addPrevious(ctx, w)
}

// addPrevious adds to a webhook with its content what its tenant had before it, and says whether it is damaged.
func (s *store) addPrevious(ctx context.Context, w *lane.Webhook) error {
	if !w.Rejected() && w.Check() != nil {
		w.Why = lane.ErrDamaged.Error()
	}
	hasState := w.Snapshot || w.Rejected() && w.Type == content.TenantProvisioningChange
	if !hasState || !w.LaneName.IsLane() {
		return nil
	}
	return s.browse(ctx, func(tx engine.Tx) error {
		tx.Queue("previous", func(r engine.Row) error {
			var accepted int64
			p := new(lane.Webhook)
			if err := r.Scan(&p.ID, &accepted, &p.Body); err != nil {
				return err
			}
			w.Before = max(w.Before, p.ID)
			if accepted != 0 {
				w.Previous = p
			}
			return nil
		}, w.LaneName.Tenant, w.LaneName.Platform, w.LaneName.Type, w.ID)
		return tx.Send()
	})
}

// Snapshots returns the last snapshots of a tenant's code, on whichever platforms it is.
func (s *store) Snapshots(ctx context.Context, tenant string) ([]snapshot.Stored, error) {
	if !storable(tenant) {
		return nil, nil
	}
	return listOf(ctx, s.read, scanSnapshot, "snapshots", tenant)
}

// Platforms returns the platforms on which a tenant is known, even if only by a pause.
func (s *store) Platforms(ctx context.Context, tenant string) (all []string, err error) {
	lanes, err := s.lanesOf(ctx, nil, tenant)
	for _, l := range lanes {
		if l.Tail > 0 || l.Invalid > 0 {
			all = append(all, l.Platform)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), err
}

// ErrNotFound says that the inbox has no webhook with this id, or has deleted it.
var ErrNotFound = errors.New("no such webhook in the inbox: it may be too old, see 'usher inbox ls'")

// find reads a webhook with its content. Of the result only the lane and the content never change.
func (s *store) find(ctx context.Context, id int64) (w *lane.Webhook, err error) {
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("webhooks", func(r engine.Row) error {
			found, err := scanWhole(r)
			if err == nil {
				w = found
			}
			return err
		}, []int64{id})
		return tx.Send()
	})
	if err == nil && w == nil {
		err = ErrNotFound
	}
	return w, err
}

// lanesOf returns the lanes of a tenant, on one platform or on all.
func (s *store) lanesOf(ctx context.Context, platform *string, tenant string) (all []*lane.Lane, err error) {
	if !storable(tenant) {
		return nil, nil
	}
	scan := func(r engine.Row) (*lane.Lane, error) { return scanLane(r) }
	all, err = listOf(ctx, s.read, scan, "lanes_of_tenant", tenant)
	return slices.DeleteFunc(all, func(l *lane.Lane) bool { return platform != nil && l.Platform != *platform }), err
}
