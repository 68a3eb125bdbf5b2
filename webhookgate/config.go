package webhookgate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"time"

	"usher/webhookgate/content"
	"usher/webhookgate/signature"
)

// Config is what a Gate needs. A webhook must pass every check that it configures.
type Config struct {
	// Path is where webhooks are posted. It is compared exactly as it was sent, escapes
	// included: nothing is cleaned or redirected.
	// Default: /webhooks.
	Path string

	// Tokens returns the shared secrets that are valid now; any of them is accepted. It is
	// called for every request and must be quick.
	// Nil: not checked. A function that returns none, or only empty ones, refuses everyone:
	// a lost secret never opens the gate.
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
	// must then return what signature.ParseKey understands.
	HMACStandard bool

	// AllowCIDRs are the senders' addresses. Empty: any.
	AllowCIDRs []netip.Prefix

	// TrustedProxies are the peers whose X-Forwarded-For is believed. Empty: none, and the
	// peer is the sender.
	TrustedProxies []netip.Prefix

	// Types are the event types to accept; "*" accepts any.
	// Default: TenantProvisioningChange.
	Types []string

	// SyncTypes are event types that ask the receiver a question. They are accepted as well,
	// and must not be in Types. Each is tried once, and never kept or deduplicated. The
	// receiver's status, Content-Type and body are the answer.
	SyncTypes []string

	// Schema is a JSON Schema that every webhook must fit, instead of the built-in one. It
	// must contain everything that it refers to.
	// Nil: the built-in one, which applies to TenantProvisioningChange only.
	Schema []byte

	// MaxBody is the largest body to accept, in bytes. Default: 1 MiB.
	MaxBody int64

	// DedupSize is how many idle tenants are remembered. Default: 10000.
	DedupSize int

	// DedupWindow is how long after it was accepted a snapshot counts as held by the
	// receiver. Zero: every webhook is delivered.
	DedupWindow time.Duration

	// ForwardURL is the receiver of all webhooks that no other receiver takes. Its query is
	// kept, and its userinfo becomes Basic auth. Nil: only webhooks for one of Receivers are
	// accepted.
	ForwardURL *url.URL

	// Receivers take the webhooks of some platforms. At least one, or ForwardURL, is
	// required.
	Receivers []Receiver

	// Timeout is for each try, up to the receiver's last byte. Default: 10s.
	Timeout time.Duration

	// Attempts is how often one delivery is tried at most. Default: 3.
	Attempts int

	// MaxInflight is how many webhooks may be in progress at once; more get 503. Each
	// receiver may use an equal share.
	// Default: 256.
	MaxInflight int

	// SignSecret returns the key that signs deliveries, in the form of signature.ParseKey. It is
	// called for each try. Nil: deliveries are not signed. While it returns an invalid key
	// nothing is delivered.
	SignSecret func() string

	// Keep, if set, takes every webhook that has passed the checks, and is responsible for its
	// delivery from then on; the lanes here are not used. It returns the webhook-id of the
	// snapshot that w duplicates, or none. An error means that w is not stored, and the sender
	// is told to send it again. DedupSize, DedupWindow and Attempts are then not used.
	Keep func(w *Webhook) (duplicateOf string, err error)

	// KeepUnclaimed passes webhooks that no receiver takes to Keep, instead of refusing them:
	// they can be of use even if nobody gets them. Questions without a receiver are still
	// refused. No receiver is required then.
	KeepUnclaimed bool

	// Transport sends the tries to ForwardURL. It must respect the request's context and must
	// not send a request twice by itself.
	// Default: the gate makes its own.
	Transport http.RoundTripper

	// Log gets one line per webhook and one per failed try; no secrets, no
	// payloads. Default: nowhere.
	Log *slog.Logger

	// Answered is called for every answer with everything that is known about it. It runs
	// before the sender gets the answer, so it must be quick: when a sender has the answer, the
	// metrics must include it. May be nil.
	Answered func(Outcome)

	// Attempted is called for every try with the receiver's name, the result (ok: a 2xx;
	// status: any other answer; timeout; error: no answer for another reason), and how long
	// it took. May be nil.
	Attempted func(receiver, result string, took time.Duration)
}

// New makes a Gate, or says what is wrong with cfg.
func New(cfg Config) (*Gate, error) {
	cfg.setDefaults()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("webhook gate: %w", err)
	}
	rules, err := content.NewRules(slices.Concat(cfg.Types, cfg.SyncTypes), cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("webhook gate: schema: %w", err)
	}
	receivers, err := newReceivers(&cfg)
	if err != nil {
		return nil, fmt.Errorf("webhook gate: %w", err)
	}
	g := &Gate{
		cfg:       cfg,
		rules:     rules,
		receivers: receivers,
		share:     share(cfg.MaxInflight, len(receivers.all), cfg.Keep != nil),
		jitter:    rand.N[time.Duration],
		readers:   make(chan struct{}, runtime.GOMAXPROCS(0)),
		idle:      make(chan struct{}),
	}
	g.hmac, _ = signature.ByName(cfg.HMACAlgorithm) // which cfg.check has looked for
	g.deliveries, g.cancel = context.WithCancel(context.Background())
	g.lanes, err = newPassThrough(cfg.DedupSize, cfg.DedupWindow, g.deliver)
	if err != nil {
		return nil, fmt.Errorf("webhook gate: %w", err)
	}
	return g, nil
}

func (c *Config) setDefaults() {
	c.Path = cmp.Or(c.Path, "/webhooks")
	c.HMACHeader = cmp.Or(c.HMACHeader, "X-Signature")
	c.HMACAlgorithm = cmp.Or(c.HMACAlgorithm, "sha256")
	c.MaxBody = cmp.Or(c.MaxBody, 1<<20)
	c.DedupSize = cmp.Or(c.DedupSize, 10000)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.Attempts = cmp.Or(c.Attempts, 3)
	c.MaxInflight = cmp.Or(c.MaxInflight, 256)
	if len(c.Types) == 0 {
		c.Types = []string{content.TenantProvisioningChange}
	}
	c.AllowCIDRs = unmapped(c.AllowCIDRs)
	c.TrustedProxies = unmapped(c.TrustedProxies)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Answered == nil {
		c.Answered = func(Outcome) {}
	}
	if c.Attempted == nil {
		c.Attempted = func(string, string, time.Duration) {}
	}
}

func (c *Config) check() error {
	_, badEscape := url.PathUnescape(c.Path)
	_, known := signature.ByName(c.HMACAlgorithm)
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
