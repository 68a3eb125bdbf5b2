// Package inbox keeps webhooks safe until their receiver has taken them.
//
//	record/   a kept webhook: its parts, how it stands, how both are written down
//	courier/  when and how to try: lanes, backoff, breaker, parking
//	file/     the embedded store, one bbolt file
//	shared/   the store on NATS JetStream, for several replicas
//
// A store makes a webhook durable before its sender is told 200, and remembers of each
// lane what its receiver holds. The courier delivers what a store gives it leave to.
package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/file"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

// What a webhook in the inbox is; see the package record.
type (
	Entry          = record.Entry
	Status         = record.Status
	State          = record.State
	Attempt        = record.Attempt
	Item           = record.Item
	Previous       = record.Previous
	Filter         = record.Filter
	OverwriteError = record.OverwriteError
	Pause          = record.Pause
	TenantName     = record.TenantName
)

// The states of a webhook; see the package record.
const (
	Waiting    = record.Waiting
	Delivered  = record.Delivered
	Parked     = record.Parked
	Superseded = record.Superseded
	Discarded  = record.Discarded
	Kept       = record.Kept
)

// Why something is not done; see the packages record and file.
var (
	ErrNotFound = record.ErrNotFound
	ErrFinished = record.ErrFinished
	ErrKept     = record.ErrKept
	ErrBusy     = record.ErrBusy
	ErrFull     = record.ErrFull
	ErrNobody   = record.ErrNobody
	ErrUnsure   = record.ErrUnsure
	ErrInUse    = file.ErrInUse
)

// How tenants are written; see the package record.
var (
	ShowTenant  = record.ShowTenant
	ExactTenant = record.Exact
	ParseTenant = record.ParseTenant
	States      = record.States
)

// Receiver is one who takes webhooks. The others are what the courier knows of the moment; see the
// package courier.
type (
	Receiver      = courier.Receiver
	HeldUp        = courier.HeldUp
	ReceiverStats = courier.ReceiverStats
	Figures       = courier.Figures
)

// NATS says how servers are reached that keep an inbox for several replicas.
type NATS = servers.NATS

// What an address says; see the packages file and servers.
var (
	IsNATS           = servers.IsNATS
	ParseNATS        = servers.ParseNATS
	ErrUserInAddress = servers.ErrUserInAddress
	CheckFile        = file.Check
)

// Config is what an inbox needs to know.
type Config struct {
	// URL says where webhooks are kept: file:/path. Required without NATS.
	URL string
	// NATS has them kept by a cluster, for several replicas.
	NATS *NATS
	// Receivers are those who take webhooks.
	Receivers []Receiver
	// Route names the receiver of a lane's webhooks; "" or an unknown name: no receiver takes
	// them for now, and they wait. Nil: all go to the first receiver.
	Route func(webhookgate.Lane) string
	// KeepUnclaimed has a webhook kept that nobody takes when it comes: it is never
	// delivered. False: it waits for a receiver.
	KeepUnclaimed bool
	// Attempts and MaxAge are when a webhook is parked. Both required.
	Attempts int
	MaxAge   time.Duration
	// KeepLatest has a snapshot that waits superseded by a newer one of its tenant.
	KeepLatest bool
	// DedupSize is how many lanes' memories are held in memory, where reading one takes a
	// call to a server; those of all are stored. DedupWindow is how long a delivered
	// snapshot counts as held by the receiver; zero turns dedup off. DedupSize is required.
	DedupSize   int
	DedupWindow time.Duration
	// MaxBytes bounds what waits or is parked; beyond it nothing is taken in. Required.
	MaxBytes int64
	// OnSnapshot is told, of each lane, the id of the last snapshot that was taken in
	// for it, all of them once Following says so. w is that snapshot where it came in
	// here, before its sender is answered, and reading it takes a call to a server; else
	// nil, and Snapshot reads it. It must be quick. Nil: nobody wants to know.
	OnSnapshot func(lane webhookgate.Lane, id uint64, w *webhookgate.Webhook)
	// Essence is what stays of a snapshot's body, for Snapshot to read, for as long as there is the tenant. The
	// history has all of it. Nil: all.
	Essence func(body []byte) []byte
	// Delivered is told of each webhook that was accepted: by whom, and how long after it was
	// taken in, or was last sent again by hand. May be nil.
	Delivered func(receiver string, after time.Duration)
	// LeaseChanged is told when this replica begins to deliver a part of a shared inbox
	// (taken), and when it ends: by itself (given_back), or because its lease ran out
	// (lost). May be nil.
	LeaseChanged func(change string)
	// OnErase is told that a lane was erased: what came before the id upTo is gone. Nil: as
	// OnSnapshot.
	OnErase func(lane webhookgate.Lane, upTo uint64)
	// OnLost is told that the servers of a shared inbox have lost the last messages: nothing that OnSnapshot
	// was told counts any more, and it is told all that is left. Nil: as OnSnapshot.
	OnLost func()
	// Log is told what becomes of each webhook. Required.
	Log *slog.Logger

	pause  func(time.Duration) time.Duration            // tests' own: the courier's
	update func(*bbolt.DB, func(*bbolt.Tx) error) error // and the file store's
}

