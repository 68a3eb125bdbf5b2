// Package inbox keeps webhooks safe until their receiver has accepted them. Before a sender gets 200 its webhook is a
// row in a database, in a file or shared by replicas.
//
// A lane is the queue of one tenant, and a row, too. The transaction that has locked the lane's row decides about it.
// All decisions are methods of package lane, in plain Go. This package brings lanes and the database together:
//
//	inbox.go        an inbox: its configuration, begin and end
//	names.go        tenants as people write them
//	rows.go         lanes, webhooks and others as rows
//	health.go       whether the database can be written, and what its clock says
//	writer.go       one goroutine gathers operations, and runs one transaction for all that have arrived
//	transaction.go  a transaction: locks and reads lanes, lets operations decide, and writes what lanes remember
//	courier.go      which lanes are claimed, who gets a place, and what comes of a try
//	ops.go          what the gate hands in, and what people do; actions.go: who did what; pause.go: who may not deliver
//	reconcile.go    a run of 'usher reconcile'; pass.go: a pass over a list, line by line; catchup.go: over the webhook log
//	missed.go       webhooks that got a 5xx, and times without a gate
//	feed.go         tells programs that keep a copy what has changed
//	views.go        what people see: webhooks; tenants.go: tenants; figures.go: counts, and how much room there is
//	history.go      what was wrong, from when to when, and who says it
//	retention.go    what is finished goes after a while
//
// engine/ says what a database must do; sqlite/ and postgres/ do it, and know nothing about webhooks.
package inbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/inbox/postgres"
	"usher/internal/inbox/sqlite"
	"usher/internal/lane"
	"usher/webhookgate"
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

// An Inbox keeps webhooks and delivers them.
type Inbox struct {
	cfg     Config
	engine  engine.Engine
	courier *courier
	owner   []byte // a random id of this process, for the lanes that it has leased

	ops        chan *op        // to the writer
	claimNow   chan struct{}   // to the writer: there may be lanes to claim
	gateIsUp   chan struct{}   // to the writer: the gate is up
	retries    chan struct{}   // to the courier: a try has failed
	countNow   chan struct{}   // to runCounter: somebody has found the figures too old
	browsing   chan struct{}   // has an element for each connection with which somebody browses
	opened     chan struct{}   // closed when the writer has reached the database, or failed to, once
	closed     chan struct{}   // closed when the writer has ended
	run        context.Context // ends with Close
	stop       context.CancelFunc
	background sync.WaitGroup // goroutines beside the writer

	// These have locks of their own.
	health     health
	clock      clockOffset
	pauses     pauses
	feed       feed
	unreadable unreadable

	mu      sync.Mutex // guards what follows
	counted *counted   // the last figures
	changes int64      // how often this process has changed something that must show in them at once
	room    room
	heldUp  []HeldUp // the last that usher has read
	missed  Missed   // what is not stored yet, by our clock

	// Only the writer uses these.
	idle           bool      // there was no transaction since the last tick
	nextCorrection time.Time // when to look for times that come from a clock that was set back since
	nextSweep      time.Time // not before this time it deletes more of what was kept for too long
	lastFullSweep  time.Time // when it last deleted everything that is too old
	heart          heartbeat

	unserved         string      // only the courier uses it: the platforms that were last logged because no receiver takes them
	asked            atomic.Bool // the gate has said that it is up, and knows whether there was an outage before
	sweepSoon        atomic.Bool // there may be finished webhooks to delete
	sweepInvalidSoon atomic.Bool // there may be invalid webhooks to delete
}

// Open opens the inbox. Run delivers the webhooks that wait there.
func Open(cfg Config) (*Inbox, error) {
	e, err := openEngine(cfg)
	if err != nil {
		return nil, err
	}
	return New(e, cfg), nil
}

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

// New makes an inbox on an engine whose tables exist.
func New(e engine.Engine, cfg Config) *Inbox {
	if cfg.Limits == (Limits{}) {
		cfg.Limits = DefaultLimits
	}
	if cfg.Content == nil {
		cfg.Content = builtInRules()
	}
	if cfg.Changed == nil {
		cfg.Changed = func(string) {}
	}
	s := &Inbox{
		cfg:    cfg,
		engine: e,
		owner:  make([]byte, 16),

		ops:      make(chan *op, 1024),
		claimNow: make(chan struct{}, 1),
		gateIsUp: make(chan struct{}, 1),
		retries:  make(chan struct{}, 1),
		countNow: make(chan struct{}, 1),
		browsing: make(chan struct{}, engine.MaxReaders/2),
		opened:   make(chan struct{}),
		closed:   make(chan struct{}),

		feed:       newFeed(),
		unreadable: unreadable{lanes: make(map[webhookgate.LaneName]bool)},
		counted:    &counted{next: make(chan struct{})},
		room:       room{everAdded: make(map[string]int64), refused: make(map[string]int64)},
	}
	s.courier = newCourier(s)
	rand.Read(s.owner)
	s.pauses.reading = make(chan struct{}, 1)
	s.clock.start = time.Now()
	s.run, s.stop = context.WithCancel(context.Background())
	go s.runWriter()
	s.background.Go(s.refreshPauses)
	s.background.Go(s.runCounter)
	if e.Shared() {
		s.background.Go(s.watch)
	}
	return s
}

var builtInRules = sync.OnceValue(func() *content.Rules {
	rules, err := content.NewRules([]string{content.TenantProvisioningChange}, nil)
	if err != nil {
		panic(err)
	}
	return rules
})

// Run delivers until ctx ends. Then deliveries that have begun may finish, until hard ends.
func (s *Inbox) Run(ctx, hard context.Context) {
	s.courier.run(ctx, hard)
}

// Close ends the writer, after it has written what was submitted, and closes the engine.
func (s *Inbox) Close() error {
	s.stop()
	<-s.closed
	s.background.Wait()
	return s.engine.Close()
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

// Shared says whether other replicas may use the inbox, too.
func (s *Inbox) Shared() bool { return s.engine.Shared() }
