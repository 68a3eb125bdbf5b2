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

	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
	"usher/internal/view"
)

// maxTimeline is how many of a tenant's webhooks are shown.
const maxTimeline = 100

func (h *Handler) tenant(ctx context.Context, platform, code string) (*view.Tenant, error) {
	t := &view.Tenant{Platform: platform, Code: code, Snapshots: []view.Webhook{}}
	t.MayUse, t.NotKnown = h.mayUse(ctx, platform, code)
	err := h.addInbox(ctx, t)
	if trouble := h.inboxTrouble(err); err != nil && trouble != nil && t.MayUse != nil {
		return &view.Tenant{
			Platform:  platform,
			Code:      code,
			MayUse:    t.MayUse,
			Snapshots: []view.Webhook{},
			Unread:    trouble.Error(),
		}, nil
	}
	return t, err
}

// addInbox adds what the inbox has of a tenant.
func (h *Handler) addInbox(ctx context.Context, t *view.Tenant) error {
	ctx, cancel := h.patience(ctx)
	defer cancel()
	err := h.addReceipt(ctx, t)
	if err != nil {
		return err
	}
	of := inbox.TenantName{Tenant: t.Code, Platform: &t.Platform}
	list, next, err := h.webhooks(ctx, selection{tenant: of, limit: maxTimeline})
	if err != nil {
		return err
	}
	t.Snapshots, t.More = append(t.Snapshots, list...), next != ""
	if len(t.Snapshots) == 0 && t.MayUse == nil {
		return noSuchTenant(of)
	}
	return nil
}

// readTenant reads a tenant from the query of a page or of the API.
func readTenant(query url.Values) (t inbox.TenantRef, err error) {
	t = inbox.TenantRef{Platform: query.Get("platform"), Tenant: query.Get("code")}
	if t.Tenant == "" {
		err = badRequest("code is missing: give the tenant's code as code, and the platform's code as platform")
	}
	return t, err
}

