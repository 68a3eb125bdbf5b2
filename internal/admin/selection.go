package admin

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/inbox/store"
)

// selection is what a list is asked for.
type selection struct {
	Tenant       string // as somebody writes it: platform/tenant, or tenant
	Outcome      string // a state in the inbox, or else what the gate decided
	Search       string
	Since, Until time.Time // received from then on, and before; zero: whenever

	tenant store.TenantName // the same as Tenant
	kept   bool             // only what is in the inbox
	before cursor
	limit  int  // 0: all
	force  bool // of an action: older snapshots are meant, too
}

// inboxOutcomes and passOutcomes are what a webhook can have come to, with an inbox and without. With one, what asks a
// question is forwarded.
var (
	inboxOutcomes = []string{"waiting", "parked", "refused", "delivered", "superseded", "discarded", "kept", "accepted", "forwarded", "duplicate", "rejected", "failed"}
	passOutcomes  = []string{"forwarded", "duplicate", "rejected", "failed"}
)

// Narrow says whether something is selected by anything.
func (s selection) Narrow() bool { return len(s.Query()) > 0 }

// decided says whether they are selected by what the gate decided: nothing in the inbox fits.
func (s selection) decided() bool { return slices.Contains(passOutcomes, s.Outcome) }

// filter is the selection, but for where it goes on.
func (s selection) filter() store.Filter {
	return store.Filter{
		State: store.State(s.Outcome), Tenant: s.tenant.Tenant, Platform: s.tenant.Platform, Since: s.Since, Until: s.Until,
		Search: s.Search, Limit: s.limit,
	}
}

// readQuery is url.ParseQuery. URL.Query passes over what can't be read, and no name means everybody.
func readQuery(rawQuery string) (url.Values, error) {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, badRequest("the query can't be read: %v", err)
	}
	return query, nil
}

// readSelection reads what a list is asked for, or what an action is to be done to.
func readSelection(r *http.Request) (s selection, err error) {
	query, err := readQuery(r.URL.RawQuery)
	if err != nil {
		return s, err
	}
	s = selection{
		Tenant: strings.TrimSpace(query.Get("tenant")), Outcome: query.Get("state"), Search: strings.TrimSpace(query.Get("search")),
		kept: query.Get("inbox") == "true", limit: pageSize,
	}
	if s.Outcome != "" && !slices.Contains(inboxOutcomes, s.Outcome) {
		return s, badRequest("there is no state %q: it should be %s", s.Outcome, strings.Join(inboxOutcomes, ", "))
	}
	if s.Tenant != "" {
		if s.tenant, err = store.ParseTenant(s.Tenant); err != nil {
			return s, badRequest("%v", err)
		}
	}
	for name, to := range map[string]*time.Time{"since": &s.Since, "until": &s.Until} {
		if *to, err = readTime(name, query.Get(name)); err != nil {
			return s, err
		}
	}
	if before := query.Get("before"); before != "" {
		left, right, _ := strings.Cut(before, ".")
		var errs [2]error
		s.before.inbox, errs[0] = strconv.ParseInt(left, 10, 64)
		s.before.decision, errs[1] = strconv.ParseInt(right, 10, 64)
		if errs != [2]error{} {
			return s, badRequest("before is %q, but should be what a former list had as next", before)
		}
	}
	if limit := query.Get("limit"); limit != "" {
		n, err := strconv.ParseUint(limit, 10, 31)
		if err != nil {
			return s, badRequest("limit is %q, but should be a number; 0 for all", limit)
		}
		s.limit = int(n)
	}
	return s, nil
}

// readChoice reads what an action is to be done to. No filter at all is refused: the action would be done to everybody's
// webhooks.
func readChoice(r *http.Request) (s selection, err error) {
	if s, err = readSelection(r); err != nil {
		return s, err
	}
	if !s.Narrow() {
		return s, badRequest("say which webhooks: state, tenant, search, since or until")
	}
	s.force, err = readForce(r)
	return s, err
}

// readForce says whether an action is to undo newer snapshots. On a page somebody was asked about that: only the form says it,
// and not the address.
func readForce(r *http.Request) (force bool, err error) {
	values := r.URL.Query()
	if !isAPI(r) {
		if values, err = readForm(r); err != nil {
			return false, err
		}
	}
	if text := values.Get("force"); text != "" {
		if force, err = strconv.ParseBool(text); err != nil {
			return false, badRequest("force is %q, but should be true or false", text)
		}
	}
	return force, nil
}

func readTime(name, text string) (t time.Time, err error) {
	if text == "" {
		return t, nil
	}
	for _, layout := range []string{page.InputTime, "2006-01-02T15:04:05", time.RFC3339} {
		if t, err = time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return t, badRequest("%s is %q, but should be a time in UTC, such as 2026-01-31T08:00", name, text)
}

// exact is the time as short as it can be written without losing a part of it.
func exact(t time.Time) string {
	if t.Equal(t.Truncate(time.Minute)) {
		return page.FormatInput(t)
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// Query is the selection as it stands in an address, without where it goes on.
func (s selection) Query() url.Values {
	v := make(url.Values)
	for name, value := range map[string]string{
		"tenant": s.Tenant, "state": s.Outcome, "search": s.Search, "since": exact(s.Since), "until": exact(s.Until),
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v
}
