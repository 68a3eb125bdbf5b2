package admin

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/admin/status"
	"usher/internal/content"
	"usher/internal/entitlements"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
	"usher/internal/text"
	"usher/webhookgate"
)

// Tenant is the answer of GET /api/tenant: what the tenant may use, and the webhooks that led to it.
type Tenant struct {
	Platform  string             `json:"platform"`
	Code      string             `json:"code"`
	MayUse    *MayUse            `json:"may_use,omitempty"`   // what usher answers checks with now
	NotKnown  string             `json:"not_known,omitempty"` // why MayUse is missing
	Rights    *snapshot.Snapshot `json:"rights,omitempty"`    // what the latest snapshot says, delivered or not
	Snapshots []Webhook          `json:"snapshots"`           // the tenant's webhooks, the newest first
	More      bool               `json:"more,omitempty"`      // there are older ones
	Elsewhere []string           `json:"elsewhere,omitempty"` // other platforms that have a tenant with this code
	Ambiguous *Ambiguous         `json:"ambiguous,omitempty"` // questions about it must name its platform
	Receipt   *Receipt           `json:"receipt,omitempty"`   // left out if it is not known
	// Invalid is the tenant's last webhook that is invalid, if nobody has dealt with it.
	Invalid *Webhook  `json:"invalid,omitempty"`
	Missed  time.Time `json:"missed,omitzero"` // since when the tenant has missed webhooks; left out if it is not

	// Finding is what a reconcile has found of it; left out if it is nothing that counts.
	Finding *inbox.Finding `json:"finding,omitempty"`
	// Unread says why the inbox can't be read now: then only MayUse is known, from memory.
	Unread string `json:"unread,omitempty"`

	*Concerning // only of GET /api/tenant

	Latest *Webhook `json:"-"` // the one of Snapshots that Rights is from, or nil
}

// Concerning is what may concern a tenant, also one that usher does not know: perhaps its webhook was missed.
type Concerning struct {
	Troubles []status.Trouble `json:"problems"` // now
	Over     []inbox.Trouble  `json:"over"`     // of the last 7 days
	// OldHistory: the inbox cannot be read now, and Over is what this replica has seen itself.
	OldHistory bool `json:"history_old,omitempty"`
}

// noTenantError refuses a tenant that usher does not know.
type noTenantError struct {
	*refusal
	concerning *Concerning
}

// maxTimeline is how many of a tenant's webhooks are shown.
const maxTimeline = 100

func (h *Handler) tenant(ctx context.Context, platform, code string) (*Tenant, error) {
	t := &Tenant{Platform: platform, Code: code, Snapshots: []Webhook{}}
	t.MayUse, t.NotKnown = h.mayUse(ctx, platform, code)
	err := h.addInbox(ctx, t)
	if trouble := h.inboxTrouble(err); err != nil && trouble != nil && t.MayUse != nil {
		return &Tenant{
			Platform:  platform,
			Code:      code,
			MayUse:    t.MayUse,
			Snapshots: []Webhook{},
			Unread:    trouble.Error(),
		}, nil
	}
	return t, err
}

