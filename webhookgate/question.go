package webhookgate

import (
	"context"
	"fmt"
	"net/http"

	"usher/internal/content"
	"usher/internal/receiver"
)

// ask tries a question once, and returns the receiver's answer. The try ends early if the sender hangs up, or when
// usher's grace at a shutdown is over.
func (c *Config) ask(ctx, sender, deliveries context.Context, w *Webhook) *answer {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(sender, cancel)()
	defer context.AfterFunc(deliveries, cancel)()
	t := w.Receiver.Ask(ctx, w.ID, w.Header, w.Body)
	var a *answer
	switch {
	case t.Err == nil:
		a = &answer{status: t.Status, Decision: forwarded, receivers: &t}
	case sender.Err() != nil:
		a = fail(statusHungUp, "the sender hung up before the receiver answered")
	case deliveries.Err() != nil:
		a = shuttingDown()
	default:
		logFailure(c.Log, w, 1, t)
		a = failure(w, 1, t)
		if ctx.Err() != nil {
			a.Error = fmt.Sprintf("the receiver did not answer within %v", c.AnswerWithin)
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
