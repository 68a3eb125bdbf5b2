// Package inbox keeps webhooks safe until their receiver has taken them.
//
//	store/     the rows, and every decision about them
//	sqlite/    the engine in a file, for one usher
//	postgres/  the engine that replicas share
//
// The inbox stores a webhook before its sender gets 200 (Keep), and the courier delivers it (Run). The courier decides when to
// try. Everything else is decided in the store's transactions: which process may deliver a tenant's webhooks, and what the
// outcome of a try changes.
package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"usher/internal/inbox/postgres"
	"usher/internal/inbox/sqlite"
	"usher/internal/inbox/store"
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

// Config configures an Inbox.
type Config struct {
	Address  *Address
	Password func() string // the database's password; nil: none, or the one in the address
	Store    store.Config  // New sets its engine and courier
	// Delivered is called for each webhook that was accepted, with the receiver's name and the time since the webhook was
	// received, or was last sent again by hand. May be nil.
	Delivered func(receiver string, after time.Duration)
}

// An Inbox keeps webhooks and delivers them.
type Inbox struct {
	*store.Store // for what people see and do
	courier      *courier
	log          *slog.Logger
}

// Open opens the inbox. Run delivers the webhooks that wait there.
func Open(cfg Config) (*Inbox, error) {
	engine, err := open(cfg)
	if err != nil {
		return nil, err
	}
	return New(engine, cfg), nil
}

func open(cfg Config) (store.Engine, error) {
	a, log := cfg.Address, cfg.Store.Log
	if a.database != nil {
		if a.database.Unencrypted() {
			log.Warn("others could read or change what usher sends to the inbox's database: set sslmode=verify-full in USHER_WEBHOOK_INBOX")
		}
		return postgres.Open(a.database, cfg.Password, log)
	}
	engine, err := sqlite.Open(a.path, log)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.path, err)
	}
	return engine, nil
}

// New makes an inbox on an open engine.
func New(engine store.Engine, cfg Config) *Inbox {
	c := newCourier(cfg)
	cfg.Store.Engine = engine
	if cfg.Store.Receivers != nil {
		cfg.Store.Courier = c
	}
	c.store = store.Open(cfg.Store)
	c.paused = c.store.Paused
	return &Inbox{Store: c.store, courier: c, log: cfg.Store.Log}
}

// Check says whether the inbox can be reached and written, for 'usher check'. It does not open a file that a running usher has.
func Check(a *Address, password func() string) error {
	if a.database != nil {
		return postgres.Check(a.database, password)
	}
	if err := sqlite.Check(a.path); err != nil {
		return fmt.Errorf("%s: %w", a.path, err)
	}
	return nil
}

// ErrInUse says that another usher has the file.
var ErrInUse = sqlite.ErrInUse

// answerWithin is the longest time that a sender waits for the inbox.
const answerWithin = 10 * time.Second

// Keep stores a webhook for its receiver; see webhookgate.Config.Keep.
func (i *Inbox) Keep(w *webhookgate.Webhook) (duplicateOf string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	a := i.Store.Add(ctx, w)
	return a.DuplicateOf, a.Err
}

// Run delivers until ctx ends. Then deliveries that have begun may finish, until hard ends.
func (i *Inbox) Run(ctx, hard context.Context) { i.courier.run(ctx, hard) }

// ReceiverStats are the figures of one receiver.
type ReceiverStats struct {
	store.Figures
	Down      bool // the receiver seems to be down, as this replica sees it
	TakesNone bool // webhooks fail, and the receiver has accepted none lately
}

// Stats are the figures of the whole inbox, and of each receiver. The receiver "" has the webhooks that no receiver takes.
type Stats struct {
	store.Stats
	Receivers map[string]ReceiverStats
	Unknown   bool // the store can't be read, and the figures mean nothing
}

// Stats counts webhooks.
func (i *Inbox) Stats() Stats {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	st, err := i.Store.Stats(ctx)
	s := Stats{Stats: st, Receivers: make(map[string]ReceiverStats), Unknown: err != nil}
	for _, rc := range i.courier.receivers.All() {
		s.Receivers[rc.Name] = i.courier.stats(rc)
	}
	for name, f := range st.ByReceiver {
		if _, known := s.Receivers[name]; !known {
			name = "" // it is gone from the settings
		}
		r := s.Receivers[name]
		r.Pending, r.Parked, r.Missed, r.Refused = r.Pending+f.Pending, r.Parked+f.Parked, r.Missed+f.Missed, r.Refused+f.Refused
		r.Oldest = max(r.Oldest, f.Oldest)
		s.Receivers[name] = r
	}
	return s
}

// Refuse stores a webhook that was refused, and says whether that was possible; see webhookgate.Config.Refused. The sender's
// answer does not depend on it.
func (i *Inbox) Refuse(r *webhookgate.Refusal) bool {
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	err := i.Store.Refuse(ctx, r)
	if err != nil {
		i.log.Error("cannot store a refused webhook", "webhook", r.ID, "err", err)
	}
	return err == nil
}
