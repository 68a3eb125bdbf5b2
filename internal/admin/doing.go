package admin

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"

	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/view"
)

// actRoutes returns the addresses of an act: one for forms of the page, and those of the API. Its own name is all of
// them: nothing that people do has another way in.
func (h *Handler) actRoutes(a *Act) []route {
	api := route{path: "/api/" + a.Name, act: h.acting(a), inbox: true}
	if a.On == OnWebhooks {
		api.params = a.allowed()
	}
	if a.ByFilter {
		api.read = h.answer(func(r *http.Request) (any, error) { return h.chosenBy(r, a) })
	}
	switch {
	case a.serve != nil:
		return []route{api}
	case a.On == OnWebhooks:
		return []route{api, {path: "/" + a.Name, act: h.acting(a), inbox: true},
			{path: "/api/webhooks/{id}/" + a.Name, act: h.acting(a), params: a.allowed(), inbox: true}}
	}
	return []route{api, {path: "/" + a.Name, act: h.acting(a), inbox: true}}
}

// acting makes the handler of an act.
func (h *Handler) acting(a *Act) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{Request: r, w: w, act: a}
		if a.serve != nil {
			if err := a.serve(h, c); err != nil {
				h.fail(w, r, err)
			}
			return
		}
		most := int64(maxRequest)
		if a.On == OnWebhooks && isAPI(r) {
			most = maxIDs
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
		h.answer(func(*http.Request) (any, error) {
			err := c.read()
			if err == nil && a.On == OnWebhooks {
				return h.actOnWebhooks(c)
			}
			if err == nil {
				return h.actOnTarget(c)
			}
			return nil, err
		})(w, r)
	}
}

// resolve finds what a call is about that is not about webhooks, and says it in words. It refuses unknown names: a
// pause with a typing error would hold back nothing.
func (h *Handler) resolve(c *call) (about string, err error) {
	name, receiver := inbox.TenantName{Tenant: c.given.Get("tenant")}, c.given.Get("receiver")
	if c.given.Has("platform") {
		name.Platform = new(c.given.Get("platform"))
	}
	switch {
	case name.Tenant != "" && receiver != "":
		err = badRequest("name a tenant or a receiver, not both")
	case name.Tenant != "" || c.act.On == OnTenant:
		var t inbox.TenantRef
		t, err = h.knownTenant(c.Context(), name)
		c.on = inbox.Pause{Platform: t.Platform, Tenant: t.Tenant}
	case name.Platform != nil:
		err = badRequest("a platform needs a tenant")
	case receiver != "":
		c.on = inbox.Pause{Receiver: receiver}
		err = h.knownReceiver(c.on)
	}
	if about = c.on.String(); c.act.On == OnTenant {
		about = inbox.ShowTenant(c.on.Platform, c.on.Tenant)
	}
	for _, p := range c.act.Params { // as options of the command
		if value := c.given.Get(p.Name); !p.names() && value != "" {
			about += " --" + p.Name + " " + value
		}
	}
	return about, err
}

// actOnTarget does an act to anything but webhooks.
func (h *Handler) actOnTarget(c *call) (any, error) {
	about, err := h.resolve(c)
	if err != nil {
		return nil, err
	}
	var result view.Result
	err = h.perform(c, about, func() (err error) { result, err = c.act.do(h, c); return err })
	if err != nil || !isAPI(c.Request) {
		return h.backTo(target{on: c.on}, c.act.Name), err
	}
	return lines(func(write func(any) error) (view.End, error) {
		return view.End{Paused: h.paused()}, write(result)
	}), nil
}

