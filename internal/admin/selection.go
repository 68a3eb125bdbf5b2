package admin

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/text"
	"usher/internal/view"
)

// selection says which webhooks to list, or to act on. Empty fields select all.
type selection struct {
	Tenant       string // as people write it: platform/tenant, or tenant
	Platform     *string
	Outcome      string    // a state in the inbox, or a decision of the gate
	Since, Until time.Time // received at Since or later, and before Until

	tenant inbox.TenantName // Tenant, parsed, and Platform
	before int64            // only numbers below this one; 0: all
	limit  int              // 0: all
}

// outcomes are those that can be selected: the states in the inbox, or the decisions of a gate without one.
func (h *Handler) outcomes() []string {
	if h.cfg.Inbox != nil {
		return state.Names()
	}
	return []string{"forwarded", "duplicate", "rejected", "failed"}
}

// Narrow reports whether the selection has any filter.
func (s selection) Narrow() bool { return len(s.Query()) > 0 }

// String returns the filter in words, for the list of actions.
func (s selection) String() string {
	var words []string
	query := s.Query()
	for _, name := range []string{"state", "tenant", "platform", "since", "until"} {
		if query.Has(name) {
			words = append(words, name+" "+cmp.Or(query.Get(name), "none"))
		}
	}
	return strings.Join(words, ", ")
}

// filter returns the selection for the inbox, from its cursor on.
func (s selection) filter() inbox.Filter {
	return inbox.Filter{
		State:    state.State(s.Outcome),
		Tenant:   s.tenant.Tenant,
		Platform: s.tenant.Platform,
		Since:    s.Since,
		Until:    s.Until,
		Limit:    s.limit,
		Before:   s.before,
	}
}

// readQuery refuses a query that cannot be parsed. URL.Query would ignore the bad part, and without a filter
// an action is about all webhooks.
func readQuery(rawQuery string) (url.Values, error) {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, badRequest("the query can't be read: %v", err)
	}
	return query, nil
}

// readSelection reads a selection from a query or a form.
func (h *Handler) readSelection(query url.Values) (s selection, err error) {
	s = selection{Tenant: strings.TrimSpace(query.Get("tenant")), Outcome: query.Get("state")}
	if known := h.outcomes(); s.Outcome != "" && !slices.Contains(known, s.Outcome) {
		return s, badRequest("there is no state %q: it should be %s", s.Outcome, strings.Join(known, ", "))
	}
	if s.Tenant != "" {
		if s.tenant, err = inbox.ParseTenant(s.Tenant); err != nil {
			return s, badRequest("%v", err)
		}
	}
	if query.Has("platform") {
		s.Platform = new(query.Get("platform"))
		if s.tenant.Platform != nil && *s.tenant.Platform != *s.Platform {
			return s, badRequest("the tenant %s is not on the platform %s", s.tenant, *s.Platform)
		}
		s.tenant.Platform = s.Platform
	}
	for name, to := range map[string]*time.Time{"since": &s.Since, "until": &s.Until} {
		if *to, err = readTime(name, query.Get(name)); err != nil {
			return s, err
		}
	}
	s.before, s.limit, err = readPage(query, pageSize)
	return s, err
}

// readPage reads where a page of a list begins, and how long it is.
func readPage(query url.Values, usual int) (before int64, limit int, err error) {
	if text := query.Get("before"); text != "" {
		if before, err = strconv.ParseInt(text, 10, 64); err != nil {
			return 0, 0, badRequest("before is %q, but should be a number", text)
		}
	}
	limit = usual
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxPage {
			return 0, 0, badRequest("limit is %q, but should be a number from 1 to %d", text, maxPage)
		}
	}
	return before, limit, nil
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

