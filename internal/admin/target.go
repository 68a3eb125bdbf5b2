package admin

import (
	"net/url"
	"strings"

	"usher/internal/inbox"
	"usher/internal/view"
)

// A target is something that acts may be done to: it has a page, with buttons for them.
type target struct {
	on      inbox.Pause   // a tenant or a receiver; neither: all deliveries
	webhook *view.Webhook // or a webhook
	all     *selection    // or all webhooks that a filter selects
}

// address is that of its page.
func (t target) address() string {
	switch {
	case t.webhook != nil:
		return t.webhook.URL()
	case t.all != nil:
		return "/webhooks?" + t.all.Query().Encode()
	case t.on.Tenant != "":
		return view.TenantURL(t.on.Platform, t.on.Tenant)
	case t.on.Receiver != "":
		return "/?" + url.Values{"receiver": {t.on.Receiver}}.Encode()
	}
	return "/"
}

// ask is the address of its page with the dialog of an act.
func (t target) ask(act string, force bool) string {
	address, query, _ := strings.Cut(t.address(), "?")
	values, _ := url.ParseQuery(query)
	if values.Set("ask", act); force {
		values.Set("force", "true")
	}
	return address + "?" + values.Encode()
}

// fields are those of a form that names it.
func (t target) fields() map[string]string {
	out := make(map[string]string)
	switch {
	case t.webhook != nil:
		out["id"] = t.webhook.ID
	case t.all != nil:
		for name, values := range t.all.Query() {
			out[name] = values[0]
		}
	case t.on.Tenant != "":
		out["platform"], out["tenant"] = t.on.Platform, t.on.Tenant
	case t.on.Receiver != "":
		out["receiver"] = t.on.Receiver
	}
	return out
}

// redirect is an answer that leads to another page.
type redirect string

// backTo leads to the page of a target, which says what was done.
func (h *Handler) backTo(t target, did string) redirect {
	address, query, _ := strings.Cut(t.address(), "?")
	values, _ := url.ParseQuery(query)
	values.Set("did", did)
	values.Del("state") // what was done may have changed it
	return redirect(address + "?" + values.Encode())
}
