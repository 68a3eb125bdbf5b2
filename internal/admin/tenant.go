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
	"usher/internal/inbox/store"
	"usher/internal/snapshot"
	"usher/webhookgate/content"
)

// Tenant is the answer of GET /api/tenant: what it should have now, and how that came.
type Tenant struct {
	Platform  string             `json:"platform"`
	Code      string             `json:"code"`
	MayUse    *MayUse            `json:"may_use,omitempty"`   // as checks are answered at this moment
	NotKnown  string             `json:"not_known,omitempty"` // why that is not known
	Rights    *snapshot.Snapshot `json:"rights,omitempty"`    // of the latest snapshot that has come, delivered or not
	Snapshots []Webhook          `json:"snapshots"`           // the newest first
	More      bool               `json:"more,omitempty"`      // there are older ones
	Elsewhere []string           `json:"elsewhere,omitempty"`
	Receipt   *Receipt           `json:"receipt,omitempty"` // whether the receiver has what usher answers by; left out where nobody knows
	Refused   *Webhook           `json:"refused,omitempty"` // the last of its webhooks that was refused and that nobody has dealt with

	Latest *Webhook `json:"-"` // of Snapshots: the one that Rights are of; nil: none
}

// maxTimeline is how many of a tenant's snapshots are shown, and maxScan how many pages
// of webhooks are looked through for them: a tenant of the same code on another platform
// may have all the others.
const (
	maxTimeline = 100
	maxScan     = 10
)

// tenant gathers what a tenant may use, and its snapshots. Duplicates are none: they changed nothing.
func (h *Handler) tenant(ctx context.Context, platform, code string) (*Tenant, error) {
	t := &Tenant{Platform: platform, Code: code, Snapshots: []Webhook{}}
	t.MayUse, t.NotKnown = h.mayUse(ctx, platform, code)
	if err := h.receipt(t); err != nil {
		return nil, err
	}
	selection := selection{tenant: store.TenantName{Tenant: code}, limit: maxTimeline}
	for range maxScan {
		list, err := h.webhooks(selection)
		if err != nil {
			return nil, err
		}
		for _, w := range list.Webhooks {
			switch {
			case w.Platform != platform:
				if !slices.Contains(t.Elsewhere, w.Platform) {
					t.Elsewhere = append(t.Elsewhere, w.Platform)
				}
			case w.Decision == "duplicate" || w.Decision == "failed" && h.cfg.Inbox != nil:
			default:
				t.Snapshots = append(t.Snapshots, w)
			}
		}
		if list.Next == "" || len(t.Snapshots) > maxTimeline {
			break
		}
		selection.before = list.next
	}
	if t.More = len(t.Snapshots) > maxTimeline; t.More {
		t.Snapshots = t.Snapshots[:maxTimeline]
	}
	if h.cfg.Inbox == nil { // the gate's memory knows what was refused
		if i := slices.IndexFunc(t.Snapshots, func(w Webhook) bool { return w.Decision != "failed" }); i >= 0 && t.Snapshots[i].Decision == "rejected" {
			t.Refused = &t.Snapshots[i]
		}
	}
	switch {
	case len(t.Snapshots) == 0 && (t.MayUse != nil || t.Refused != nil):
		return t, nil // what it may use is kept for longer than its webhooks
	case len(t.Snapshots) == 0:
		return nil, h.unknown(store.TenantName{Platform: &platform, Tenant: code})
	}
	// Webhooks of other types, and those that were refused, are shown among them, but do not say what a tenant may use.
	i := slices.IndexFunc(t.Snapshots, func(w Webhook) bool { return w.Type == content.TenantProvisioningChange && w.Decision != "rejected" })
	if i < 0 {
		return t, nil
	}
	t.Latest = &t.Snapshots[i]
	latest, err := h.webhook(t.Latest.ID)
	if err != nil {
		return nil, err
	}
	rights := snapshot.Read(latest.Payload)
	t.Rights = &rights
	return t, nil
}

// apiTenant is GET /api/tenant.
func (h *Handler) apiTenant(r *http.Request) (any, error) {
	query := r.URL.Query()
	t, err := readTenant(query)
	if err != nil {
		return nil, err
	}
	if !query.Has("platform") {
		t.Platform = nil
		named, err := h.named(t.TenantName)
		if err != nil {
			return nil, err
		}
		t.Platform = &named.Platform
	}
	return h.tenant(r.Context(), *t.Platform, t.Tenant)
}

