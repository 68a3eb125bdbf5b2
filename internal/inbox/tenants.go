package inbox

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/text"
	"usher/webhookgate"
)

// A Tenant is a tenant that the inbox knows.
type Tenant struct {
	Platform string    `json:"platform"`
	Tenant   string    `json:"tenant"`
	Name     string    `json:"name,omitempty"`  // in its last snapshot
	Latest   time.Time `json:"latest,omitzero"` // when its last snapshot was taken in
	Waiting  int       `json:"waiting"`
	Parked   int       `json:"parked"`
	Invalid  int       `json:"invalid"`         // those that nobody has dealt with
	Missed   time.Time `json:"missed,omitzero"` // since when it has missed webhooks; zero: it is not
	HeldUp   bool      `json:"held_up"`         // the last try of its first waiting webhook failed
	Paused   bool      `json:"paused"`
	Until    time.Time `json:"paused_until,omitzero"` // when its pause ends by itself
	Unknown  bool      `json:"unknown"`               // the features in its last snapshot can't be read
	Finding  *Finding  `json:"finding,omitempty"`     // what a reconcile has found of it; nil: nothing that counts

	missed webhookgate.MissedSet
}

// miss adds what is missed of the tenant.
func (t *Tenant) miss(d webhookgate.MissedSet) {
	t.missed = t.missed.Add(d...)
	t.Missed = t.missed.Since()
}

// scan reads a row that ends with how the tenant stands.
func (t *Tenant) scan(r engine.Row, first ...any) error {
	var failing, paused, unknown, found int64
	var missed missedColumns
	var result, changes string
	err := r.Scan(append(first, &t.Waiting, &t.Parked, &t.Invalid, &failing, &paused,
		&missed.since, &missed.webhooks, &unknown, &result, &changes, &found)...)
	t.Finding = scanFinding(result, changes, found)
	t.miss(missed.set())
	t.HeldUp, t.Paused, t.Unknown = failing > 0 && t.Waiting > 0, paused > 0, unknown > 0
	return err
}

// Standing says in words how a tenant stands.
func (t *Tenant) Standing() (words []string) {
	for _, s := range []struct {
		is   bool
		word string
	}{
		{t.Invalid > 0, "invalid"},
		{!t.Missed.IsZero(), "missed"},
		{t.Parked > 0, "parked"},
		{t.HeldUp, "held up"},
		{t.Waiting > 0, "waiting"},
		{t.Paused, Pause{Until: t.Until}.With("paused")},
		{t.Unknown, "features unknown"},
		{t.Finding != nil, t.Finding.Words()},
	} {
		if s.is {
			words = append(words, s.word)
		}
	}
	if len(words) == 0 {
		words = []string{"all right"}
	}
	return words
}

// TenantFilter selects tenants; empty fields select all.
type TenantFilter struct {
	Search   string  // text, in upper or lower case, of the code, the platform's code or the name
	Typo     bool    // also tenants whose code is Search with one typing error
	Troubled bool    // only tenants with webhooks that are held up, parked, invalid or missed
	Unknown  bool    // with Troubled: also tenants whose features can't be read
	After    *Tenant // only tenants after this one, to continue a former list
	Limit    int
}

func (f *TenantFilter) match(t *Tenant) bool {
	search := strings.ToLower(f.Search)
	found := func(in string) bool { return strings.Contains(strings.ToLower(in), search) }
	return search == "" || found(ShowTenant(t.Platform, t.Tenant)) || found(t.Name) ||
		f.Typo && text.WithinEdits(strings.ToLower(t.Tenant), search, 1)
}

// Tenants returns the tenants that f selects, in the order of their codes. After an error, with f.Troubled, these are
// those that have missed webhooks in memory.
func (s *Inbox) Tenants(ctx context.Context, f TenantFilter) (all []*Tenant, err error) {
	add := func(t *Tenant) (more bool, err error) {
		if f.match(t) {
			all = append(all, t)
		}
		return f.Limit == 0 || len(all) < f.Limit, nil
	}
	var others []*Tenant
	if f.Troubled {
		others, err = s.othersInTrouble(ctx, always)
	}
	if err == nil {
		err = s.eachTenant(ctx, f, others, nil, add)
	}
	if err != nil && f.Troubled {
		all = nil
		for _, t := range s.missedTenants(always) {
			if more, _ := add(t); !more {
				break
			}
		}
	}
	return all, err
}