// apiTenant is GET /api/tenant. Without a platform it is about the only tenant with this code.
func (h *Handler) apiTenant(r *http.Request) (any, error) {
	t, err := readTenant(r.URL.Query())
	if code := t.Tenant; err == nil && !r.URL.Query().Has("platform") {
		if t, err = h.knownTenant(r.Context(), inbox.TenantName{Tenant: code}); err != nil && h.inboxTrouble(err) != nil {
			if held, unknown := h.cfg.Entitlements(r.Context(), code, nil); unknown == nil { // usher holds it in memory
				t, err = inbox.TenantRef{Platform: held.Platform, Tenant: code}, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return h.tenant(r.Context(), t.Platform, t.Tenant)
}

// tenantPage is the page of one tenant.
type tenantPage struct {
	*view.Tenant
	Timeline, FeatureTable, SubscriptionTable view.Table

	MoreFeatures, MoreSubscriptions int // how many there are beside those in the tables
	Offers, ToReceipt, ToInvalid    []page.Offer
	Uncounted, UncountedWhy         string // of Invalid
}

// maxRows is how many rows a table of features or subscriptions has on the page of a tenant. The API has all of them.
const maxRows = 500

func (h *Handler) tenantPage(r *http.Request) (any, error) {
	of, err := readTenant(r.URL.Query())
	if err != nil {
		return nil, err
	}
	t, err := h.tenant(r.Context(), of.Platform, of.Tenant)
	if err != nil {
		return nil, err
	}
	p := &tenantPage{Tenant: t, Timeline: view.NewTable(view.Webhooks, t.Snapshots, (*view.Webhook).ElementID)}
	about := target{on: inbox.Pause{Platform: t.Platform, Tenant: t.Code}}
	if t.Latest != nil {
		p.ToReceipt = h.offers(target{webhook: t.Latest})
	}
	p.Offers = slices.Concat(p.ToReceipt, h.offers(about))
	if t.Invalid != nil {
		p.ToInvalid = h.offers(target{webhook: t.Invalid})
		p.Uncounted, p.UncountedWhy, _ = t.NotCounted()
	}
	p.SubscriptionTable, p.MoreSubscriptions = firstRows(view.Subscriptions, cmp.Or(t.Rights, new(snapshot.Snapshot)).Subscriptions)
	p.FeatureTable, p.MoreFeatures = firstRows(view.Features, cmp.Or(t.MayUse, new(view.MayUse)).Features)
	return shown{&page.Page{Name: "tenant", Title: t.Code, Section: "tenants", Live: true, Body: p}, about}, nil
}

// firstRows returns the first rows of a table, and how many more there are.
func firstRows[T any](columns []view.Column[T], all []T) (view.Table, int) {
	shown := all[:min(len(all), maxRows)]
	return view.NewTable(columns, shown, nil), len(all) - len(shown)
}

// tenants returns a page of tenants, and the query of the next one.
func (h *Handler) tenants(ctx context.Context, f inbox.TenantFilter, query url.Values) (all []inbox.Tenant, next string, err error) {
	if query.Has("after") {
		f.After = &inbox.Tenant{Platform: query.Get("platform"), Tenant: query.Get("after")}
	}
	size := f.Limit
	f.Limit++ // one more shows that there is a next page
	found, err := h.cfg.Inbox.Tenants(ctx, f)
	for _, t := range found[:min(len(found), size)] {
		all = append(all, *t)
	}
	if len(found) > size {
		query.Set("platform", all[size-1].Platform)
		query.Set("after", all[size-1].Tenant)
		next = query.Encode()
	}
	return all, next, err
}

// apiTenants is GET /api/tenants.
func (h *Handler) apiTenants(r *http.Request) (any, error) {
	query := r.URL.Query()
	_, limit, err := readPage(query, maxPage)
	if err != nil {
		return nil, err
	}
	trouble := query.Get("trouble") == "true"
	all, next, err := h.tenants(r.Context(), inbox.TenantFilter{Troubled: trouble, Unknown: trouble, Limit: limit}, query)
	if err != nil {
		return nil, err
	}
	return lines(func(write func(any) error) (view.End, error) { return view.End{Next: next}, writeAll(write, all) }), nil
}

// tenantsPage is the page of tenants.
type tenantsPage struct {
	listPage
	Search   string
	Troubled view.Table // those that are not all right; only on the first page
}

func (h *Handler) tenantsPage(r *http.Request) (any, error) {
	query := r.URL.Query()
	p := &tenantsPage{Search: strings.TrimSpace(query.Get("search"))}
	if !query.Has("after") {
		troubled := inbox.TenantFilter{Search: p.Search, Troubled: true, Unknown: h.cfg.EntitlementsPort, Limit: pageSize}
		all, _, err := h.tenants(r.Context(), troubled, url.Values{})
		if err != nil {
			return nil, err
		}
		p.Troubled = view.NewTable(view.Tenants, all, nil)
	}
	all, next, err := h.tenants(r.Context(), inbox.TenantFilter{Search: p.Search, Limit: pageSize}, query)
	p.listPage = newListPage("/tenants", view.NewTable(view.Tenants, all, nil), r, "after", next)
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

// addReceipt adds Invalid and Receipt to a tenant.
func (h *Handler) addReceipt(ctx context.Context, t *view.Tenant) error {
	invalid := inbox.Filter{State: state.Invalid, Tenant: t.Code, Platform: &t.Platform, Limit: 1}
	err := h.cfg.Inbox.Each(ctx, invalid, true, func(w *lane.Webhook) bool {
		t.Invalid = new(view.NewWebhook(w))
		h.addDenial(t.Invalid, w)
		return false
	})
	if err != nil {
		return err
	}
	if t.MayUse == nil {
		return nil
	}
	d, err := h.webhook(ctx, strconv.FormatInt(t.MayUse.ID, 10), false)
	if errors.Is(err, inbox.ErrNotFound) {
		return nil // finished webhooks are not kept for long
	}
	if err != nil {
		return err
	}
	pause := view.PausedBy(h.paused(), h.cfg.Receivers, t.Platform, t.Code, d.Receiver)
	t.Receipt, t.Latest = view.NewReceipt(&d.Webhook, h.cfg.Inbox.Opened(), pause), &d.Webhook
	t.Rights = new(snapshot.Read(d.raw))
	return nil
}

// mayUse returns what a tenant may use, or why that is not known.
func (h *Handler) mayUse(ctx context.Context, platform, code string) (*view.MayUse, string) {
	a, err := h.cfg.Entitlements(ctx, code, &platform)
	if err != nil {
		return nil, err.Error()
	}
	return &view.MayUse{
		Known:    a.Snapshot.Known,
		Features: append([]snapshot.Feature{}, a.Snapshot.Features...), // never null
		AsOf:     a.Received,
		Webhook:  a.Webhook,
		ID:       a.Seq,
		Stale:    a.Stale,
	}, ""
}
