package serve

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"usher/internal/admin"
	"usher/internal/admin/metrics"
	"usher/internal/entitlements"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/webhookgate"
)

// entitlementsMemory is how much memory snapshots may take. usher reads the others from the
// inbox when somebody asks for them.
const entitlementsMemory = 64 << 20

// rights knows what each tenant may use. The inbox feeds it.
type rights struct {
	index *entitlements.Index
	inbox *inbox.Inbox
	// asked: somebody may ask at any time. If not, a snapshot is parsed only when somebody looks at the
	// tenant on the admin port.
	asked bool
}

func newRights(asked bool) *rights {
	return &rights{index: entitlements.NewIndex(entitlementsMemory), asked: asked}
}

// onSnapshot takes in a tenant's last snapshot; see inbox.Config.OnSnapshot.
func (g *rights) onSnapshot(lane webhookgate.Lane, id uint64, w *webhookgate.Webhook) {
	if w == nil || !g.asked {
		g.index.Know(lane.Platform, lane.Tenant, id)
		return
	}
	g.index.Put(entry(lane, id, w))
}

// onErase forgets a tenant; see inbox.Config.OnErase.
func (g *rights) onErase(lane webhookgate.Lane, upTo uint64) {
	g.index.Drop(lane.Platform, lane.Tenant, upTo)
}

func entry(lane webhookgate.Lane, id uint64, w *webhookgate.Webhook) entitlements.Entry {
	// Under a schema of the user's own this may fail: then there is no list of features.
	snapshot, _ := entitlements.Parse(w.Body)
	return entitlements.Entry{
		Platform: lane.Platform, Tenant: lane.Tenant, Snapshot: snapshot, AsOf: w.Received, Webhook: w.ID, Seq: id,
	}
}

// readPatience is how long the inbox may take to read a snapshot.
const readPatience = 2 * time.Second

// lookup is entitlements.Lookup.
func (g *rights) lookup(ctx context.Context, tenant string, platform *string) (entitlements.Answer, error) {
	stale, ready := g.inbox.Following()
	if !ready {
		return entitlements.Answer{}, notReady("the inbox has not been read yet")
	}
	e, held, err := g.index.Find(tenant, platform)
	if errors.Is(err, entitlements.ErrUnknown) && stale > 0 {
		// Another replica may have taken it in since.
		return entitlements.Answer{}, notReady("this tenant is not known here, and the inbox's servers can't be reached")
	}
	if err != nil || held {
		return entitlements.Answer{Entry: e, Stale: stale}, err
	}
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	lane := webhookgate.Lane{Platform: e.Platform, Tenant: e.Tenant}
	w, id, err := g.inbox.Snapshot(ctx, lane)
	if err != nil || id < e.Seq { // older than the last one that usher knows of
		return entitlements.Answer{}, notReady("the tenant's last webhook cannot be read from the inbox right now")
	}
	read := entry(lane, id, w)
	g.index.Restore(read)
	return entitlements.Answer{Entry: read, Stale: stale}, nil
}

func notReady(why string) error {
	return &entitlements.NotReadyError{RetryAfter: time.Second, Why: why}
}

// buildEntitlements builds the port that answers what a tenant may use.
func (u *Usher) buildEntitlements(m *metrics.Entitlements) {
	e := &u.settings.Entitlements
	cfg := entitlements.Config{
		Lookup:  u.rights.lookup,
		Key:     e.Key.Getter(),
		Hosts:   guard.NewHosts(e.Listen, u.settings.Outbound.AllowedHosts, e.Key != nil),
		Checked: m.Checked,
		Log:     u.log,
	}
	u.answers = &listener{variable: "USHER_ENTITLEMENTS_LISTEN", name: "entitlements", addr: e.Listen, handler: entitlements.New(cfg)}
	u.listeners = append(u.listeners, u.answers)
}

// entitlementsProblems says what keeps the port from answering.
func (u *Usher) entitlementsProblems() []string {
	if u.answers == nil {
		return nil
	}
	if _, ready := u.inbox.Following(); !ready {
		return []string{"the inbox has not been read yet, so usher does not know yet what tenants may use"}
	}
	return nil
}

// adminEntitlements answers /api/entitlements?tenant=&feature=&platform= on the admin port, whether
// the entitlements port is on or not. The admin port has checked the caller before.
func (u *Usher) adminEntitlements() http.HandlerFunc {
	handler := entitlements.New(entitlements.Config{
		Lookup: u.rights.lookup, Hosts: guard.NewHosts("", []string{"*"}, true), Log: u.log,
	})
	return func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		inner := r.Clone(r.Context())
		path := "/v1/entitlements/" + url.PathEscape(query.Get("tenant"))
		if query.Has("feature") {
			path += "/" + url.PathEscape(query.Get("feature"))
		}
		if query.Has("platform") {
			path += "?platform=" + url.QueryEscape(query.Get("platform"))
		}
		inner.RequestURI = path
		inner.URL, _ = url.Parse(path) // it was escaped
		for _, name := range []string{"Origin", "Sec-Fetch-Site"} {
			inner.Header.Del(name)
		}
		handler.ServeHTTP(w, inner)
	}
}

// mayUse returns what a tenant may use, for the admin port.
func (g *rights) mayUse(ctx context.Context, platform, tenant string) (*admin.MayUse, error) {
	answer, err := g.lookup(ctx, tenant, &platform)
	if err != nil {
		return nil, err
	}
	may := &admin.MayUse{
		Known: answer.Snapshot.Known(), Features: []admin.MayFeature{}, AsOf: answer.AsOf, Webhook: answer.Webhook, ID: answer.Seq,
		Stale: answer.Stale,
	}
	for f := range answer.Snapshot.Features() {
		may.Features = append(may.Features, admin.MayFeature{Code: f.Code, Name: f.Name, Limit: f.Limit.String(), Value: f.Value})
	}
	return may, nil
}

// entitlementsPort returns how a shell calls the entitlements port, without the key itself.
func (u *Usher) entitlementsPort() (curl, base string) {
	curl, base = "curl", u.answers.url()
	if path, ok := strings.CutPrefix(base, "unix:"); ok {
		curl, base = "curl --unix-socket '"+strings.ReplaceAll(path, "'", `'\''`)+"'", "http://localhost"
	}
	if u.settings.Entitlements.Key != nil {
		curl += ` -H "X-Usher-Key: $USHER_ENTITLEMENTS_KEY"`
	}
	return curl, base
}