// addInbox adds what the inbox has of a tenant; without one, what is in memory.
func (h *Handler) addInbox(ctx context.Context, t *Tenant) error {
	platform, code := t.Platform, t.Code
	if h.cfg.Inbox != nil {
		patient, cancel := h.patience(ctx)
		defer cancel()
		ctx = patient
	}
	err := h.addReceipt(ctx, t)
	if err != nil {
		return err
	}
	if h.cfg.Inbox != nil {
		if t.Missed, err = h.cfg.Inbox.MissedOf(ctx, platform, code); err != nil {
			return err
		}
		if t.Finding, err = h.cfg.Inbox.Finding(ctx, platform, code); err != nil {
			return err
		}
	} else if h.cfg.Missed != nil {
		t.Missed = h.cfg.Missed.Of(webhookgate.LaneName{Platform: platform, Tenant: code}).Since()
	}
	others, err := h.platformsOf(ctx, code)
	if err != nil {
		return err
	}
	t.Elsewhere = slices.DeleteFunc(others, func(p string) bool { return p == platform })
	t.Ambiguous = h.ambiguous(ctx, platform, code)
	// With an inbox, the gate's decisions have only what changed nothing: duplicates, and what could not be stored.
	s := selection{
		tenant:    inbox.TenantName{Tenant: code, Platform: &platform},
		limit:     maxTimeline + 1,
		inboxOnly: h.cfg.Inbox != nil,
	}
	for more := true; more && len(t.Snapshots) <= maxTimeline; {
		list, err := h.webhooks(ctx, s)
		if err != nil {
			return err
		}
		for _, w := range list.Webhooks {
			if w.Decision != "duplicate" {
				t.Snapshots = append(t.Snapshots, w)
			}
		}
		s.before, more = list.next, list.Next != ""
	}
	if t.More = len(t.Snapshots) > maxTimeline; t.More {
		t.Snapshots = t.Snapshots[:maxTimeline]
	}
	if h.cfg.Inbox == nil { // addReceipt found none; the gate's last decisions have it
		last := slices.IndexFunc(t.Snapshots, func(w Webhook) bool { return w.Decision != "failed" })
		if last >= 0 && t.Snapshots[last].Decision == "rejected" {
			t.Invalid = &t.Snapshots[last]
		}
	}
	switch {
	case len(t.Snapshots) == 0 && (t.MayUse != nil || t.Invalid != nil || !t.Missed.IsZero() || t.Finding != nil):
		return nil // what a tenant may use is kept for longer than its webhooks
	case len(t.Snapshots) == 0:
		return h.unknownTenant(ctx, inbox.TenantName{Platform: &platform, Tenant: code})
	}
	// Snapshots also has webhooks of other types, and rejected ones. They do not say what a tenant may use.
	i := slices.IndexFunc(t.Snapshots, func(w Webhook) bool {
		return w.Type == content.TenantProvisioningChange && w.Decision != "rejected"
	})
	if i < 0 {
		return nil
	}
	t.Latest = &t.Snapshots[i]
	latest, err := h.withoutContent(ctx, t.Latest.ID)
	if err != nil {
		return err
	}
	t.Rights = new(snapshot.Read(latest.raw))
	return nil
}

// findTenant returns the tenant of that name. A name that fits several tenants is refused. Without an inbox,
// usher also knows the tenants of the gate's last decisions, because pages show them.
func (h *Handler) findTenant(ctx context.Context, name inbox.TenantName) (t inbox.TenantRef, known bool, err error) {
	platforms, err := h.platformsOf(ctx, name.Tenant)
	if err != nil {
		return t, false, err
	}
	platforms = slices.DeleteFunc(platforms, func(p string) bool { return name.Platform != nil && p != *name.Platform })
	switch len(platforms) {
	case 0:
		return t, false, nil
	case 1:
		return inbox.TenantRef{Platform: platforms[0], Tenant: name.Tenant}, true, nil
	}
	var names []string
	for _, p := range platforms {
		names = append(names, text.Quote(inbox.ShowTenant(p, name.Tenant)))
	}
	return t, false, &refusal{http.StatusConflict,
		"several tenants have this code: write " + strings.Join(names, " or ")}
}

