package webhookgate

import (
	"context"
	"log/slog"
	"time"

	"usher/internal/content"
	"usher/internal/guard"
	"usher/internal/receiver"
)

// Config is what a Gate needs. A webhook must pass every check that it configures. Package settings
// knows the defaults and has checked every field; the gate does not check them again.
type Config struct {
	// Path is where webhooks are posted. It is compared exactly as it was sent, escapes
	// included: nothing is cleaned or redirected.
	Path string

	// Credentials are what senders must have. Any of the tokens is accepted, and so is a signature with any of
	// the keys. What is nil is not checked. A function that returns none, or only empty ones, refuses everyone:
	// a lost secret never opens the gate.
	receiver.Credentials

	// Hosts says which Host headers are answered. Nil: any. It is for a gate that only this machine can
	// reach, and that has no check: a browser on this machine can reach it for every page that it shows.
	Hosts *guard.Hosts

	// Rules say which event types are accepted, beside SyncTypes, and what a webhook must look like.
	Rules *content.Rules

	// SyncTypes are event types that ask the receiver a question. The gate sends such a webhook
	// once, and never stores or deduplicates it. The receiver's status, Content-Type and body are
	// the answer to the sender. A question needs nothing but its type.
	SyncTypes []string

	// MaxBody is the largest body to accept, in bytes.
	MaxBody int64

	// AnswerWithin is how long a sender waits for its answer at most. Zero: for ever.
	AnswerWithin time.Duration

	// DedupSize is how many idle lanes are remembered.
	DedupSize int

	// DedupWindow is how long after it was accepted a snapshot counts as held by the
	// receiver. Zero: every webhook is delivered.
	DedupWindow time.Duration

	// Receivers take the webhooks. A webhook whose platform has no receiver is invalid, unless
	// StoreUnclaimed is set.
	Receivers *receiver.Set

	// PlatformsOf returns the platforms on which usher knows a tenant. The gate asks it about a question that
	// names no platform, if there are several receivers. Nil: usher remembers no tenants.
	PlatformsOf func(ctx context.Context, tenant string) ([]string, error)

	// Tries is how often the gate tries to deliver a webhook at most.
	Tries int

	// MaxInflight is how many webhooks may be in progress at once; further ones get 503. Each
	// receiver may use an equal share. Questions have as many places of their own.
	MaxInflight int

	// Store, if set, stores every webhook that has passed the checks, except questions. It is
	// responsible for the delivery from then on: the gate's own lanes, DedupSize, DedupWindow and
	// Tries are not used. Store returns the webhook-id of the snapshot that w duplicates, or an
	// empty string. An error means that w is not stored, will not be stored later, and that the sender should
	// send it again. Store returns when ctx ends.
	Store func(ctx context.Context, w *Webhook) (duplicateOf string, err error)

	// StoreUnclaimed passes webhooks whose platform has no receiver to Store, instead of rejecting
	// them: entitlements are answered from them, too.
	StoreUnclaimed bool

	// Invalid is called for each Invalid, before the sender gets its answer. It stores the webhook and returns
	// its id, the number that people type; zero: it has not stored it. It returns when ctx ends.
	// If there is a Store, and Invalid has not stored the webhook, the sender should send it again. May be nil.
	Invalid func(ctx context.Context, r *Invalid) (id int64)

	// Missed is called for each change that got a 5xx although its sender passed every check, a minute later
	// unless it came in meanwhile: the service sends it a second time. at is when it arrived first. May be nil.
	Missed func(at time.Time)

	// UnknownType is called for each webhook of a type that is not accepted. May be nil.
	UnknownType func(typ string)

	// Log gets one line for each webhook and one for each failed try. The lines contain no secrets
	// and no payloads.
	Log *slog.Logger

	// Answered is called for each request, before the sender gets the answer: when the sender has
	// it, the metrics must include it. So Answered must be quick. May be nil.
	Answered func(Outcome)
}
