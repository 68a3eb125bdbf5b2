package webhookgate

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"usher/internal/content"
	"usher/internal/receiver"
)

// forBuyers is the answer to a question that usher could not ask, or that got no answer. The service shows it to
// the buyer at the checkout.
const forBuyers = "This change cannot be made at the moment. Please try again in a few minutes."

// statusHungUp is for logs and the admin port only: no sender gets it.
const statusHungUp = 499

// isQuestion reports whether webhooks of this type are questions.
func (c *Config) isQuestion(typ string) bool { return slices.Contains(c.SyncTypes, typ) }

// ask sends a question to the receiver and returns its answer. The sender needs it now, so there is
// one try, in no lane, and nothing is stored or remembered. Unlike a delivery, the try ends if the
// sender hangs up, or has waited for too long.
func (g *Gate) ask(in *arrival) *answer {
	w := in.Webhook
	var rejection *answer
	if w.Receiver, rejection = g.cfg.whoAnswers(in.ctx, w.Lane); rejection != nil {
		return rejection
	}
	if full := g.take(in, place{w.Receiver, questions}); full != nil {
		return full
	}
	ctx, cancel := context.WithCancel(in.ctx)
	defer cancel()
	defer context.AfterFunc(in.r.Context(), cancel)()
	defer context.AfterFunc(g.deliveries, cancel)() // Shutdown may end the try, too
	t := w.Receiver.Ask(ctx, w.ID, w.Header, w.Body)
	var a *answer
	switch {
	case t.Err == nil:
		a = &answer{status: t.Status, Decision: forwarded, receivers: &t}
	case in.r.Context().Err() != nil:
		a = &answer{status: statusHungUp, Decision: failed, Error: "the sender hung up before the receiver answered"}
	case g.deliveries.Err() != nil:
		a = shuttingDown()
	default:
		logFailure(g.cfg.Log, w, 1, t)
		a = failure(w, 1, t)
		if in.ctx.Err() != nil {
			a.Error = fmt.Sprintf("the receiver did not answer within %v", g.cfg.AnswerWithin)
		}
	}
	a.Webhook, a.Tries = w.ID, 1
	return a
}

// whoAnswers returns the receiver that a question goes to. The service's questions name no platform: then usher looks
// for the tenant among those that it knows, because another receiver might know nothing of it.
func (c *Config) whoAnswers(ctx context.Context, of LaneName) (*receiver.Receiver, *answer) {
	all := c.Receivers.All()
	if of.Platform != "" || len(all) == 0 {
		if r := c.Receivers.For(of.Platform); r != nil {
			return r, nil
		}
		return nil, faulty(http.StatusUnprocessableEntity, unclaimed(of.Platform))
	}
	if len(all) == 1 {
		return all[0], nil
	}
	if c.PlatformsOf != nil && of.Tenant != "" {
		platforms, err := c.PlatformsOf(ctx, of.Tenant)
		if err != nil {
			c.Log.Error("cannot look up the platform of a question's tenant", "err", err)
			return nil, busy("the inbox can't be read right now")
		}
		if len(platforms) == 1 {
			if r := c.Receivers.For(platforms[0]); r != nil {
				return r, nil
			}
		}
	}
	if r := c.Receivers.Main(); r != nil {
		return r, nil
	}
	return nil, faulty(http.StatusUnprocessableEntity, content.Fault{
		Path: "/payload/tenant/platform/code",
		Message: "is missing, usher does not know the tenant on one platform alone, and there are several receivers: " +
			"set USHER_WEBHOOK_FORWARD_URL",
	})
}
