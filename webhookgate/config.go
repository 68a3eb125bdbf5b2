package webhookgate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"time"
)

// TenantProvisioningChange is the one event type that the billing service
// documents, and so the one that the built-in schema describes.
const TenantProvisioningChange = "TenantProvisioningChange"

// Config is what a Gate is made of. Whatever checks it names must all pass.
type Config struct {
	// Path is where webhooks are posted. It is compared whole, in the escaped
	// form in which it was sent: nothing is cleaned or redirected.
	// Default: /webhooks.
	Path string

	// Tokens returns the shared secrets that are good at the moment, any of
	// which will do. It is called for every request and must be quick.
	// Nil: not checked. A function that returns none, or only empty ones,
	// refuses everyone: a lost secret never opens the gate.
	Tokens func() []string

	// HMACSecret returns the key of the signatures over the body. It is
	// called for every webhook and must be quick.
	// Nil: not checked. A function that returns nothing refuses everyone.
	HMACSecret func() string

	// HMACHeader carries the signature, in hex or base64.
	// Default: X-Signature. Not used with HMACStandard.
	HMACHeader string

	// HMACAlgorithm is what the signature is made with: sha256, sha512 or sha1.
	// Default: sha256. Not used with HMACStandard.
	HMACAlgorithm string

	// HMACStandard asks for the Standard Webhooks headers instead. HMACSecret
	// must then return what ParseSecretKey understands.
	HMACStandard bool

	// AllowCIDRs are the senders' addresses. Empty: any.
	AllowCIDRs []netip.Prefix

	// TrustedProxies are the peers whose X-Forwarded-For is believed.
	// Empty: nobody's, and the peer is the sender.
	TrustedProxies []netip.Prefix

	// Types are the event types let through, "*" being any.
	// Default: TenantProvisioningChange.
	Types []string

	// SyncTypes are event types that ask the receiver a question. They are let
	// through as well, and must not be among Types. Each is tried once, never kept
	// or deduplicated, and the receiver's status, Content-Type and body are the
	// answer.
	SyncTypes []string

	// Schema is a JSON Schema that every webhook must fit, in place of the
	// built-in one. It must hold all that it refers to.
	// Nil: built in, and applied to TenantProvisioningChange alone.
	Schema []byte

	// MaxBody is the largest body taken, in bytes. Default: 1 MiB.
	MaxBody int64

	// DedupSize is how many idle tenants are remembered. Default: 10000.
	DedupSize int

	// DedupWindow is how long after its acceptance a snapshot counts as held
	// by the receiver. Zero: every webhook is delivered.
	DedupWindow time.Duration

	// ForwardURL is the receiver of all that no other takes. Its query is kept, and
	// its userinfo becomes Basic auth towards the receiver. Nil: only what one of
	// Receivers takes is let through.
	ForwardURL *url.URL

	// Receivers are those that take the webhooks of some platforms. One at least,
	// or ForwardURL, is required.
	Receivers []Receiver

	// Timeout is for each try, up to the receiver's last byte. Default: 10s.
	Timeout time.Duration

	// Attempts is how often one delivery is tried at most. Default: 3.
	Attempts int

	// MaxInflight is how many webhooks may be under way at once; whoever comes
	// on top is told 503. Each receiver may have an equal share of them.
	// Default: 256.
	MaxInflight int

	// SignSecret returns the key with which deliveries are signed, in the
	// form that ParseSecretKey understands. Called for each try. Nil: they are
	// not signed. While it returns nonsense nothing is delivered.
	SignSecret func() string

	// Keep, where set, takes every webhook that has passed the checks in place
	// of the lanes here, and answers for its delivery from then on. It returns
	// the webhook-id of the snapshot that w is a duplicate of, or none; an error
	// means that w is not safe, and the sender is told to send it again. DedupSize,
	// DedupWindow and Attempts are then not used here.
	Keep func(w *Webhook) (duplicateOf string, err error)

	// KeepUnclaimed has Keep take what no receiver takes, too, where it would be
	// refused otherwise: for those who have another use for a webhook than to
	// deliver it. Questions are still refused. No receiver is required then.
	KeepUnclaimed bool

	// Transport carries the tries at ForwardURL. It must honour the request's context and
	// must not send a request twice of its own accord.
	// Default: one of the gate's own.
	Transport http.RoundTripper

	// Log gets one line per webhook and one per failed try; no secrets, no
	// payloads. Default: nowhere.
	Log *slog.Logger

	// Received is told of every answer: its decision (forwarded, queued,
	// duplicate, rejected, failed) and how long it took. May be nil.
	Received func(decision string, took time.Duration)

	// Answered is told of every answer with all that is known of it, before the
	// sender has it: it must be quick. May be nil.
	Answered func(Outcome)

	// Attempted is told of every try: the receiver's name, what came of it (ok: a
	// 2xx; status: any other answer; timeout; error: no answer for another
	// reason), and how long it took. May be nil.
	Attempted func(receiver, result string, took time.Duration)
}

