package inbox

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"time"

	"usher/internal/inbox/engine"
)

// A finding is what a reconcile has found of a tenant. It is the tenant's trouble until a later run has compared that very tenant, something
// newer of it was taken in, somebody erases it, or somebody dismisses the finding. It has the run's mark: so a snapshot with a higher number
// ends it, without a statement of its own ({stands} in the statements). And it has the time up to which the run knew the billing service: so
// a run with an older list changes nothing of it. An erasure leaves a row with the day alone.

// Findings count tenants by what was found of them.
type Findings struct {
	Differs  int `json:"differs"`
	New      int `json:"new"`
	Twin     int `json:"twin"`
	Unlisted int `json:"unlisted"`
}

// Count is how many they are.
func (f Findings) Count() int { return f.Differs + f.New + f.Twin + f.Unlisted }

func (f *Findings) count(result Result, n int) {
	if counter := map[Result]*int{Differs: &f.Differs, NewTenant: &f.New, Twin: &f.Twin, Unlisted: &f.Unlisted}[result]; counter != nil {
		*counter += n
	}
}

// A Finding is that of one tenant.
type Finding struct {
	Result  Result    `json:"result"`
	Changes []string  `json:"changes,omitempty"` // in words: how what the billing service says differs
	Since   time.Time `json:"since"`             // when a run first found it
}

// scanFinding returns nil if the result is empty.
func scanFinding(result, changes string, at int64) *Finding {
	if result == "" {
		return nil
	}
	f := &Finding{Result: Result(result), Since: moment(at)}
	_ = json.Unmarshal([]byte(changes), &f.Changes) // usher wrote it
	return f
}

// saveFindings stores what a run has found of tenants, and deletes the findings of those that are equal.
func (s *Inbox) saveFindings(id string, all []Compared) error {
	byTenant := make(map[TenantRef]*Compared) // a tenant may be in the list twice, and is equal only if both say so
	var order []TenantRef
	for n := range all {
		c := &all[n]
		ref := TenantRef{c.Platform, c.Tenant}
		switch before := byTenant[ref]; {
		case !c.isFinding() && (c.Result != Equal || len(c.found) == 0 || before != nil):
			continue
		case before == nil:
			order = append(order, ref)
		}
		byTenant[ref] = c
	}
	if len(order) == 0 {
		return nil
	}
	var tenants, platforms, results, changes, equalTenants, equalPlatforms []string
	var digests [][]byte
	for _, ref := range order {
		c := byTenant[ref]
		if c.Result == Equal {
			equalTenants, equalPlatforms = append(equalTenants, c.Tenant), append(equalPlatforms, c.Platform)
			continue
		}
		words, _ := json.Marshal(c.Changes) // strings
		tenants, platforms, results, changes, digests = append(tenants, c.Tenant), append(platforms, c.Platform), append(results, string(c.Result)), append(changes, withoutZero(string(words))), append(digests, c.digest[:])
	}
	_, err := act(s, work{run: id}, func(t *sqlTurn) (nothing, int, error) {
		r := t.runs[id]
		if r == nil || !r.Ended.IsZero() {
			return nothing{}, 0, ErrNoRun
		}
		t.statements = append(t.statements, func(tx engine.Tx) {
			if len(tenants) > 0 {
				tx.Queue("finding_save", nil, tenants, platforms, results, changes, digests, r.mark, r.KnowsUpTo().UnixMicro(), t.now)
			}
			if len(equalTenants) > 0 {
				tx.Queue("finding_clear", nil, equalTenants, equalPlatforms, r.KnowsUpTo().UnixMicro(), t.now)
			}
		})
		return nothing{}, 0, nil
	})
	return err
}

// DismissFinding says that what was found of a tenant is dealt with. It returns how many findings that were: one, or none.
func (s *Inbox) DismissFinding(platform, tenant string, by *Action) (count int, err error) {
	return act(s, work{by: by}, func(t *sqlTurn) (count, touched int, err error) {
		t.tx.Queue("finding_dismiss", func(r engine.Row) error { count++; var result string; return r.Scan(&result) }, tenant, platform, t.now)
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
func (s *Inbox) foundAlone(ctx context.Context, after *Tenant, from, to int64, most int) (all []*Tenant, err error) {
	after = cmp.Or(after, new(Tenant))
	err = s.browse(ctx, func(tx engine.Tx) error {
		tx.Queue("findings_alone", func(r engine.Row) error {
			t := new(Tenant)
			var result, changes string
			var at int64
			err := r.Scan(&t.Tenant, &t.Platform, &result, &changes, &at)
			t.Finding = scanFinding(result, changes, at)
			all = append(all, t)
			return err
		}, after.Tenant, after.Platform, from, to, int64(most))
		return tx.Send()
	})
	return all, err
}

// FoundTenants returns some of the tenants with findings, those first that were found first.
func (s *Inbox) FoundTenants(ctx context.Context, most int) (all []TenantRef, err error) {
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("findings_first", func(r engine.Row) error {
			var t TenantRef
			err := r.Scan(&t.Platform, &t.Tenant)
			all = append(all, t)
			return err
		}, int64(most))
		return tx.Send()
	})
	return all, err
}
