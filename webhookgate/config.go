package webhookgate

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"usher/internal/content"
	"usher/internal/guard"
	"usher/internal/receiver"
)

// Config is what a Gate needs. Package settings knows the defaults and has checked every field.
type Config struct {
	// Path is where webhooks are posted. It is compared exactly as it was sent, escapes
	// included: nothing is cleaned or redirected.
	Path string

	// Credentials are what senders must have: any of the tokens, and a signature with any of the keys. What is nil is
	// not checked. A function that returns none, or only empty ones, refuses everyone: a lost secret never opens the gate.
	receiver.Credentials

	// Hosts says which Host headers are answered. Nil: any. It is for a gate on loopback without a check: a browser on
	// this machine can reach it for every page that it shows.
	Hosts *guard.Hosts

	// Rules say which event types are accepted, beside SyncTypes, and what a webhook must look like.
	Rules *content.Rules

	// SyncTypes are event types that ask the receiver a question. Such a webhook needs nothing but its type. It is sent
	// once, and never stored or deduplicated. The receiver's status, Content-Type and body are the answer to the sender.
	SyncTypes []string

	MaxBody      int64         // in bytes
	AnswerWithin time.Duration // how long a sender waits for its answer at most; zero: for ever
	DedupSize    int           // how many idle lanes are remembered
	DedupWindow  time.Duration // how long the receiver counts as holding what it has accepted; zero: there is no dedup
	Tries        int           // of one delivery, at most

	// MaxInflight is how many webhooks may be in progress at once; further ones get 503. Each
	// receiver may use an equal share, but at least one. Questions have as many places of their own.
	MaxInflight int

	// Receivers take the webhooks. A webhook whose platform has no receiver is invalid, unless StoreUnclaimed is set:
	// then it is passed to Store, because entitlements are answered from it, too.
	Receivers      *receiver.Set
	StoreUnclaimed bool

	// PlatformsOf returns the platforms on which usher knows a tenant. The gate asks it about a question that
	// names no platform, if there are several receivers. Nil: usher remembers no tenants.
	PlatformsOf func(ctx context.Context, tenant string) ([]string, error)

	// Store, if set, stores every webhook that has passed the checks, except questions. It is responsible for the
	// delivery from then on: the gate has no lanes of its own. Store returns the webhook-id of the snapshot that w
	// duplicates, or an empty string. An error means that w is not stored, will not be stored later, and that the
	// sender should send it again. Store returns when ctx ends.
	Store func(ctx context.Context, w *Webhook) (duplicateOf string, err error)

	// Invalid is called for each Invalid, before the sender gets its answer. It stores the webhook and returns its id,
	// the number that people type; zero: it has not stored it, and if there is a Store, the sender should send it
	// again. It returns when ctx ends. May be nil.
	Invalid func(ctx context.Context, r *Invalid) (id int64)

	// Missed is called for each change that got a 5xx although its sender passed every check, a minute later
	// unless it came in meanwhile: the service sends it a second time. at is when it arrived first. May be nil.
	Missed func(at time.Time)

	// UnknownType is called for each webhook of a type that is not accepted. May be nil.
	UnknownType func(typ string)

	// Log gets one line for each webhook and one for each failed try, without secrets and payloads.
	Log *slog.Logger

	// Answered is called for each request, before the sender gets the answer: when the sender has
	// it, the metrics must include it. So Answered must be quick. May be nil.
	Answered func(Outcome)
}

var (
	// ErrFull is Config.Store's error if the inbox has no room.
	ErrFull = errors.New("the inbox is full")

	// ErrGone is Config.Store's error if the sender's connection has ended before the webhook was stored.
	ErrGone = errors.New("the sender has gone: it will send this webhook again, perhaps after a newer one")
)

// An Outcome is the result of one request, to be shown to people.
type Outcome struct {
	At          time.Time
	Took        time.Duration
	From        netip.Addr      // the other end of the connection; invalid if it is a unix socket
	Status      int             // of the answer to the sender
	Decision    string          // forwarded, queued, duplicate, rejected or failed
	Why         string          // why it was rejected or failed
	Faults      []content.Fault // the first faults of the body
	DuplicateOf string          // the webhook-id of the snapshot that the receiver already holds
	Tries       int             // how often usher tried the receiver while the sender waited
	Receiver    int             // the receiver's status if the last try failed; zero: no answer, or no failure
	Webhook     *Webhook        // nil if a check failed
	Invalid     *Invalid        // not nil if only the content is invalid
	Stored      bool            // the inbox has the webhook
	Question    bool            // it asks the receiver a question
}

// isQuestion reports whether webhooks of this type are questions.
func (c *Config) isQuestion(typ string) bool { return slices.Contains(c.SyncTypes, typ) }
