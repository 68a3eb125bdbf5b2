package inbox

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
)

// A finding is what a reconcile has found of a tenant. It is the tenant's trouble until a later run has
// compared that very tenant, something newer of it was taken in, somebody erases it, or somebody dismisses
// the finding. It has the run's mark: so a snapshot with a higher number ends it, without a statement of its
// own ({stands} in the statements). And it has the time up to which the run knew the billing service: so a
// run with an older list changes nothing of it. An erasure leaves a row with the day alone.

// A Finding is that of one tenant.
type Finding struct {
	Result  lane.Result `json:"result"`
	Changes []string    `json:"changes,omitempty"` // in words: how what the billing service says differs
	Since   time.Time   `json:"since"`             // when a run first found it
}

// scanFinding returns nil if the result is empty.
func scanFinding(result, changes string, at int64) *Finding {
	if result == "" {
		return nil
	}
	f := &Finding{Result: lane.Result(result), Since: clock.Moment(at)}
	_ = json.Unmarshal([]byte(changes), &f.Changes) // usher wrote it
	return f
}

// saveFinding queues what a run has found of a tenant.
func (t *sqlTurn) saveFinding(r *lane.Run, c *lane.Compared) {
	words, _ := json.Marshal(c.Changes) // strings
	t.tx.Queue("finding_save", nil, c.Tenant, c.Platform, string(c.Result), withoutZero(string(words)), c.Fingerprint(),
		r.Mark, r.KnowsUpTo().UnixMicro(), t.Now)
}

// DismissFinding says that what was found of a tenant is dealt with. It returns how many findings that were:
// one, or none.
func (s *Inbox) DismissFinding(platform, tenant string, by *Action) (count int, err error) {
	return act(s, work{by: by}, func(t *sqlTurn) (count, touched int, err error) {
		each := func(r engine.Row) error { count++; return r.Scan(new(string)) }
		t.tx.Queue("finding_dismiss", each, tenant, platform, t.Now)
		t.send()
		return count, 0, nil
	})
}

// Finding returns what was found of a tenant; nil: nothing that stands.
func (s *Inbox) Finding(ctx context.Context, platform, tenant string) (f *Finding, err error) {
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("finding", func(r engine.Row) error {
			var result, changes string
			var at int64
			err := r.Scan(&result, &changes, &at)
			f = scanFinding(result, changes, at)
			return err
		}, tenant, platform)
		return tx.Send()
	})
	return f, err
}

// Words says in words what was found.
func (f *Finding) Words() string {
	switch {
	case f == nil:
		return ""
	case len(f.Changes) == 0:
		return string(f.Result)
	}
	return string(f.Result) + ": " + strings.Join(f.Changes, ", ")
}

// maxAlone is how many of the tenants that usher does not know a list shows.
const maxAlone = 10_000

// foundAlone returns tenants that usher does not know, and that a reconcile has found in some time.
func (s *Inbox) foundAlone(ctx context.Context, in period) ([]*Tenant, error) {
	scan := func(r engine.Row) (*Tenant, error) {
		t := new(Tenant)
		var result, changes string
		var at int64
		err := r.Scan(&t.Tenant, &t.Platform, &result, &changes, &at)
		t.Finding = scanFinding(result, changes, at)
		return t, err
	}
	return listOf(ctx, s.browse, scan, "findings_alone", in.from, in.to, int64(maxAlone))
}
