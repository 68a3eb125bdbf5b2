package admin

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/inbox"
)

// Selection is what a list is asked for.
type Selection struct {
	Tenant   string // as somebody writes it: platform/tenant, or tenant
	Decision string // of the gate
	State    string // in the inbox
	Search   string
	From, To time.Time // received from then on, and before; zero: whenever

	code     string // of the tenant
	platform *string
	before   cursor
	limit    int
}

// inboxOutcomes and passOutcomes are what a webhook can have come to, with an inbox and without: its state there, or
// else what the gate decided.
var (
	inboxStates   = []string{"waiting", "delivered", "parked", "superseded", "discarded", "kept"}
	inboxOutcomes = append(slices.Clone(inboxStates), "duplicate", "rejected", "failed")
	passOutcomes  = []string{"forwarded", "duplicate", "rejected", "failed"}
)

// Outcome is where those selected stand, in a word.
func (s Selection) Outcome() string { return cmp.Or(s.State, s.Decision) }

// Narrow says whether something is selected by anything.
func (s Selection) Narrow() bool { return len(s.Query()) > 0 }

func readSelection(rawQuery string) (s Selection, err error) {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return s, badRequest("the query can't be read: %v", err)
	}
	s = Selection{Decision: query.Get("decision"), State: query.Get("state"), Search: strings.TrimSpace(query.Get("search")), limit: pageSize}
	if err := checkState(inbox.State(s.State)); err != nil {
		return s, err
	}
	if s.Decision != "" && !slices.Contains(Decisions[:], s.Decision) {
		return s, badRequest("there is no decision %q: it should be %s", s.Decision, strings.Join(Decisions[:], ", "))
	}
	switch outcome := query.Get("outcome"); {
	case outcome == "":
	case slices.Contains(inboxStates, outcome):
		s.State = outcome
	case slices.Contains(Decisions[:], outcome):
		s.Decision = outcome
	default:
		return s, badRequest("there is no outcome %q: it should be %s", outcome, strings.Join(inboxOutcomes, ", "))
	}
	if err := s.readTenant(strings.TrimSpace(query.Get("tenant"))); err != nil {
		return s, err
	}
	for name, to := range map[string]*time.Time{"from": &s.From, "to": &s.To} {
		if *to, err = readTime(name, query.Get(name)); err != nil {
			return s, err
		}
	}
	return s, s.readPage(query)
}

// readPage reads where the list goes on, and how long it is.
func (s *Selection) readPage(query url.Values) error {
	if before := query.Get("before"); before != "" {
		left, right, _ := strings.Cut(before, ".")
		var errs [2]error
		s.before.inbox, errs[0] = strconv.ParseUint(left, 10, 64)
		s.before.journal, errs[1] = strconv.ParseUint(right, 10, 64)
		if errs != [2]error{} {
			return badRequest("before is %q, but should be what a former list had as next", before)
		}
	}
	if limit := query.Get("limit"); limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 1 || n > maxPage {
			return badRequest("limit is %q, but should be a number up to %d", limit, maxPage)
		}
		s.limit = n
	}
	return nil
}

// readTenant reads a tenant as people write it; see page.TenantName.
func (s *Selection) readTenant(text string) error {
	platform, code, both := strings.Cut(text, "/")
	if !both {
		platform, code = "", text
	}
	p, err := url.PathUnescape(platform)
	c, err2 := url.PathUnescape(code)
	if err != nil || err2 != nil || strings.Contains(code, "/") || both && c == "" {
		return badRequest("invalid tenant %q: write platform/tenant or tenant, with a slash or percent sign within a code as %%2F or %%25", text)
	}
	s.Tenant, s.code = text, c
	if both {
		s.platform = &p
	}
	return nil
}

// inputTime is how a browser's field for a time writes it. Here all times are UTC.
const inputTime = "2006-01-02T15:04"

func readTime(name, text string) (t time.Time, err error) {
	if text == "" {
		return t, nil
	}
	for _, layout := range []string{inputTime, "2006-01-02T15:04:05", time.RFC3339} {
		if t, err = time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return t, badRequest("%s is %q, but should be a time in UTC, such as 2026-01-31T08:00", name, text)
}

// FromInput and ToInput are the times as a browser's field wants them.
func (s Selection) FromInput() string { return inputOf(s.From) }

// ToInput is as FromInput.
func (s Selection) ToInput() string { return inputOf(s.To) }

func inputOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(inputTime)
}

// Query is the selection as it stands in an address, without where it goes on.
func (s Selection) Query() url.Values {
	v := make(url.Values)
	for name, value := range map[string]string{
		"tenant": s.Tenant, "decision": s.Decision, "state": s.State, "search": s.Search, "from": s.FromInput(), "to": s.ToInput(),
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v
}