// platformsOf returns the platforms that have a tenant with this code, in order.
func (h *Handler) platformsOf(ctx context.Context, code string) (all []string, err error) {
	if h.cfg.Platforms != nil {
		if all, err = h.cfg.Platforms(ctx, code); err != nil {
			return nil, err
		}
	}
	if h.cfg.Inbox == nil {
		for _, e := range h.cfg.Decisions.list(inbox.Filter{Tenant: code}) {
			all = append(all, e.Platform)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// knownTenant returns the tenant of that name, and refuses an unknown one.
func (h *Handler) knownTenant(ctx context.Context, name inbox.TenantName) (inbox.TenantRef, error) {
	if name.Tenant == "" {
		return inbox.TenantRef{}, badRequest(`no tenant is named: the body should be {"tenant":"…"}`)
	}
	t, known, err := h.findTenant(ctx, name)
	if err == nil && !known {
		err = h.unknownTenant(ctx, name)
	}
	return t, err
}

// unknownTenant returns the refusal of a name that no tenant has. It suggests similar names.
func (h *Handler) unknownTenant(ctx context.Context, name inbox.TenantName) error {
	why := "unknown tenant " + name.String()
	if h.cfg.Inbox == nil { // perhaps it is the wrong usher
		why += ": " + errNoInbox.why
	}
	if alike, err := h.similarTenants(ctx, name.Tenant); err == nil && len(alike) > 0 {
		for i := range alike {
			alike[i] = text.Quote(alike[i])
		}
		why += ": did you mean " + strings.Join(alike, " or ") + "?"
	}
	return &refusal{http.StatusNotFound, why}
}

// similarTenants returns up to three tenants whose code, platform or name contains this text, in any case,
// or a typing error of it.
func (h *Handler) similarTenants(ctx context.Context, tenant string) (names []string, err error) {
	if h.cfg.Inbox == nil {
		return nil, nil
	}
	all, err := h.cfg.Inbox.Tenants(ctx, inbox.TenantFilter{Search: tenant, Typo: true, Limit: 3})
	for _, t := range all {
		names = append(names, inbox.ShowTenant(t.Platform, t.Tenant))
	}
	return names, err
}

// Ambiguous says that a tenant's code exists on several platforms, and what to do.
type Ambiguous struct {
	Why string `json:"why"`
	Do  string `json:"do"`
}

// ambiguous returns nil if questions about a tenant need not name its platform.
func (h *Handler) ambiguous(ctx context.Context, platform, code string) *Ambiguous {
	if h.cfg.Entitlements == nil {
		return nil
	}
	_, err := h.cfg.Entitlements(ctx, code, nil)
	several, ok := errors.AsType[*entitlements.AmbiguousError](err)
	if !ok {
		return nil
	}
	var where, names []string
	for _, p := range several.Platforms {
		if names = append(names, text.Quote(inbox.ShowTenant(p, code))); p == platform {
			continue
		}
		if p != "" {
			where = append(where, "the platform "+text.Shorten(p, 300))
		} else {
			where = append(where, "no platform")
		}
	}
	return &Ambiguous{ // no command that is ready to use: nobody but the reader knows which one is the mistake
		Why: "Another tenant has this code, on " + page.FirstFew(where) +
			": questions that name no platform are answered 409 AMBIGUOUS",
		Do: "Name the platform in your questions (platform=" + url.QueryEscape(platform) +
			"). If one of the tenants is a mistake, such as a webhook whose platform was null, erase that one: " +
			"'usher inbox erase TENANT'. They are " + page.FirstFew(names) + ".",
	}
}

// readTenant reads the tenant of a page from its query.
func readTenant(query url.Values) (name inbox.TenantName, err error) {
	name.Tenant, name.Platform = query.Get("code"), new(query.Get("platform"))
	if name.Tenant == "" {
		err = badRequest("code is missing: give the tenant's code as code, and the platform's code as platform")
	}
	return name, err
}

// apiTenant is GET /api/tenant.
func (h *Handler) apiTenant(r *http.Request) (any, error) {
	query := r.URL.Query()
	t, err := readTenant(query)
	if err != nil {
		return nil, err
	}
	named := t
	if !query.Has("platform") {
		named.Platform = nil
	}
	answer, err := h.namedTenant(r.Context(), named)
	if refused, ok := errors.AsType[*refusal](err); ok && refused.status == http.StatusNotFound {
		return nil, &noTenantError{refused, h.concerning(r.Context(), named.Platform, t.Tenant)}
	} else if err != nil {
		return nil, err
	}
	answer.Concerning = h.concerning(r.Context(), &answer.Platform, answer.Code)
	return answer, nil
}

// namedTenant returns the tenant of a name.
func (h *Handler) namedTenant(ctx context.Context, t inbox.TenantName) (*Tenant, error) {
	if t.Platform == nil {
		named, err := h.knownTenant(ctx, t)
		if held := h.held(ctx, t.Tenant); err != nil && held != nil && h.inboxTrouble(err) != nil {
			named.Platform, err = *held, nil
		}
		if err != nil {
			return nil, err
		}
		t.Platform = &named.Platform
	}
	return h.tenant(ctx, *t.Platform, t.Tenant)
}

// concerning returns what is wrong, and what was, that may concern a tenant; on nil: its platform is not known.
func (h *Handler) concerning(ctx context.Context, on *string, tenant string) *Concerning {
	platform, receiver := "", ""
	if on != nil {
		platform = *on
		if rc := h.cfg.Receivers.For(platform); rc != nil {
			receiver = rc.Name
		}
	}
	// Empty lists are written as [], not as null.
	c := &Concerning{Troubles: []status.Trouble{}, Over: []inbox.Trouble{}}
	for _, one := range h.status(ctx).Troubles {
		if one.Concerns(platform, tenant, receiver) {
			c.Troubles = append(c.Troubles, one)
		}
	}
	over, old := h.recorder.Since(ctx, time.Now().Add(-inbox.HistoryAge))
	c.OldHistory = old
	for i := range over {
		if status.Concerns(&over[i], platform, tenant, receiver) {
			c.Over = append(c.Over, over[i])
		}
	}
	return c
}

// held returns the platform of the only tenant with this code that usher can answer for; nil: there is none.
func (h *Handler) held(ctx context.Context, code string) *string {
	if h.cfg.Entitlements == nil {
		return nil
	}
	a, err := h.cfg.Entitlements(ctx, code, nil)
	if err != nil {
		return nil
	}
	return &a.Platform
}

// tenantPage is the page of one tenant.
type tenantPage struct {
	*Tenant
	Taken     bool               // the receiver has the latest snapshot, or none will get it
	HeldUp    *status.HeldUp     // the webhook that holds up the tenant's queue, or nil
	Features  []snapshot.Feature // the first of MayUse or, if that is missing, of Rights
	Known     bool               // Features is known; it may be empty
	Values    bool               // some feature has a value
	Pause     *inbox.Pause       // the pause that holds back the tenant's webhooks, or nil
	HasInbox  bool
	Offers    []page.Offer
	ToInvalid []page.Offer // to Invalid

	Subscriptions                   []snapshot.Subscription // the first of Rights
	MoreFeatures, MoreSubscriptions int                     // how many there are beside these
}

// maxRows is how many rows a table of features or subscriptions has on the page of a tenant. The API has all of them.
const maxRows = 500

func (h *Handler) tenantPage(r *http.Request) (any, error) {
	of, err := readTenant(r.URL.Query())
	if err != nil {
		return nil, err
	}
	t, err := h.tenant(r.Context(), *of.Platform, of.Tenant)
	if err != nil {
		return nil, err
	}
	p := &tenantPage{Tenant: t, Taken: true, HasInbox: h.cfg.Inbox != nil}
	its := inbox.Pause{Platform: t.Platform, Tenant: t.Code}
	p.Offers = h.offers(target{on: its, webhook: t.Latest}, OnWebhooks, OnDeliveries, OnTenant)
	p.ToInvalid = h.offers(target{webhook: t.Invalid}, OnWebhooks)
	p.Pause = status.PausedBy(h.paused(), h.cfg.Receivers, t.Platform, t.Code, "")
	if t.Latest != nil {
		p.Taken = t.Latest.State.Taken() || t.Latest.Decision == "forwarded"
		p.HeldUp = h.heldUp()[laneOf(t.Platform, t.Code, "")]
	}
	switch {
	case t.MayUse != nil:
		p.Features, p.Known = t.MayUse.Features, t.MayUse.Known
	case t.Rights != nil:
		p.Features, p.Known = t.Rights.Features, t.Rights.Known
	}
	if t.Rights != nil {
		all := t.Rights.Subscriptions
		p.Subscriptions = all[:min(len(all), maxRows)]
		p.MoreSubscriptions = len(all) - len(p.Subscriptions)
	}
	all := p.Features
	p.Features = all[:min(len(all), maxRows)]
	p.MoreFeatures = len(all) - len(p.Features)
	p.Values = slices.ContainsFunc(p.Features, func(f snapshot.Feature) bool { return f.Value != "" })
	return &page.Page{Name: "tenant", Title: t.Code, Section: "tenants", Live: true, Body: p}, nil
}

// TenantList is the answer of GET /api/tenants, and the page of tenants.
type TenantList struct {
	Search string `json:"-"`
	// Troubled are tenants whose webhooks are held up, parked, invalid or missed; only on the first page.
	Troubled []*inbox.Tenant `json:"troubled"`
	Tenants  []*inbox.Tenant `json:"tenants"`
	Next     string          `json:"next,omitempty"` // the query of the next page
	// Unread says why the inbox can't be read now: then Troubled has only tenants that have missed webhooks in memory.
	Unread string `json:"unread,omitempty"`
}

// Older returns the address of the next page.
func (l *TenantList) Older() string { return "/tenants?" + l.Next }

func (h *Handler) tenants(r *http.Request) (any, error) {
	query := r.URL.Query()
	// Empty lists are written as [], not as null.
	l := &TenantList{
		Search:   strings.TrimSpace(query.Get("search")),
		Troubled: []*inbox.Tenant{},
		Tenants:  []*inbox.Tenant{},
	}
	f := inbox.TenantFilter{Search: l.Search, Limit: pageSize + 1}
	if query.Has("after") {
		f.After = &inbox.Tenant{Platform: query.Get("platform"), Tenant: query.Get("after")}
	} else {
		ctx, cancel := h.patience(r.Context())
		defer cancel()
		troubled, err := h.cfg.Inbox.Tenants(ctx, inbox.TenantFilter{
			Search:   l.Search,
			Troubled: true,
			Unknown:  h.cfg.EntitlementsPort != nil,
			Limit:    pageSize,
		})
		l.Troubled = append(l.Troubled, troubled...)
		l.Unread, err = h.unread(err, len(troubled))
		if err != nil {
			return nil, err
		}
	}
	p := &page.Page{Name: "tenants", Title: "Tenants", Section: "tenants", Body: l}
	if l.Unread != "" {
		return p, nil
	}
	all, err := h.cfg.Inbox.Tenants(r.Context(), f)
	l.Tenants = append(l.Tenants, all[:min(len(all), pageSize)]...)
	if len(all) > pageSize {
		last := all[pageSize-1]
		l.Next = url.Values{"search": {l.Search}, "platform": {last.Platform}, "after": {last.Tenant}}.Encode()
	}
	return p, err
}

// patience bounds how long a list waits that has something to show without the inbox, if its
// database did not answer lately.
func (h *Handler) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	if h.cfg.Inbox.Stats().Old {
		return context.WithTimeout(ctx, statusPatience)
	}
	return context.WithCancel(ctx)
}

// unread returns why a list has only what is in memory. If that is nothing, or the inbox has no
// trouble, it returns the error.
func (h *Handler) unread(err error, found int) (string, error) {
	if trouble := h.inboxTrouble(err); err != nil && trouble != nil && found > 0 {
		return trouble.Error(), nil
	}
	return "", err
}

// TenantHistory is the answer of GET /api/history: which tenants had webhooks in some time, and how they stand now.
type TenantHistory struct {
	Tenants []TenantThen `json:"tenants"`
	besideTenants
}

// besideTenants is what a history of tenants says beside them.
type besideTenants struct {
	// Begins is from when on finished webhooks are kept; only if that is later than since.
	Begins time.Time `json:"begins,omitzero"`
	// Unread says why the inbox can't be read now: then only those are here that have missed webhooks in memory.
	Unread string `json:"unread,omitempty"`
}

// TenantThen is a tenant that had webhooks then.
type TenantThen struct {
	Platform string    `json:"platform"`
	Tenant   string    `json:"tenant"`
	Webhooks int       `json:"webhooks"`
	Last     time.Time `json:"last,omitzero"`
	Now      []string  `json:"now"` // how it stands, in words
}

func (h *Handler) history(r *http.Request) (any, error) {
	query := r.URL.Query()
	since, err := readTime("since", query.Get("since"))
	if err != nil {
		return nil, err
	}
	until, err := readTime("until", query.Get("until"))
	if err != nil {
		return nil, err
	}
	trouble := query.Get("trouble") == "true"
	return list{"tenants", func(write func(any) error) (any, error) {
		return h.writeHistory(r.Context(), since, until, trouble, write)
	}}, nil
}

// writeHistory writes which tenants had webhooks in some time, or only those that are in trouble now. While the
// inbox cannot be read, it writes those that have missed webhooks. It returns the other members of the answer.
func (h *Handler) writeHistory(
	ctx context.Context, since, until time.Time, trouble bool, write func(any) error,
) (any, error) {
	ctx, cancel := h.patience(ctx)
	defer cancel()
	var rest besideTenants
	found := 0
	each := func(t *inbox.History) error {
		found++
		return write(TenantThen{t.Platform, t.Tenant.Tenant, t.Webhooks, t.Last, t.Standing()})
	}
	var err error
	rest.Begins, err = h.cfg.Inbox.History(ctx, since, until, trouble, each)
	if err == nil || found > 0 {
		return rest, err
	}
	for _, t := range h.cfg.Inbox.MissedHistory(since, until) {
		if err := each(t); err != nil {
			return rest, err
		}
	}
	rest.Unread, err = h.unread(err, found)
	return rest, err
}

// Receipt says whether the receiver has taken the snapshot from which usher answers checks; if
// not, why, and what to do.
type Receipt struct {
	ID    string    `json:"id"` // of the webhook
	Taken bool      `json:"taken"`
	Since time.Time `json:"since"`         // when the receiver took it; else when the webhook came, or got its state
	State string    `json:"state"`         // of the webhook
	Why   string    `json:"why"`           // in words
	Do    string    `json:"do,omitempty"`  // in words
	Run   string    `json:"run,omitempty"` // the command for that

	Offers []page.Offer `json:"-"` // what can be done to the webhook
}

// addReceipt adds Invalid and Receipt to a tenant.
func (h *Handler) addReceipt(ctx context.Context, t *Tenant) error {
	if h.cfg.Inbox == nil {
		return nil
	}
	invalid := inbox.Filter{State: state.Invalid, Tenant: t.Code, Platform: &t.Platform, Limit: 1}
	err := h.cfg.Inbox.Each(ctx, invalid, true, func(w *lane.Webhook) bool {
		t.Invalid = new(h.withDenial(w))
		return false
	})
	if err != nil {
		return err
	}
	if t.MayUse == nil {
		return nil
	}
	d, err := h.withoutContent(ctx, strconv.FormatInt(t.MayUse.ID, 10))
	if errors.Is(err, inbox.ErrNotFound) {
		return nil // finished webhooks are not kept for long
	}
	if err != nil {
		return err
	}
	r := &Receipt{ID: d.ID, Taken: d.State.Taken(), Since: d.Changed, State: string(d.State)}
	t.Receipt = r
	receiver := "The receiver"
	if len(h.cfg.Receivers.All()) > 1 && d.Receiver != "" {
		receiver += " " + d.Receiver
	}
	again := "usher inbox redeliver " + d.ID
	switch answer := cmp.Or(d.Answer, "it did not answer"); {
	case d.State == state.Stored:
		r.Why = "No receiver takes its platform: only usher uses it"
		if h.cfg.Receivers.For(t.Platform) != nil {
			r.Why = "usher did not deliver it: a reconcile stored it, or it came when no receiver took its platform"
		}
	case r.Taken && d.Changed.Before(h.cfg.Inbox.Opened()): // an older copy of the inbox may have been restored since
		r.Why = receiver + " took it before usher opened this inbox"
		r.Do = "If the inbox is a restored backup, the receiver may have a newer one: reconcile with the " +
			"billing service ('usher help reconcile' says how)."
	case r.Taken:
		r.Why = receiver + " has it"
	case d.State == state.Parked:
		r.Why, r.Do, r.Run = receiver+" did not accept it: "+answer, "Fix the receiver, then redeliver it.", again
	case !d.waits():
		r.Why = cmp.Or(d.Why, "It was "+string(d.State))
		r.Do = "If the receiver should have it, redeliver it."
		r.Run = again
	case d.Paused:
		p := status.PausedBy(h.paused(), h.cfg.Receivers, t.Platform, t.Code, d.Receiver)
		r.Why, r.Do, r.Run = "Deliveries are paused ("+p.Words()+")", "Resume them.", "usher inbox resume"+p.Flag()
	case d.NoReceiver:
		r.Why, r.Do = "No receiver takes its platform any more", lane.GiveToReceiver+"."
	case d.HeldUp != nil && d.HeldUp.Down:
		r.Why, r.Do = receiver+" is down: "+d.HeldUp.Answer, "Fix the receiver. usher then delivers by itself."
	case d.HeldUp != nil:
		r.Why = receiver + " does not take webhook " + d.HeldUp.Webhook + ", which goes first: " + d.HeldUp.Answer
		r.Do = "Fix the receiver. usher tries again by itself. To try it now, redeliver it."
		r.Run = "usher inbox redeliver " + d.HeldUp.Webhook
		if d.HeldUp.Webhook == d.ID {
			r.Why = receiver + " does not take it: " + d.HeldUp.Answer
		}
	default:
		r.Why = "It is on its way"
	}
	if d.waits() {
		r.Since = d.Received
	}
	r.Offers = h.offers(target{webhook: &d.Webhook}, OnWebhooks)
	return nil
}

// MayUse is what a tenant may use: what usher answers checks with now.
type MayUse struct {
	Known    bool               `json:"known"` // the tenant's last snapshot has a list of features
	Features []snapshot.Feature `json:"features"`
	AsOf     time.Time          `json:"as_of"`   // when that snapshot was taken in
	Webhook  string             `json:"webhook"` // its webhook-id
	ID       int64              `json:"id"`      // its id; the inbox may not have the webhook any more
	Ask      []string           `json:"ask"`     // shell commands that ask the same

	// Stale is for how long the inbox's database could not be reached. Another replica may have taken in a
	// newer snapshot since. Zero: it can be reached.
	Stale time.Duration `json:"stale,omitzero"`
}

// mayUse returns what a tenant may use, or why that is not known. Both are empty without an inbox.
func (h *Handler) mayUse(ctx context.Context, platform, code string) (*MayUse, string) {
	if h.cfg.Entitlements == nil {
		return nil, ""
	}
	a, err := h.cfg.Entitlements(ctx, code, &platform)
	if err != nil {
		return nil, err.Error()
	}
	features := a.Snapshot.Features
	example := ""
	for _, f := range features {
		if len(f.Code) < maxText && typable(f.Code) {
			example = f.Code
			break
		}
	}
	if features == nil {
		features = []snapshot.Feature{} // never null
	}
	return &MayUse{
		Known: a.Snapshot.Known, Features: features,
		AsOf: a.Received, Webhook: a.Webhook, ID: a.Seq, Ask: h.askLines(platform, code, example), Stale: a.Stale,
	}, ""
}

// askLines returns shell commands that ask what a tenant may use, and whether it may use a feature.
func (h *Handler) askLines(platform, code, feature string) []string {
	if h.cfg.EntitlementsPort == nil {
		// usher's own command finds the admin port. The admin port itself does not know its name outside.
		lines := []string{"usher entitlements " + text.Quote(inbox.ShowTenant(platform, code))}
		if feature != "" {
			lines = append(lines, lines[0]+" "+text.Quote(feature))
		}
		return lines
	}
	curl, base := h.cfg.EntitlementsPort()
	query := url.Values{"platform": {platform}}
	lines := []string{curl + " " + text.Quote(base+"/v1/entitlements/"+url.PathEscape(code)+"?"+query.Encode())}
	if feature != "" {
		query.Set("tenant", code)
		query.Set("feature", feature)
		lines = append(lines, curl+" -i "+text.Quote(base+"/v1/check?"+query.Encode()))
	}
	return lines
}
