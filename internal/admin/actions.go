package admin

import (
	"errors"
	"net/http"
	"net/url"

	"usher/internal/admin/page"
	"usher/internal/inbox"
)

// confirmation asks before something is done. It is a page of its own, so that it works
// without a script; what it sends is the POST that acts.
type confirmation struct {
	Question string
	Effect   string // what will happen
	Warning  string // what should be known before; may be empty
	Button   string
	Action   string // where the form goes
	Fields   map[string]string
	Back     string
	Danger   bool
}

func confirm(status int, c *confirmation) *view {
	return &view{name: "confirm", status: status, shell: page.Shell{Title: c.Question, At: "webhooks", Body: c}}
}

func (h *Handler) askRedeliver(r *http.Request) (*view, error) {
	box, id, err := h.addressed(r)
	if err != nil {
		return nil, err
	}
	item, err := box.Show(id)
	if err != nil {
		return nil, err
	}
	return confirm(http.StatusOK, redelivery(r, item.Tenant)), nil
}

func redelivery(r *http.Request, tenant string) *confirmation {
	id := r.PathValue("id")
	c := &confirmation{
		Question: "Send webhook " + id + " again?",
		Effect:   "The receiver gets it once more, with the same webhook-id, ahead of what its tenant has waiting.",
		Button:   "Send it again", Action: "/webhooks/" + id + "/redeliver", Back: "/webhooks/" + id,
	}
	if tenant != "" {
		c.Effect = "The receiver gets this snapshot of " + tenant + " once more, with the same webhook-id, ahead of what the tenant has waiting."
	}
	return c
}

func (h *Handler) doRedeliver(r *http.Request) (*view, error) {
	box, id, err := h.addressed(r)
	if err != nil {
		return nil, err
	}
	if err := r.ParseForm(); err != nil {
		return nil, badRequest("the form can't be read: %v", err)
	}
	err = h.sendAgain(r, box, id, r.PostForm.Get("force") == "true")
	var overwrite *inbox.OverwriteError
	if errors.As(err, &overwrite) {
		// Asked once more, now that it is known what is at stake.
		c := redelivery(r, overwrite.Latest.Tenant)
		c.Question = "Overwrite a newer snapshot?"
		c.Warning = overwrite.Error() + "."
		c.Button, c.Danger = "Send the old one all the same", true
		c.Fields = map[string]string{"force": "true"}
		return confirm(http.StatusConflict, c), nil
	}
	if err != nil {
		return nil, err
	}
	return &view{goTo: "/webhooks/" + r.PathValue("id") + "?did=redelivered"}, nil
}

func (h *Handler) askForget(r *http.Request) (*view, error) {
	platform, code, err := readTenant(r.URL.Query())
	if err != nil {
		return nil, err
	}
	return confirm(http.StatusOK, &confirmation{
		Question: "Have dedup forget " + code + "?",
		Effect: "The tenant's next snapshot is delivered even if the receiver was sent exactly that before. " +
			"Use it when somebody changed the receiver's state behind usher's back, then resend the webhook from the billing service's log. " +
			"Nothing is deleted here.",
		Button: "Forget it", Action: "/tenant/forget", Fields: map[string]string{"platform": platform, "code": code},
		Back: tenantAddress(platform, code, ""),
	}), nil
}

func (h *Handler) doForget(r *http.Request) (*view, error) {
	if err := r.ParseForm(); err != nil {
		return nil, badRequest("the form can't be read: %v", err)
	}
	platform, code, err := readTenant(r.PostForm)
	if err != nil {
		return nil, err
	}
	n, err := h.drop(r, Named{platform, code})
	if err != nil {
		return nil, err
	}
	did := "forgotten"
	if n == 0 {
		did = "forgot-nothing"
	}
	return &view{goTo: tenantAddress(platform, code, did)}, nil
}

func tenantAddress(platform, code, did string) string {
	query := url.Values{"platform": {platform}, "code": {code}}
	if did != "" {
		query.Set("did", did)
	}
	return "/tenant?" + query.Encode()
}