// New makes a Gate, or says what is wrong with cfg.
func New(cfg Config) (*Gate, error) {
	cfg.setDefaults()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("webhook gate: %w", err)
	}
	validator, err := newValidator(slices.Concat(cfg.Types, cfg.SyncTypes), cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("webhook gate: schema: %w", err)
	}
	receivers, err := newReceivers(&cfg)
	if err != nil {
		return nil, fmt.Errorf("webhook gate: %w", err)
	}
	g := &Gate{
		cfg:       cfg,
		validator: validator,
		receivers: receivers,
		share:     share(cfg.MaxInflight, len(receivers.all), cfg.Keep != nil),
		readers:   make(chan struct{}, runtime.GOMAXPROCS(0)),
		idle:      make(chan struct{}),
	}
	g.deliveries, g.cancel = context.WithCancel(context.Background())
	g.lanes, err = newPassThrough(cfg.DedupSize, cfg.DedupWindow, func(rc *receiver, w *Webhook) answer {
		return rc.deliver(g.deliveries, w)
	})
	if err != nil {
		return nil, fmt.Errorf("webhook gate: %w", err)
	}
	return g, nil
}

func (c *Config) setDefaults() {
	setDefault(&c.Path, "/webhooks")
	setDefault(&c.HMACHeader, "X-Signature")
	setDefault(&c.HMACAlgorithm, "sha256")
	setDefault(&c.MaxBody, 1<<20)
	setDefault(&c.DedupSize, 10000)
	setDefault(&c.Timeout, 10*time.Second)
	setDefault(&c.Attempts, 3)
	setDefault(&c.MaxInflight, 256)
	if len(c.Types) == 0 {
		c.Types = []string{TenantProvisioningChange}
	}
	c.AllowCIDRs = unmapped(c.AllowCIDRs)
	c.TrustedProxies = unmapped(c.TrustedProxies)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Received == nil {
		c.Received = func(string, time.Duration) {}
	}
	if c.Answered == nil {
		c.Answered = func(Outcome) {}
	}
	if c.Attempted == nil {
		c.Attempted = func(string, string, time.Duration) {}
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c *Config) check() error {
	_, badEscape := url.PathUnescape(c.Path)
	_, known := algorithms[c.HMACAlgorithm]
	switch {
	case c.KeepUnclaimed && c.Keep == nil:
		return errors.New("webhooks without a receiver need an inbox")
	case !strings.HasPrefix(c.Path, "/") || strings.ContainsAny(c.Path, "?# ") || badEscape != nil:
		return fmt.Errorf("path %q: must begin with / and be escaped as in a URL", c.Path)
	case c.MaxBody < 0 || c.DedupSize < 0 || c.DedupWindow < 0 || c.Timeout < 0 || c.Attempts < 0 || c.MaxInflight < 0:
		return errors.New("sizes, counts and durations must not be negative")
	case !known:
		return fmt.Errorf("HMAC algorithm %q: must be sha256, sha512 or sha1", c.HMACAlgorithm)
	case slices.Contains(c.Types, "") || slices.Contains(c.SyncTypes, ""):
		return errors.New("an event type is empty")
	case slices.Contains(c.SyncTypes, "*"):
		return errors.New("the event types that ask a question must be named, * is not allowed")
	}
	for _, typ := range c.SyncTypes {
		if slices.Contains(c.Types, typ) {
			return fmt.Errorf("event type %q can't be both: delivered, and a question", typ)
		}
	}
	for _, p := range slices.Concat(c.AllowCIDRs, c.TrustedProxies) {
		if !p.IsValid() {
			return errors.New("an address range is not valid")
		}
	}
	return nil
}
