package webhookgate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"usher/webhookgate/content"
)

// MainReceiver is the name of the receiver of Config.ForwardURL.
const MainReceiver = "main"

// A Receiver is one of the customer's applications. It takes the webhooks of some platforms.
type Receiver struct {
	// Name is its name in logs and metrics. Required and unique.
	Name string

	// Platforms are the codes of the platforms whose webhooks it gets; they must match
	// exactly. At least one, and none of another receiver.
	Platforms []string

	// URL is its address; as Config.ForwardURL. Required.
	URL *url.URL

	// SignSecret is as Config.SignSecret. Nil: its deliveries are not signed.
	SignSecret func() string

	// Timeout is for each try. Default: Config.Timeout.
	Timeout time.Duration

	// Transport sends its tries; as Config.Transport. Default: one of its own, so that
	// receivers share no connections.
	Transport http.RoundTripper
}

// receivers decides who gets which webhook. Nothing else does.
type receivers struct {
	all  []*receiver
	of   map[string]*receiver // by the platform's code
	rest *receiver            // gets all other webhooks; may be nil
}

func newReceivers(cfg *Config) (*receivers, error) {
	rs := &receivers{of: make(map[string]*receiver)}
	if cfg.ForwardURL != nil {
		rest, err := newReceiver(cfg, Receiver{Name: MainReceiver, URL: cfg.ForwardURL, SignSecret: cfg.SignSecret, Transport: cfg.Transport})
		if err != nil {
			return nil, err
		}
		rs.rest, rs.all = rest, append(rs.all, rest)
	}
	names := map[string]bool{MainReceiver: true}
	for _, r := range cfg.Receivers {
		rc, err := newReceiver(cfg, r)
		switch {
		case err != nil:
			return nil, err
		case r.Name == "" || names[r.Name]:
			return nil, fmt.Errorf("receiver %q: its name is empty, or another receiver has it", r.Name)
		case len(r.Platforms) == 0:
			return nil, fmt.Errorf("receiver %s: no platforms", r.Name)
		}
		names[r.Name] = true
		for _, platform := range r.Platforms {
			if other := rs.of[platform]; platform == "" || other != nil && other != rc {
				return nil, fmt.Errorf("receiver %s: platform %q is empty, or another receiver has it", r.Name, platform)
			}
			rs.of[platform] = rc
		}
		rs.all = append(rs.all, rc)
	}
	if len(rs.all) == 0 && !cfg.KeepUnclaimed {
		return nil, errors.New("no receiver to forward to")
	}
	return rs, nil
}

// takes returns the receiver of a platform's webhooks, or nil. Webhooks without a platform have
// the empty code.
func (rs *receivers) takes(platform string) *receiver {
	if rc := rs.of[platform]; rc != nil {
		return rc
	}
	return rs.rest
}

// ReceiverOf returns the name of the receiver of a lane's webhooks, or the empty string. The
// inbox should ask before each try: it stores webhooks by tenant, and the current settings
// decide who gets them.
func (g *Gate) ReceiverOf(l Lane) string {
	if rc := g.receivers.takes(l.Platform); rc != nil {
		return rc.name
	}
	return ""
}

// ErrNoReceiver: a webhook could not be tried because no receiver takes its platform.
var ErrNoReceiver = errors.New("no receiver takes webhooks of this platform")

// Try sends w to the receiver of its platform once. It is for an inbox (see Config.Keep), which
// decides itself whether and when to try again.
func (g *Gate) Try(ctx context.Context, w *Webhook) Attempt {
	rc := g.receivers.takes(w.Lane.Platform)
	if rc == nil {
		return Attempt{Err: ErrNoReceiver}
	}
	return rc.try(ctx, w)
}

// keepsAnyway reports whether a webhook of this type is kept although no receiver takes it.
func (g *Gate) keepsAnyway(typ string) bool {
	return g.cfg.Keep != nil && g.cfg.KeepUnclaimed && !g.asks(typ)
}

// unclaimed refuses a webhook that no receiver takes.
func unclaimed(platform string) *answer {
	message := fmt.Sprintf("is %q, and no receiver takes webhooks of this platform", content.Clip(platform, maxShown))
	if platform == "" {
		message = "is missing, and no receiver takes webhooks without a platform"
	}
	return faulty(http.StatusUnprocessableEntity, content.Fault{Path: "/payload/tenant/platform/code", Message: message})
}

// share is how many webhooks may be on their way to one receiver at once: an equal part of all
// places, so that a receiver that hangs cannot take the places of the others. With an inbox only
// questions go to a receiver while their sender waits, and the inbox itself counts as one more
// receiver.
func share(inflight, receivers int, kept bool) int {
	if kept {
		receivers++
	}
	return max(1, inflight/receivers)
}

// take takes one of the places of the visit's receiver; leave gives it back.
func (g *Gate) take(v *visit) *answer {
	g.mu.Lock()
	defer g.mu.Unlock()
	if v.receiver.inflight >= g.share {
		return busy(fmt.Sprintf("too many webhooks at once for the receiver %s; please send this one again", v.receiver.name))
	}
	v.receiver.inflight++
	v.taken = true
	return nil
}
