package inbox

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/inbox/postgres"
	"usher/internal/inbox/sqlite"
	"usher/internal/lane"
)

// An Address says where an inbox is. ParseAddress makes it.
type Address struct {
	path     string
	database *postgres.Address
}

// ParseAddress reads file:/path or postgres://….
func ParseAddress(text string) (*Address, error) {
	if path, ok := strings.CutPrefix(text, "file:"); ok {
		if path == "" {
			return nil, errors.New("it has no path")
		}
		return &Address{path: path}, nil
	}
	if !strings.HasPrefix(text, "postgres://") && !strings.HasPrefix(text, "postgresql://") {
		return nil, errors.New("it begins with neither file: nor postgres://")
	}
	database, err := postgres.Parse(text)
	return &Address{database: database}, err
}

// Shared says whether several replicas can use the inbox at this address.
func (a *Address) Shared() bool { return a.database != nil }

// HasPassword says whether a password is part of the address.
func (a *Address) HasPassword() bool { return a.database != nil && a.database.HasPassword() }

// Config configures an Inbox. Fields are required unless they say what their zero value means.
type Config struct {
	Address  *Address
	Password func() string // the database's password; nil: none, or the one in the address

	lane.Rules // what decides about a tenant's webhooks

	// Content is what the gate checks: what a reconcile takes in must fit it, too. Nil: the built-in rules.
	Content *content.Rules
	// MaxBody is the longest body that the gate takes in; so a line of reconcile may be as long. Zero: any.
	MaxBody int64
	// ReadOnly says that this process has no gate: it takes nothing in, and needs to write nothing by itself. So a
	// role that may only SELECT is enough, and a database that may only be read. What people ask it to write, it
	// tries.
	ReadOnly bool
	// GateUp says whether this process has a gate that takes webhooks now. Nil: it has no gate.
	GateUp func() bool
	// Delivered is called for each webhook that was accepted, with the receiver's name and the time since the webhook was
	// received, or was last redelivered by hand. May be nil.
	Delivered func(receiver string, after time.Duration)
	// Changed is called with a tenant's code when its last snapshot has changed, or may have, and before any caller gets
	// an answer that depends on it. An empty code means any tenant. May be nil.
	Changed func(tenant string)

	Limits Limits // zero: DefaultLimits

	// ClockOffset, for tests, is added to the database's clock. Nil: nothing is.
	ClockOffset func() time.Duration
}

// Limits bound what is kept of webhooks that are finished or invalid, what is in memory, and what one transaction does.
type Limits struct {
	Finished      int
	FinishedBytes int64
	FinishedAge   time.Duration

	Invalid      int
	InvalidBytes int64
	InvalidAge   time.Duration

	ActionAge time.Duration

	AlwaysCounted int // up to this many rows are counted whenever Stats is called after a change

	Bodies    int64 // of large bodies that are delivered; see courier.holdBody
	PageBytes int64 // of webhooks that a list holds at once: ten people may look at ten lists
}

// DefaultLimits are the documented limits.
var DefaultLimits = Limits{
	Finished: 10_000, FinishedBytes: 256 << 20, FinishedAge: 7 * 24 * time.Hour,
	Invalid: 1_000, InvalidBytes: 64 << 20, InvalidAge: 30 * 24 * time.Hour,
	ActionAge: 90 * 24 * time.Hour, AlwaysCounted: 10_000,
	Bodies: 64 << 20, PageBytes: 4 << 20,
}

var builtInRules = sync.OnceValue(func() *content.Rules {
	rules, err := content.NewRules([]string{content.TenantProvisioningChange}, nil)
	if err != nil {
		panic(err)
	}
	return rules
})

func openEngine(cfg Config) (engine.Engine, error) {
	a := cfg.Address
	if a.database != nil {
		if a.database.Unencrypted() {
			cfg.Log.Warn("others could read or change what usher sends to the inbox's database: " +
				"set sslmode=verify-full in USHER_WEBHOOK_INBOX")
		}
		return postgres.Open(a.database, cfg.Password, cfg.Log)
	}
	e, err := sqlite.Open(a.path, cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.path, err)
	}
	return e, nil
}

// Check says whether the inbox can be reached and written, or only read, for 'usher check'. It does not open a file
// that a running usher has.
func Check(a *Address, password func() string, readOnly bool) error {
	if a.database != nil {
		return postgres.Check(a.database, password, readOnly)
	}
	if err := sqlite.Check(a.path); err != nil {
		return fmt.Errorf("%s: %w", a.path, err)
	}
	return nil
}

var (
	// ErrInUse says that another usher has the file.
	ErrInUse = sqlite.ErrInUse
	// ErrDoubt says that nobody knows whether something was done.
	ErrDoubt = engine.ErrDoubt
)
