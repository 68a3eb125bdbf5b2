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
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
	"usher/internal/text"
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
	Receipt   *Receipt           `json:"receipt,omitempty"`   // left out if it is not known
	// Invalid is the tenant's last webhook that is invalid, if nobody has dealt with it.
	Invalid *Webhook `json:"invalid,omitempty"`
	// Unread says why the inbox can't be read now: then only MayUse is known, from memory.
	Unread string `json:"unread,omitempty"`

	Latest *Webhook `json:"-"` // the one of Snapshots that Rights is from, or nil
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

// addInbox adds what the inbox has of a tenant.
func (h *Handler) addInbox(ctx context.Context, t *Tenant) error {
	ctx, cancel := h.patience(ctx)
	defer cancel()
	err := h.addReceipt(ctx, t)
	if err != nil {
		return err
	}
	of := inbox.TenantName{Tenant: t.Code, Platform: &t.Platform}
	list, err := h.webhooks(ctx, selection{tenant: of, limit: maxTimeline})
	if err != nil {
		return err
	}
	t.Snapshots, t.More = list.Webhooks, list.Next != ""
	if len(t.Snapshots) == 0 && t.MayUse == nil {
		return noSuchTenant(of)
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
	return h.namedTenant(r.Context(), named)
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
	Features  []snapshot.Feature // the first of MayUse
	Values    bool               // some feature has a value
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
	p := &tenantPage{Tenant: t}
	its := inbox.Pause{Platform: t.Platform, Tenant: t.Code}
	p.Offers = h.offers(target{on: its, webhook: t.Latest}, OnWebhooks, OnDeliveries, OnTenant)
	p.ToInvalid = h.offers(target{webhook: t.Invalid}, OnWebhooks)
	if t.Rights != nil {
		all := t.Rights.Subscriptions
		p.Subscriptions = all[:min(len(all), maxRows)]
		p.MoreSubscriptions = len(all) - len(p.Subscriptions)
	}
	if t.MayUse != nil {
		all := t.MayUse.Features
		p.Features = all[:min(len(all), maxRows)]
		p.MoreFeatures = len(all) - len(p.Features)
	}
	p.Values = slices.ContainsFunc(p.Features, func(f snapshot.Feature) bool { return f.Value != "" })
	return &page.Page{Name: "tenant", Title: t.Code, Section: "tenants", Live: true, Body: p}, nil
}

// TenantList is the answer of GET /api/tenants.
type TenantList struct {
	Tenants []*inbox.Tenant `json:"tenants"`        // in the order of their codes
	Next    string          `json:"next,omitempty"` // the query of the next page
}

// tenants returns a page of tenants.
func (h *Handler) tenants(ctx context.Context, f inbox.TenantFilter, query url.Values) (l TenantList, err error) {
	size := f.Limit
	if f.Limit++; query.Has("after") { // one more shows that there is a next page
		f.After = &inbox.Tenant{Platform: query.Get("platform"), Tenant: query.Get("after")}
	}
	all, err := h.cfg.Inbox.Tenants(ctx, f)
	l.Tenants = append([]*inbox.Tenant{}, all[:min(len(all), size)]...) // an empty list is written as [], not as null
	if len(all) > size {
		query.Set("platform", all[size-1].Platform)
		query.Set("after", all[size-1].Tenant)
		l.Next = query.Encode()
	}
	return l, err
}

// apiTenants is GET /api/tenants.
func (h *Handler) apiTenants(r *http.Request) (any, error) {
	query := r.URL.Query()
	trouble := query.Get("trouble") == "true"
	return h.tenants(r.Context(), inbox.TenantFilter{Troubled: trouble, Unknown: trouble, Limit: maxPage}, query)
}

// tenantsPage is the page of tenants.
type tenantsPage struct {
	TenantList
	Search   string
	Troubled []*inbox.Tenant // those that are not all right; only on the first page
}

// Older returns the address of the next page.
func (p *tenantsPage) Older() string { return "/tenants?" + p.Next }

func (h *Handler) tenantsPage(r *http.Request) (_ any, err error) {
	query := r.URL.Query()
	p := &tenantsPage{Search: strings.TrimSpace(query.Get("search"))}
	if !query.Has("after") {
		p.Troubled, err = h.cfg.Inbox.Tenants(r.Context(), inbox.TenantFilter{
			Search:   p.Search,
			Troubled: true,
			Unknown:  h.cfg.EntitlementsPort,
			Limit:    pageSize,
		})
		if err != nil {
			return nil, err
		}
	}
	p.TenantList, err = h.tenants(r.Context(), inbox.TenantFilter{Search: p.Search, Limit: pageSize}, query)
	return &page.Page{Name: "tenants", Title: "Tenants", Section: "tenants", Body: p}, err
}

// patience bounds how long a page waits that has something to show without the inbox, if its
// database did not answer lately.
func (h *Handler) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	if h.cfg.Inbox.Stats().Old {
		return context.WithTimeout(ctx, statusPatience)
	}
	return context.WithCancel(ctx)
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

	// Stale is for how long the inbox's database could not be reached. Another replica may have taken in a
	// newer snapshot since. Zero: it can be reached.
	Stale time.Duration `json:"stale,omitzero"`
}

// mayUse returns what a tenant may use, or why that is not known.
func (h *Handler) mayUse(ctx context.Context, platform, code string) (*MayUse, string) {
	a, err := h.cfg.Entitlements(ctx, code, &platform)
	if err != nil {
		return nil, err.Error()
	}
	return &MayUse{
		Known:    a.Snapshot.Known,
		Features: append([]snapshot.Feature{}, a.Snapshot.Features...), // never null
		AsOf:     a.Received,
		Webhook:  a.Webhook,
		ID:       a.Seq,
		Stale:    a.Stale,
	}, ""
}