// formatTime writes a time for a query, as short as possible without losing precision.
func formatTime(t time.Time) string {
	if t.Equal(t.Truncate(time.Minute)) {
		return page.FormatInput(t)
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// Query returns the filters as a query, without the cursor and the limit.
func (s selection) Query() url.Values {
	v := make(url.Values)
	for name, value := range map[string]string{
		"tenant": s.Tenant,
		"state":  s.Outcome,
		"since":  formatTime(s.Since),
		"until":  formatTime(s.Until),
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if s.Platform != nil {
		v.Set("platform", *s.Platform)
	}
	return v
}

// The query parameters that select webhooks, and those of a list.
var (
	filterParams = []string{"state", "tenant", "platform", "since", "until"}
	listParams   = slices.Concat(filterParams, []string{"before", "limit"})
)

// pageSize is how many things a page of a list has, and maxPage how many a list of the API has at most.
const (
	pageSize = 50
	maxPage  = 500
)

// knownTenant returns the tenant of that name. It refuses one that is unknown, or fits several tenants.
func (h *Handler) knownTenant(ctx context.Context, name inbox.TenantName) (t inbox.TenantRef, err error) {
	if name.Tenant == "" {
		return t, badRequest(`no tenant is named: the body should be {"tenant":"…"}`)
	}
	if h.cfg.Platforms == nil {
		return t, errNoInbox
	}
	platforms, err := h.cfg.Platforms(ctx, name.Tenant)
	if err != nil {
		return t, err
	}
	platforms = slices.DeleteFunc(platforms, func(p string) bool { return name.Platform != nil && p != *name.Platform })
	switch len(platforms) {
	case 0:
		return t, noSuchTenant(name)
	case 1:
		return inbox.TenantRef{Platform: platforms[0], Tenant: name.Tenant}, nil
	}
	var names []string
	for _, p := range platforms {
		names = append(names, text.Quote(inbox.ShowTenant(p, name.Tenant)))
	}
	return t, &refusal{http.StatusConflict,
		"several tenants have this code: write " + strings.Join(names, " or ")}
}

func noSuchTenant(name inbox.TenantName) error {
	return &refusal{http.StatusNotFound, "unknown tenant " + name.String()}
}

// knownReceiver refuses an unknown receiver. Without a gate only other replicas know them.
func (h *Handler) knownReceiver(on inbox.Pause) error {
	var names []string
	for _, rc := range h.cfg.Receivers.All() {
		names = append(names, rc.Name)
	}
	if h.cfg.Gate == nil || slices.Contains(names, on.Receiver) || h.pauseOn(on) != nil {
		return nil
	}
	return &refusal{http.StatusNotFound, "unknown receiver " + on.Receiver + ": the receivers are " +
		strings.Join(names, ", ")}
}

// chosen are the webhooks that a filter chooses. There may be very many: only their ids are kept.
type chosen struct {
	view.Chosen
	ids []int64
}

// choose returns the webhooks that a filter chooses for an act. What arrives later is not among them: its
// numbers are higher. Times would not tell, because this machine's clock may differ from the inbox's.
func (h *Handler) choose(ctx context.Context, redeliver bool, s selection, force bool) (all chosen, err error) {
	if s.tenant.Tenant != "" {
		if _, err := h.knownTenant(ctx, s.tenant); err != nil {
			return all, err
		}
	}
	if s.before == 0 {
		newest, err := h.cfg.Inbox.List(ctx, inbox.Filter{Limit: 1})
		if err != nil {
			return all, err
		}
		s.before = 1
		for _, w := range newest {
			s.before += w.ID
		}
	}
	if all.ids, all.Older, err = h.selectIDs(ctx, redeliver, s.filter(), force); err != nil {
		return all, err
	}
	// An empty list is written as [], not as null.
	all.Count = len(all.ids)
	all.First = append([]string{}, named(all.ids[:min(len(all.ids), 10)])...)
	all.Before = strconv.FormatInt(s.before, 10)
	return all, nil
}

// selectIDs returns the webhooks to which an act would be done of those that a filter selects.
//
// What is discarded comes with the newest first: otherwise usher could deliver the second webhook of a queue right
// after the first is discarded. What is redelivered comes with the oldest first, and keeps its order. Of a tenant's
// webhooks that wait it is the first: the others follow by themselves. Of the others it is the newest only, because
// an older snapshot would undo it; with force it is all of them.
func (h *Handler) selectIDs(ctx context.Context, redeliver bool, f inbox.Filter, force bool) (ids []int64, older int, err error) {
	err = h.cfg.Inbox.EachPage(ctx, f, func(page []*lane.Webhook) (err error) {
		var behind map[int64]bool
		if redeliver {
			behind, err = h.cfg.Inbox.Behind(ctx, f, page)
		}
		for _, w := range page {
			switch {
			case redeliver && (w.Rejected() || behind[w.ID]): // there is nothing to send again; it follows the one before it
			case !redeliver && w.State.Finished():
			case redeliver && !force && w.State != state.Waiting && !w.Newest:
				older++
			default:
				ids = append(ids, w.ID)
			}
		}
		return err
	})
	if redeliver {
		slices.Reverse(ids)
	}
	return ids, older, err
}

func named(ids []int64) (names []string) {
	for _, id := range ids {
		names = append(names, strconv.FormatInt(id, 10))
	}
	return names
}
