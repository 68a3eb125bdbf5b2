package webhookgate

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"usher/internal/clip"
	"usher/webhookgate/content"
	"usher/webhookgate/delivery"
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

// receiver is one of the customer's applications, as the gate sees it.
type receiver struct {
	delivery.Receiver
	inflight int // webhooks on their way to it while their senders wait; guarded by Gate.mu
}

func newReceiver(cfg *Config, r Receiver) (*receiver, error) {
	if r.URL == nil || r.URL.Scheme != "http" && r.URL.Scheme != "https" || r.URL.Host == "" {
		return nil, fmt.Errorf("receiver %s: %s: must be an http or https address", r.Name, r.URL.Redacted())
	}
	rc := &receiver{Receiver: delivery.Receiver{
		Name:       r.Name,
		URL:        r.URL,
		Timeout:    cmp.Or(r.Timeout, cfg.Timeout),
		SignSecret: r.SignSecret,
		Transport:  r.Transport,
	}}
	if rc.Transport == nil {
		rc.Transport = delivery.NewTransport(cfg.MaxInflight)
	}
	return rc, nil
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

// CloseIdleConnections closes the idle connections to the receivers. Call it after Shutdown,
// when the inbox delivers no more either.
func (g *Gate) CloseIdleConnections() {
	for _, rc := range g.receivers.all {
		rc.CloseIdleConnections()
	}
}

// unclaimed refuses a webhook that no receiver takes.
func unclaimed(platform string) *answer {
	message := fmt.Sprintf("is %q, and no receiver takes webhooks of this platform", clip.Text(platform, maxShown))
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
		return busy(fmt.Sprintf("too many webhooks at once for the receiver %s; please send this one again", v.receiver.Name))
	}
	v.receiver.inflight++
	v.taken = true
	return nil
}
