package webhookgate

import (
	"context"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"usher/internal/content"
	"usher/internal/guard"
	"usher/internal/receiver"
	"usher/internal/signature"
)

// Config is what a Gate needs. A webhook must pass every check that it configures. Package settings
// knows the defaults and has checked every field; the gate does not check them again.
type Config struct {
	// Path is where webhooks are posted. It is compared exactly as it was sent, escapes
	// included: nothing is cleaned or redirected.
	Path string

	// Tokens returns the shared secrets that are valid now, separated by commas; any of them is
	// accepted. It is called for every request and must be quick.
	// Nil: not checked. A function that returns none, or only empty ones, refuses everyone:
	// a lost secret never opens the gate.
	Tokens func() string

	// SigningKeys returns the keys of the signatures over the body, separated by commas; one that fits is
	// enough. It is called for every webhook and must be quick.
	// Nil: not checked. A function that returns nothing refuses everyone.
	SigningKeys func() string

	// SignatureHeader carries the signature, in hex or base64, and HMAC made it.
	SignatureHeader string
	HMAC            signature.HMAC

	// Hosts says which Host headers are answered. Nil: any. It is for a gate that only this machine can
	// reach, and that has no check: a browser on this machine can reach it for every page that it shows.
	Hosts *guard.Hosts

	// Rules say which event types are accepted, including those of SyncTypes, and what a webhook
	// must look like.
	Rules *content.Rules

	// SyncTypes are event types that ask the receiver a question. The gate sends such a webhook
	// once, and never stores or deduplicates it. The receiver's status, Content-Type and body are
	// the answer to the sender.
	SyncTypes []string

	// MaxBody is the largest body to accept, in bytes.
	MaxBody int64

	// DedupSize is how many idle lanes are remembered.
	DedupSize int

	// DedupWindow is how long after it was accepted a snapshot counts as held by the
	// receiver. Zero: every webhook is delivered.
	DedupWindow time.Duration

	// Receivers take the webhooks. A webhook whose platform has no receiver is invalid, unless
	// StoreUnclaimed is set.
	Receivers *receiver.Set

	// Tries is how often the gate tries to deliver a webhook at most.
	Tries int

	// MaxInflight is how many webhooks may be in progress at once; further ones get 503. Each
	// receiver may use an equal share.
	MaxInflight int

	// Store, if set, stores every webhook that has passed the checks, except questions. It is
	// responsible for the delivery from then on: the gate's own lanes, DedupSize, DedupWindow and
	// Tries are not used. Store returns the webhook-id of the snapshot that w duplicates, or an
	// empty string. An error means that w is not stored, and that the sender should send it again.
	Store func(w *Webhook) (duplicateOf string, err error)

	// StoreUnclaimed passes webhooks whose platform has no receiver to Store, instead of rejecting
	// them: entitlements are answered from them, too. Questions without a receiver are still
	// invalid.
	StoreUnclaimed bool

	// Invalid is called for each Invalid, before the sender gets its answer. It stores the webhook and returns
	// its id, the number that people type; zero: it has not stored it. It must not take longer than Store may take.
	// If there is a Store, and Invalid has not stored the webhook, the sender should send it again. May be nil.
	Invalid func(*Invalid) (id int64)

	// Missed is called for each change that got a 5xx although its sender passed every check, a minute later
	// unless it came in meanwhile: the service sends it a second time. at is when it arrived first. May be nil.
	Missed func(at time.Time)

	// UnknownType is called for each webhook of a type that Rules do not accept. May be nil.
	UnknownType func(typ string)

	// StoodStill says whether usher stood still until after this moment. Nil: it never does.
	StoodStill func(since time.Time) bool

	// Log gets one line for each webhook and one for each failed try. The lines contain no secrets
	// and no payloads.
	Log *slog.Logger

	// Answered is called for each request, before the sender gets the answer: when the sender has
	// it, the metrics must include it. So Answered must be quick. May be nil.
	Answered func(Outcome)
}

// New makes a Gate.
func New(cfg Config) *Gate {
	shares := len(cfg.Receivers.All())
	if cfg.Store != nil {
		shares++ // for the webhooks that go to the inbox; only questions wait for a receiver
	}
	g := &Gate{
		cfg:     cfg,
		share:   max(1, cfg.MaxInflight/shares),
		jitter:  rand.N[time.Duration],
		parsing: make(chan struct{}, runtime.GOMAXPROCS(0)),
		waiting: make(map[*receiver.Receiver]int),
		bodies:  bodies{limit: int64(cfg.MaxInflight) * min(cfg.MaxBody, math.MaxInt64/int64(max(1, cfg.MaxInflight)))},
	}
	g.missed.report = cfg.Missed
	g.deliveries, g.cancel = context.WithCancel(context.Background())
	if cfg.Store == nil {
		g.lanes = newPassThrough(cfg.DedupSize, cfg.DedupWindow, g.deliver)
	}
	return g
}