// missedTenants are those that have missed webhooks in memory, and missed some in a time, in the order of their codes.
func (s *Inbox) missedTenants(in period) (all []*Tenant) {
	for name, d := range s.missedInMemory() {
		if in.has(d) {
			t := &Tenant{Platform: name.Platform, Tenant: name.Tenant}
			t.miss(d)
			all = append(all, t)
		}
	}
	slices.SortFunc(all, (*Tenant).compare)
	return all
}

// othersInTrouble are those whom the database may not have as tenants, or not as troubled: they have missed webhooks in
// memory, or a reconcile has found them in that time.
func (s *Inbox) othersInTrouble(ctx context.Context, in period) ([]*Tenant, error) {
	alone, err := s.foundAlone(ctx, in)
	return inOrder(s.missedTenants(in), alone), err
}

// maxTenantPage is how many tenants one query returns at most.
const maxTenantPage = 4000

// eachTenant calls fn for the tenants that f selects (a search is not its business), page by page, and for others that
// the database may not have, in the order of their codes, until fn returns false. ask, which may be nil, asks more of
// a page's tenants in the transaction that has read them.
func (s *Inbox) eachTenant(
	ctx context.Context, f TenantFilter, others []*Tenant,
	ask func(tx engine.Tx, page []*Tenant) error, fn func(*Tenant) (more bool, err error),
) error {
	last, missed := cmp.Or(f.After, new(Tenant)), s.missedInMemory()
	only := boolNumber(f.Troubled) + boolNumber(f.Troubled && f.Unknown)
	scan := func(r engine.Row) (*Tenant, error) {
		t, received := new(Tenant), int64(0)
		err := t.scan(r, &t.Platform, &t.Tenant, &t.Name, &received)
		t.Latest = momentOrZero(max(0, received))
		t.miss(missed[webhookgate.LaneName{Platform: t.Platform, Tenant: t.Tenant}])
		s.addPauseEnd(t)
		return t, err
	}
	// Each query continues in the table where the last one has ended. Twice as many rows each time keep the queries few.
	for size := int64(pageSize); ; size = min(2*size, maxTenantPage) {
		var page []*Tenant
		err := s.browse(ctx, func(tx engine.Tx) error {
			tx.Queue("tenants", into(&page, scan), last.Tenant, last.Platform, only, size, missed.names())
			if err := tx.Send(); err != nil || ask == nil {
				return err
			}
			return ask(tx, page)
		})
		if err != nil {
			return err
		}
		ends, n := int64(len(page)) < size, len(others)
		if !ends {
			last = page[size-1]
			for n > 0 && others[n-1].compare(last) > 0 {
				n--
			}
		}
		for _, t := range inOrder(page, others[:n]) {
			if more, err := fn(t); err != nil || !more {
				return err
			}
		}
		if others = others[n:]; ends {
			return nil
		}
	}
}

// inOrder returns tenants in the order of their codes. Of one that is in both lists it has that of the first.
func inOrder(first, others []*Tenant) []*Tenant {
	all := slices.Concat(first, others)
	slices.SortStableFunc(all, (*Tenant).compare)
	return slices.CompactFunc(all, func(a, b *Tenant) bool { return a.compare(b) == 0 })
}

// names are the tenants, for a query: the database does not know of some that they are troubled.
func (o missedSets) names() engine.Table {
	tenants, platforms := []string{}, []string{}
	for name := range o {
		tenants, platforms = append(tenants, name.Tenant), append(platforms, name.Platform)
	}
	return engine.Table{tenants, platforms}
}

func (t *Tenant) compare(other *Tenant) int {
	return cmp.Or(strings.Compare(t.Tenant, other.Tenant), strings.Compare(t.Platform, other.Platform))
}