// tenantView is a tenant, and how its latest snapshot stands.
type tenantView struct {
	*Tenant
	Held      bool               // nobody need take the latest any more
	HeldUp    *status.HeldUp     // what holds up its webhooks; nil: nothing is known
	Features  []snapshot.Feature // what it may use, or, where usher does not answer that, what its latest webhook says
	Known     bool               // there is a list of them, be it an empty one
	Values    bool               // some feature has one
	Pause     *store.Pause       // what holds its webhooks back; nil: nobody does
	HasInbox  bool
	CanForget bool
	CanPause  bool // there are deliveries
}

func (h *Handler) oneTenant(r *http.Request) (any, error) {
	of, err := readTenant(r.URL.Query())
	if err != nil {
		return nil, err
	}
	t, err := h.tenant(r.Context(), *of.Platform, of.Tenant)
	if err != nil {
		return nil, err
	}
	v := &tenantView{Tenant: t, Held: true, HasInbox: h.cfg.Inbox != nil, CanForget: h.cfg.Forget != nil}
	v.CanPause = v.HasInbox && (h.cfg.Gate == nil || len(h.cfg.Receivers.All()) > 0) // without a gate other replicas know them
	v.Pause = status.PausedBy(h.paused(), h.cfg.Receivers, t.Platform, t.Code, "")
	if t.Latest != nil {
		v.Held = slices.Contains([]string{"delivered", "forwarded", "kept"}, t.Latest.Outcome())
		v.HeldUp = h.heldUp()[laneOf(t.Platform, t.Code, "")]
	}
	switch {
	case t.MayUse != nil:
		v.Features, v.Known = t.MayUse.Features, t.MayUse.Known
	case t.Rights != nil:
		v.Features, v.Known = t.Rights.Features, t.Rights.Known
	}
	v.Values = slices.ContainsFunc(v.Features, func(f snapshot.Feature) bool { return f.Value != "" })
	return &page.Page{Name: "tenant", Title: t.Code, Section: "tenants", Live: true, Body: v}, nil
}

// TenantList is the answer of GET /api/tenants, and what the page of tenants shows.
type TenantList struct {
	Search   string          `json:"-"`
	Troubled []*store.Tenant `json:"troubled"` // of the first page: those whose webhooks are held up, parked or refused
	Tenants  []*store.Tenant `json:"tenants"`
	Next     string          `json:"next,omitempty"` // the query for those that follow
}

// Older is the address of the page that follows.
func (l *TenantList) Older() string { return "/tenants?" + l.Next }

func (h *Handler) tenants(r *http.Request) (any, error) {
	query := r.URL.Query()
	l := &TenantList{Search: strings.TrimSpace(query.Get("search")), Troubled: []*store.Tenant{}, Tenants: []*store.Tenant{}} // [] and not null
	f := store.TenantFilter{Search: l.Search, Limit: pageSize + 1}
	if query.Has("after") {
		f.After = &store.Tenant{Platform: query.Get("platform"), Tenant: query.Get("after")}
	} else {
		troubled, err := h.cfg.Inbox.Tenants(store.TenantFilter{Search: l.Search, Troubled: true, Limit: pageSize})
		if err != nil {
			return nil, err
		}
		l.Troubled = append(l.Troubled, troubled...)
	}
	all, err := h.cfg.Inbox.Tenants(f)
	l.Tenants = append(l.Tenants, all[:min(len(all), pageSize)]...)
	if len(all) > pageSize {
		last := all[pageSize-1]
		l.Next = url.Values{"search": {l.Search}, "platform": {last.Platform}, "after": {last.Tenant}}.Encode()
	}
	return &page.Page{Name: "tenants", Title: "Tenants", Section: "tenants", Body: l}, err
}

// Receipt says whether the receiver has a tenant's last snapshot, and if not, why, and what to do about it.
type Receipt struct {
	ID    string    `json:"id"` // of the webhook
	Taken bool      `json:"taken"`
	Since time.Time `json:"since"`        // it has it, or should
	State string    `json:"state"`        // of the webhook
	Why   string    `json:"why"`          // in words
	Do    string    `json:"do,omitempty"` // in words
	Run   string    `json:"run,omitempty"`
}

