package webhookgate

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"time"

	"usher/internal/receiver"
	"usher/webhookgate/content"
	"usher/webhookgate/signature"
)

// Config is what a Gate needs. A webhook must pass every check that it configures. The settings
// have the defaults and have checked every field; the gate does not check them again.
type Config struct {
	// Path is where webhooks are posted. It is compared exactly as it was sent, escapes
	// included: nothing is cleaned or redirected.
	Path string

	// Tokens returns the shared secrets that are valid now, separated by commas; any of them is
	// accepted. It is called for every request and must be quick.
	// Nil: not checked. A function that returns none, or only empty ones, refuses everyone:
	// a lost secret never opens the gate.
	Tokens func() string

	// HMACSecret returns the key of the signatures over the body. It is
	// called for every webhook and must be quick.
	// Nil: not checked. A function that returns nothing refuses everyone.
	HMACSecret func() string

	// HMACHeader carries the signature, in hex or base64, and HMAC made it. Not used with
	// HMACStandard.
	HMACHeader string
	HMAC       signature.HMAC

	// HMACStandard asks for the Standard Webhooks headers instead. HMACSecret
	// must then return what signature.ParseKey understands.
	HMACStandard bool

	// AllowCIDRs are the senders' addresses. Empty: any. An IPv4 network is not written as a
	// mapped one.
	AllowCIDRs []netip.Prefix

	// TrustedProxies are the peers whose X-Forwarded-For is believed. Empty: none, and the
	// peer is the sender.
	TrustedProxies []netip.Prefix

	// Rules are the event types to accept, those of SyncTypes included, and what a webhook must
	// look like.
	Rules *content.Rules

	// SyncTypes are event types that ask the receiver a question. Each is tried once, and never
	// kept or deduplicated. The receiver's status, Content-Type and body are the answer.
	SyncTypes []string

	// MaxBody is the largest body to accept, in bytes.
	MaxBody int64

	// DedupSize is how many idle tenants are remembered.
	DedupSize int

	// DedupWindow is how long after it was accepted a snapshot counts as held by the
	// receiver. Zero: every webhook is delivered.
	DedupWindow time.Duration

	// Receivers take the webhooks. Those of a platform that nobody takes are refused, but see
	// KeepUnclaimed.
	Receivers *receiver.Set

	// Attempts is how often one delivery is tried at most.
	Attempts int

	// MaxInflight is how many webhooks may be in progress at once; more get 503. Each
	// receiver may use an equal share.
	MaxInflight int

	// Keep, if set, takes every webhook that has passed the checks, and is responsible for its
	// delivery from then on; the lanes here are not used. It returns the webhook-id of the
	// snapshot that w duplicates, or none. An error means that w is not stored, and the sender
	// should send it again. DedupSize, DedupWindow and Attempts are then not used.
	Keep func(w *Webhook) (duplicateOf string, err error)

	// KeepUnclaimed passes webhooks that no receiver takes to Keep, instead of refusing them:
	// they can be of use even if nobody gets them. Questions without a receiver are still
	// refused.
	KeepUnclaimed bool

	// Refused is called for each Refusal, before the sender gets its answer, and says whether the webhook is
	// stored. It must return within the time that Keep may take. May be nil.
	Refused func(*Refusal) (stored bool)

	// UnknownType is called for each webhook of a type that is in neither list. May be nil.
	UnknownType func(typ string)

	// Log gets one line per webhook and one per failed try; no secrets, no
	// payloads.
	Log *slog.Logger

	// Answered is called for every answer with everything that is known about it. It runs
	// before the sender gets the answer, so it must be quick: when a sender has the answer, the
	// metrics must include it. May be nil.
	Answered func(Outcome)
}

// New makes a Gate.
func New(cfg Config) *Gate {
	ways := len(cfg.Receivers.All())
	if cfg.Keep != nil {
		ways++ // the inbox: only questions go to a receiver while their sender waits
	}
	g := &Gate{
		cfg:     cfg,
		share:   max(1, cfg.MaxInflight/ways), // so that a receiver that hangs cannot take the places of the others
		jitter:  rand.N[time.Duration],
		readers: make(chan struct{}, runtime.GOMAXPROCS(0)),
		taken:   make(map[*receiver.Receiver]int),
		idle:    make(chan struct{}),
	}
	g.deliveries, g.cancel = context.WithCancel(context.Background())
	if cfg.Keep == nil {
		g.lanes = newPassThrough(cfg.DedupSize, cfg.DedupWindow, cfg.Log, g.deliver)
	}
	return g
}