// actOnWebhooks does an act to the webhooks that a call names, or else to all that its filter chooses.
func (h *Handler) actOnWebhooks(c *call) (any, error) {
	err := h.selectFor(c)
	if err != nil {
		return nil, err
	}
	about := cmp.Or(c.selection.String(), view.FirstFew(named(c.ids)))
	named := c.ids != nil
	if !named {
		chosen, err := h.choose(c.Context(), c.act.Name == "redeliver", c.selection, c.is("force"))
		if err != nil {
			return nil, err
		}
		c.ids = chosen.ids
	}
	if isAPI(c.Request) && c.PathValue("id") == "" {
		return lines(func(write func(any) error) (end view.End, err error) {
			end.Left, _ = h.actOn(c, about, func(r *view.Result) error { return write(r) }) // the lines have its error
			end.Paused = h.paused()
			return end, nil
		}), nil
	}
	var last view.Result
	var why []string // some of them: there may be very many
	failed := 0
	left, err := h.actOn(c, about, func(r *view.Result) error {
		if last = *r; r.Failed != "" {
			failed++
			why = append(why, r.ID+": "+r.Failed)[:min(3, failed)]
		}
		return nil
	})
	switch did := c.act.Name; {
	case err != nil && named:
		return nil, err
	case isAPI(c.Request):
		return lines(func(write func(any) error) (view.End, error) { return view.End{Paused: h.paused()}, write(last) }), nil
	case failed > 0:
		return nil, &refusal{http.StatusConflict, view.Plural(len(c.ids)-failed-left, "webhook", "webhooks") + " done, " +
			view.Count(failed+left) + " not: " + view.FirstOf(why, failed)}
	case named:
		return h.backTo(target{webhook: &view.Webhook{ID: last.ID}}, did), nil
	case len(c.ids) == 0:
		return h.backTo(target{all: &c.selection}, "nothing"), nil
	default:
		return h.backTo(target{all: &c.selection}, did+"-all"), nil
	}
}

// actOn does an act to webhooks, and calls each with what came of it. It goes on if one fails; but not if
// the inbox can't be written, or nobody waits for the answer: then some are left. If it was done to none
// of them, err is why not.
func (h *Handler) actOn(c *call, about string, each func(*view.Result) error) (left int, err error) {
	err = h.perform(c, about, func() (why error) {
		var taken []string // as new webhooks
		failed := 0
		for n, id := range c.ids {
			left = len(c.ids) - n - 1
			as, err := c.act.one(h, c, id)
			r := view.Result{ID: strconv.FormatInt(id, 10)}
			if err != nil {
				failed, why = failed+1, err
				r.Failed = cmp.Or(h.inboxTrouble(err), err).Error() // the cause says more than err
			} else if as != id {
				r.New = strconv.FormatInt(as, 10)
				taken = append(taken, r.New)
			}
			if newer, ok := errors.AsType[*lane.OverwriteError](err); ok {
				r.Newer = strconv.FormatInt(newer.Latest.ID, 10)
			}
			stuck := err != nil && h.inboxTrouble(err) != nil || errors.Is(err, inbox.ErrDoubt)
			if each(&r) != nil || stuck || c.Context().Err() != nil {
				break
			}
		}
		done := len(c.ids) - left - failed
		c.note("webhooks", done, "failed", failed, "left", left, "force", c.is("force"), "as", view.FirstFew(taken))
		if done > 0 {
			return nil
		}
		return why
	})
	return left, err
}

// selectFor reads the filter of a call. Without ids it must have one, or the act would be about all webhooks.
func (h *Handler) selectFor(c *call) (err error) {
	if c.selection, err = h.readSelection(c.given); err != nil {
		return err
	}
	c.selection.limit = 0
	switch {
	case c.ids == nil && !c.act.ByFilter:
		return badRequest(`say which webhooks: {"ids":["7","8"]}`)
	case c.ids == nil && !c.selection.Narrow():
		return badRequest("say which webhooks: state, tenant, platform, since or until")
	}
	return nil
}

// chosenBy is GET /api/NAME: what an act would be done to.
func (h *Handler) chosenBy(r *http.Request, a *Act) (any, error) {
	query, err := readQuery(r.URL.RawQuery)
	c := &call{Request: r, act: a, given: query}
	if err == nil {
		err = h.selectFor(c)
	}
	if err != nil {
		return nil, err
	}
	all, err := h.choose(r.Context(), a.Name == "redeliver", c.selection, c.is("force"))
	return all.Chosen, err
}

// maxRequest limits the body of a request; maxIDs that of one with ids: about as many as a command line can have.
const (
	maxRequest = 64 << 10
	maxIDs     = 2 << 20
)