// receipt adds to a tenant whether its receiver has what usher answers by, and what was refused since.
func (h *Handler) receipt(t *Tenant) error {
	if h.cfg.Inbox == nil {
		return nil
	}
	refused, err := h.cfg.Inbox.List(store.Filter{State: store.Refused, Tenant: t.Code, Platform: &t.Platform, Limit: 1})
	if err != nil {
		return err
	}
	if len(refused) > 0 {
		w := newWebhook(&refused[0])
		t.Refused = &w
	}
	if t.MayUse == nil {
		return nil
	}
	d, err := h.webhook(strconv.FormatInt(t.MayUse.ID, 10))
	if errors.Is(err, store.ErrNotFound) {
		return nil // its history is not kept any more
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
	case d.State == store.Kept:
		r.Why = "No receiver takes its platform: only usher uses it"
	case r.Taken:
		r.Why = receiver + " has it"
	case d.State == store.Parked:
		r.Why, r.Do, r.Run = receiver+" refused it: "+answer, "Fix the receiver, then send it again.", again
	case !d.waits():
		r.Why, r.Do, r.Run = cmp.Or(d.Why, "It was "+string(d.State)), "If the receiver should have it, send it again.", again
	case d.Paused:
		p := status.PausedBy(h.paused(), h.cfg.Receivers, t.Platform, t.Code, d.Receiver)
		r.Why, r.Do, r.Run = "Deliveries are paused ("+p.String()+")", "Resume them.", "usher inbox resume"+p.Flag()
	case d.NoReceiver:
		r.Why, r.Do = "No receiver takes its platform any more", "Give the platform to a receiver (USHER_WEBHOOK_RECEIVERS_n_PLATFORMS), then restart usher."
	case d.HeldUp != nil && d.HeldUp.Down:
		r.Why, r.Do = receiver+" is down: "+d.HeldUp.Answer, "Bring the receiver back. usher then delivers by itself."
	case d.HeldUp != nil:
		r.Why, r.Do, r.Run = receiver+" does not take webhook "+d.HeldUp.Webhook+", which goes first: "+d.HeldUp.Answer, "Fix the receiver. usher tries again by itself. To try it now, send it again.", "usher inbox redeliver "+d.HeldUp.Webhook
		if d.HeldUp.Webhook == d.ID {
			r.Why = receiver + " does not take it: " + d.HeldUp.Answer
		}
	default:
		r.Why = "It is on its way"
	}
	if d.waits() {
		r.Since = d.Received
	}
	return nil
}

// MayUse is what a tenant may use, as checks are answered at this moment.
type MayUse struct {
	Known    bool               `json:"known"` // its last webhook has a list of features
	Features []snapshot.Feature `json:"features"`
	AsOf     time.Time          `json:"as_of"`   // when that webhook was taken in
	Webhook  string             `json:"webhook"` // its webhook-id
	ID       int64              `json:"id"`      // its id in the inbox, whose history may not have it any more
	Ask      []string           `json:"ask"`     // lines for a shell that ask for it

	// Stale is for how long the inbox's servers could not be reached, so that another replica may
	// have taken in something newer; zero: they can.
	Stale time.Duration `json:"stale,omitzero"`
}

// mayUse asks what a tenant may use. Why nothing is known is said in words; both are empty where
// usher does not answer such questions.
func (h *Handler) mayUse(ctx context.Context, platform, code string) (*MayUse, string) {
	if h.cfg.Entitlements == nil {
		return nil, ""
	}
	a, err := h.cfg.Entitlements(ctx, code, &platform)
	if err != nil {
		return nil, err.Error()
	}
	feature := ""
	if len(a.Snapshot.Features) > 0 {
		feature = a.Snapshot.Features[0].Code
	}
	return &MayUse{
		Known: a.Snapshot.Known, Features: append([]snapshot.Feature{}, a.Snapshot.Features...), // never null
		AsOf: a.Received, Webhook: a.Webhook, ID: a.Seq, Ask: h.askLines(platform, code, feature), Stale: a.Stale,
	}, ""
}

// askLines are those that ask what a tenant may use, and whether it may use a feature, on the port for
// that where there is one.
func (h *Handler) askLines(platform, code, feature string) []string {
	port := h.cfg.EntitlementsPort
	query := url.Values{"platform": {platform}}
	if port == nil {
		// The page does not know by which name it is reached from a shell, but usher's own command does.
		lines := []string{"usher entitlements " + quote(store.Exact(platform, code))}
		if feature != "" {
			lines = append(lines, lines[0]+" "+quote(feature))
		}
		return lines
	}
	curl, base := port()
	lines := []string{curl + " " + quote(base+"/v1/entitlements/"+url.PathEscape(code)+"?"+query.Encode())}
	if feature != "" {
		query.Set("tenant", code)
		query.Set("feature", feature)
		lines = append(lines, curl+" -i "+quote(base+"/v1/check?"+query.Encode()))
	}
	return lines
}