// History is what a tenant got in some time.
type History struct {
	Tenant
	Webhooks int
	Last     time.Time // when the last of them came
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

var always = periodOf(time.Time{}, time.Time{})

// has says whether something was missed then.
func (in period) has(d webhookgate.MissedSet) bool {
	return len(d) > 0 && d.Since().UnixMicro() < in.to && d.Last().UnixMicro() >= in.from
}

// History calls fn for the tenants that got webhooks from since on and before until, in the order of their codes,
// page by page; zero times: for all that are known. troubled: only for those that are not all right now. begins is
// when the webhooks that are kept begin; zero: not later than since.
func (s *Inbox) History(
	ctx context.Context, since, until time.Time, troubled bool, fn func(*History) error,
) (begins time.Time, err error) {
	in := periodOf(since, until)
	others := s.missedTenants(in)
	if troubled {
		if others, err = s.othersInTrouble(ctx, in); err != nil {
			return begins, err
		}
	}
	var then map[*Tenant]*History // of the tenants of a page
	ask := func(tx engine.Tx, page []*Tenant) (err error) {
		then, err = historyOf(tx, page, in)
		if err == nil && begins.IsZero() && in != always {
			begins, err = historyBegins(tx, in)
		}
		return err
	}
	tell := func(t *Tenant) (more bool, err error) {
		h, known := then[t]
		if !known {
			h = &History{Tenant: *t}
		}
		if h == nil {
			return true, nil
		}
		return true, fn(h)
	}
	err = s.eachTenant(ctx, TenantFilter{Troubled: troubled, Unknown: true}, others, ask, tell)
	return begins, err
}

// MissedHistory returns those of whom usher has missed webhooks in memory then. It does not read the database.
func (s *Inbox) MissedHistory(since, until time.Time) (all []*History) {
	for _, t := range s.missedTenants(periodOf(since, until)) {
		all = append(all, &History{Tenant: *t})
	}
	return all
}

// historyOf returns what each of these tenants got in some time, or nil for one that got nothing and was missed
// nothing.
func historyOf(tx engine.Tx, page []*Tenant, in period) (map[*Tenant]*History, error) {
	then, named := make(map[*Tenant]*History, len(page)), make(map[TenantRef]*Tenant, len(page))
	tenants, platforms := make([]string, 0, len(page)), make([]string, 0, len(page))
	for _, t := range page {
		then[t], named[TenantRef{t.Platform, t.Tenant}] = nil, t
		tenants, platforms = append(tenants, t.Tenant), append(platforms, t.Platform)
	}
	tx.Queue("tenant_history", func(r engine.Row) error {
		var ref TenantRef
		var n, last int64
		err := r.Scan(&ref.Tenant, &ref.Platform, &n, &last)
		t := named[ref]
		if t == nil || n == 0 && in != always && !in.has(t.missed) {
			return err
		}
		then[t] = &History{Tenant: *t, Webhooks: int(n), Last: t.Latest}
		if n > 0 {
			then[t].Last = clock.Moment(last)
		}
		return err
	}, in.from, in.to, engine.Table{tenants, platforms})
	return then, tx.Send()
}

// historyBegins returns when the oldest finished webhook that is kept was finished; zero: not after the beginning of
// that time.
func historyBegins(tx engine.Tx, in period) (begins time.Time, err error) {
	tx.Queue("history_begin", func(r engine.Row) error {
		var at int64
		err := r.Scan(&at)
		if at > in.from {
			begins = clock.Moment(at)
		}
		return err
	})
	return begins, tx.Send()
}

// Unknown returns the first tenants whose features can't be read, those that are so for longest first.
func (s *Inbox) Unknown(ctx context.Context, limit int) ([]*Tenant, error) {
	scan := func(r engine.Row) (*Tenant, error) {
		t, received := &Tenant{Unknown: true}, int64(0)
		err := r.Scan(&t.Platform, &t.Tenant, &received)
		t.Latest = clock.Moment(received)
		return t, err
	}
	return listOf(ctx, s.read, scan, "tenants_unknown", int64(limit))
}