// store is what must survive the process, or be agreed on by several. What is said of a
// method where it is implemented holds for both stores.
type store interface {
	Append(w *webhookgate.Webhook, kept bool) (duplicateOf string, err error)
	Redeliver(id uint64, force bool) error
	Discard(id uint64) error
	Forget(platform *string, tenant string) (int, error)
	Erase(platform, tenant string) (int, error)
	Platforms(tenant string) ([]string, error)
	Pause(record.Pause) error
	Resume(record.Pause) (bool, error)
	Paused() []record.Pause
	List(record.Filter) ([]record.Entry, error)
	Show(id uint64) (*record.Item, error)
	Snapshot(context.Context, webhookgate.Lane) (*webhookgate.Webhook, uint64, error)
	Following() (stale time.Duration, ready bool)
	Run(ctx, hard context.Context)
	Delivers() bool
	Usage() (used, limit int64)
	Err() error
	Close() error
}

// Inbox keeps webhooks and delivers them.
type Inbox struct {
	store
	courier       *courier.Courier
	keepUnclaimed bool
}

// Open opens the store. What waits there is delivered by Run.
func Open(cfg Config) (*Inbox, error) {
	c := courier.New(courier.Config{
		Receivers: cfg.Receivers, Route: cfg.Route, Attempts: cfg.Attempts, MaxAge: cfg.MaxAge,
		KeepLatest: cfg.KeepLatest, Delivered: cfg.Delivered, Log: cfg.Log, Pause: cfg.pause,
	})
	s, err := openStore(cfg, c)
	if err != nil {
		return nil, err
	}
	return &Inbox{store: s, courier: c, keepUnclaimed: cfg.KeepUnclaimed}, nil
}

func openStore(cfg Config, c *courier.Courier) (store, error) {
	if cfg.NATS != nil {
		return shared.Open(shared.Config{
			NATS: cfg.NATS, Route: c.ReceiverOf, Idle: len(cfg.Receivers) == 0, DedupSize: cfg.DedupSize, DedupWindow: cfg.DedupWindow,
			MaxBytes: cfg.MaxBytes, OnSnapshot: cfg.OnSnapshot, OnErase: cfg.OnErase, OnLost: cfg.OnLost, Essence: cfg.Essence, LeaseChanged: cfg.LeaseChanged, Log: cfg.Log,
		}, c)
	}
	path, ok := strings.CutPrefix(cfg.URL, "file:")
	if !ok || path == "" {
		return nil, fmt.Errorf("unknown inbox %q: use file:/path or nats://host", cfg.URL)
	}
	return file.Open(file.Config{
		Path: path, DedupWindow: cfg.DedupWindow, MaxBytes: cfg.MaxBytes,
		OnSnapshot: cfg.OnSnapshot, OnErase: cfg.OnErase, Essence: cfg.Essence, Log: cfg.Log, Update: cfg.update,
	}, c)
}

// Keep takes a webhook in; see webhookgate.Config.Keep.
func (i *Inbox) Keep(w *webhookgate.Webhook) (duplicateOf string, err error) {
	return i.Append(w, i.keepUnclaimed && i.courier.ReceiverOf(w.Lane) == "")
}

// Platforms returns those on which a tenant is known, be it only for a pause of its deliveries.
func (i *Inbox) Platforms(tenant string) ([]string, error) {
	all, err := i.store.Platforms(tenant)
	for _, p := range i.Paused() {
		if p.Tenant == tenant && !slices.Contains(all, p.Platform) {
			all = append(all, p.Platform)
		}
	}
	return all, err
}

// HeldUp returns the tenants whose webhooks wait behind one that was tried in vain; of those that
// this replica delivers.
func (i *Inbox) HeldUp() []HeldUp { return i.courier.HeldUp() }

// Stats are figures of the moment, of what this replica delivers.
type Stats struct {
	Pending   int           // waiting or being delivered
	Oldest    time.Duration // age of the oldest of them
	Parked    int
	Receivers map[string]courier.ReceiverStats // by name; "" has what no receiver takes right now

	Paused      []Pause // what is held back by hand
	Used, Limit int64   // bytes that wait or are parked, and that may
	Delivering  bool    // this replica delivers
	Unknown     bool    // the store can't be read: the figures say nothing
}

// Stats counts.
func (i *Inbox) Stats() Stats {
	c := i.courier.Stats()
	s := Stats{Pending: c.Pending, Oldest: c.Oldest, Parked: c.Parked, Receivers: c.Receivers, Delivering: i.Delivers()}
	s.Used, s.Limit = i.Usage()
	s.Paused = i.Paused()
	s.Unknown = !s.Delivering && i.Err() != nil
	return s
}
