// Package inbox keeps webhooks safe until their receiver has accepted them. Before a sender gets 200 its webhook is a
// row in a database, in a file or shared by replicas.
//
// A lane is the queue of one tenant, and a row, too. The transaction that has locked the lane's row decides about it.
// All decisions are methods of package lane, in plain Go. This package brings lanes and the database together:
//
//	inbox.go      what the gate, the commands and the admin port see
//	work.go       the writer: one goroutine gathers work, and runs one transaction for all that has arrived
//	turn.go       a transaction: loads lanes, answers their questions, saves them
//	rows.go       a lane and a webhook as rows; names.go: tenants as people write them
//	lease.go      asks for leases, and saves what came of them
//	courier.go    when to try, and whom     route.go    which receiver a lane has
//	act.go        what people do            views.go    what people see
//	actions.go    who did what              export.go   save and restore
//	invalid.go    what cannot be taken in   room.go     who may still take how much room
//	reconcile.go  a run of 'usher reconcile', and its passes over a list; compare.go: what the whole list says;
//	              finding.go: what was found of a tenant
//	changes.go    tells programs that keep a copy what has changed
//	missed.go     what usher may have missed: webhooks that got a 5xx, and outages
//	history.go    what was wrong, from when to when; who speaks for all replicas
//	retention.go  what is finished goes after a while
//	health.go     whether the database can be written, and what its clock says
//	engine/       what a database must do; sqlite/ and postgres/ do it, and know nothing about webhooks
package inbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/inbox/postgres"
	"usher/internal/inbox/sqlite"
	"usher/internal/lane"
	"usher/internal/snapshot"
	"usher/internal/text"
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

	// MaxBytes bounds the webhooks that wait or are parked. Beyond it nothing is taken in. Receivers and tenants have
	// bounds below it: see Share.
	MaxBytes int64
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
	// Missed gets the tenants whose webhooks could not be stored. The inbox moves them into its database. Nil: it
	// makes one.
	Missed *webhookgate.Missed
	// Delivered is called for each webhook that was accepted, with the receiver's name and the time since the webhook was
	// received, or was last redelivered by hand. May be nil.
	Delivered func(receiver string, after time.Duration)
	// Changed is called with a tenant's code when its last snapshot has changed, or may have, and before any caller gets
	// an answer that depends on it. An empty code means any tenant. May be nil.
	Changed func(tenant string)

	Limits    Limits        // zero: DefaultLimits
	LeaseTime time.Duration // only if replicas share the database; zero: DefaultLeaseTime

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

	// Bodies bounds the bytes of webhooks that the courier holds. Each receiver has its share: one that hangs with
	// large webhooks must not keep the others waiting. Beyond its share a receiver may still get one webhook at a
	// time.
	Bodies     int64
	PageBytes  int64 // of webhooks that a list holds at once: ten people may look at ten lists
	ChunkBytes int   // of an import that go to the database together
	Step       int   // how many rows one transaction brings into line with their lane's mark, or lanes with their receiver
}

// DefaultLimits are the documented limits.
var DefaultLimits = Limits{
	Finished: 10_000, FinishedBytes: 256 << 20, FinishedAge: 7 * 24 * time.Hour,
	Invalid: 1_000, InvalidBytes: 64 << 20, InvalidAge: 30 * 24 * time.Hour,
	ActionAge: 90 * 24 * time.Hour, AlwaysCounted: 10_000,
	Bodies: 64 << 20, PageBytes: 4 << 20, ChunkBytes: 8 << 20, Step: 500,
}

// An Inbox keeps webhooks and delivers them.
type Inbox struct {
	cfg       Config
	engine    engine.Engine
	courier   *courier      // nil: this process delivers nothing
	owner     []byte        // a random id of this process, for the lanes that it has leased
	leaseTime time.Duration // how long a lease lasts, by the database's clock

	works      chan *work      // to the writer
	imports    chan *importJob // to the writer
	countNow   chan struct{}   // to runCounter: somebody has found the figures too old
	exporting  chan struct{}   // has an element while somebody exports
	browsing   chan struct{}   // has an element for each connection with which somebody browses
	opened     chan struct{}   // closed when the writer has reached the database, or failed to, once
	closed     chan struct{}   // closed when the writer has ended
	run        context.Context // ends with Close
	stop       context.CancelFunc
	background sync.WaitGroup // goroutines beside the writer

	// These have locks of their own.
	health health
	clock  clockOffset
	pauses pauses

	feed feed

	mu      sync.Mutex // guards what follows
	counted *counted   // the last figures
	changes int64      // how often this process has changed something that must show in them at once
	room    room
	heldUp  []HeldUp // the last that usher has read

	// Only the writer uses these.
	idle          bool      // there was no transaction since the last tick
	nextRepair    time.Time // when to look for times that come from a clock that was set back since
	nextSweep     time.Time // not before this time it deletes more of what was kept for too long
	lastFullSweep time.Time // when it last deleted everything that is too old
	heart         heartbeat
	missedFailed  time.Time // when it last could not store what was missed

	gateIsUp chan struct{} // gets something when the gate is up
	asked    atomic.Bool   // the gate has said that it is up, and knows whether there was an outage before

	sweepSoon        atomic.Bool // there may be finished webhooks to delete
	sweepInvalidSoon atomic.Bool // there may be invalid webhooks to delete
}

const (
	// DefaultLeaseTime is how long a lease lasts if replicas share a database. Its holder stops a fifth earlier,
	// because the clocks of the holder and of the database may run at different speeds, and a request takes some time
	// to reach a receiver.
	DefaultLeaseTime = 10 * time.Second
	// fileLeaseTime is for an inbox in a file, where no other process could take a lane over. At its start usher finds the
	// leases of the last process by their far end, so the end must be far ahead even if the clock was wrong then.
	fileLeaseTime = 100 * 365 * 24 * time.Hour
)

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
	cfg.MaxInvalid = cmp.Or(cfg.MaxInvalid, lane.DefaultMaxInvalid)
	if cfg.Jitter == nil {
		cfg.Jitter = jitter
	}
	if cfg.Missed == nil {
		cfg.Missed = webhookgate.NewMissed()
	}
	s := &Inbox{
		cfg:       cfg,
		engine:    e,
		owner:     make([]byte, 16),
		leaseTime: fileLeaseTime,

		works:     make(chan *work, 1024),
		imports:   make(chan *importJob),
		countNow:  make(chan struct{}, 1),
		exporting: make(chan struct{}, 1),
		browsing:  make(chan struct{}, engine.MaxReaders/2),
		opened:    make(chan struct{}),
		closed:    make(chan struct{}),
		gateIsUp:  make(chan struct{}, 1),

		counted: &counted{next: make(chan struct{})},
		room: room{
			used:      make(map[string]int64),
			everAdded: make(map[string]int64),
			noRoom:    make(map[string]*NoRoom),
		},
	}
	if e.Shared() {
		s.leaseTime = cmp.Or(cfg.LeaseTime, DefaultLeaseTime)
	}
	if cfg.Receivers != nil {
		s.courier = newCourier(s)
	}
	rand.Read(s.owner)
	s.pauses.reading = make(chan struct{}, 1)
	s.clock.start = time.Now()
	s.run, s.stop = context.WithCancel(context.Background())
	go s.runWriter()
	s.background.Go(s.refreshPauses)
	s.background.Go(s.runCounter)
	s.feed = newFeed()
	s.background.Go(s.runTeller)
	if cfg.Receivers != nil && !cfg.ReadOnly {
		s.background.Go(s.routeLanes)
	}
	if !e.Shared() && !cfg.ReadOnly {
		s.background.Go(s.repairSnapshots)
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
	if s.courier == nil {
		<-ctx.Done()
		return
	}
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

// UsableLeaseTime is how long the holder of a lease may deliver, from the moment at which it asked for the lease.
func (s *Inbox) UsableLeaseTime() time.Duration { return s.leaseTime - s.leaseTime/5 }

// answerWithin is the longest time that a sender waits for the inbox.
const answerWithin = 10 * time.Second

// Store stores a webhook for its receiver; see webhookgate.Config.Store.
func (s *Inbox) Store(w *webhookgate.Webhook) (duplicateOf string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	a := s.Add(ctx, w)
	return a.DuplicateOf, a.Err
}

// RecordInvalid stores a webhook that is invalid, and returns its id; zero: that was not possible. See
// webhookgate.Config.Invalid.
func (s *Inbox) RecordInvalid(r *webhookgate.Invalid) int64 {
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	id, err := s.storeInvalid(ctx, r)
	if err != nil {
		s.cfg.Log.Error("cannot store an invalid webhook", "webhook", r.ID, "err", err)
		return 0
	}
	return id
}

// Add takes a webhook in and returns when it is stored durably. When ctx ends first, Add returns an error. Then the
// webhook may have been taken in or not, but it is not taken in later: the sender may have sent a newer one through
// another replica meanwhile.
func (s *Inbox) Add(ctx context.Context, w *webhookgate.Webhook) lane.Answer {
	a := s.takeIn(ctx, arriving(w), work{}, func(t *sqlTurn, l *lane.Lane, in *lane.Incoming) error {
		in.Arrived, in.Came = s.clock.at(w.Received), w.Received
		return t.checkHeard(l, in, w)
	})
	if a.Err != nil && !errors.Is(a.Err, webhookgate.ErrOvertaken) {
		s.cfg.Missed.Add(w.Lane, w.Missed())
	}
	return a
}

// takeIn takes a webhook in, unless check says why not.
func (s *Inbox) takeIn(ctx context.Context, in lane.Incoming, names work, check checkIncoming) lane.Answer {
	if full := s.engine.Full(); full != nil { // the last room is for outcomes
		return lane.Answer{Err: full}
	}
	names.lanes = []webhookgate.LaneName{in.GateName}
	names.numbers, names.bytes = 1, in.Size
	if in.Signed {
		names.ids = []lane.SignedID{{LaneName: in.LaneName, Hash: in.IDHash}}
	}
	type done struct {
		answer lane.Answer
		noted  *Action
	}
	d, err := attempt(ctx, s, names, func(t *sqlTurn) (d done) {
		in, l := in, t.Lanes[in.LaneName]
		first := l.Tail == 0
		if d.answer.Err = check(t, l, &in); d.answer.Err == nil {
			d.answer = l.Receive(&in)
		}
		if d.answer.Err == nil {
			d.noted = names.by.queue(t.tx, t.Now, 1)
			t.Then(func() { s.tellTaken(&in, d.answer, first) })
		}
		return d
	})
	if err != nil {
		return lane.Answer{Err: s.orOutage(ctx, err)}
	}
	names.by.become(d.noted)
	return d.answer
}

// checkIncoming says why a webhook is not taken in.
type checkIncoming func(*sqlTurn, *lane.Lane, *lane.Incoming) error

// tellTaken tells all who have to know, before its sender does, that a webhook was taken in, or is a duplicate. first
// says that it is the first of its tenant.
func (s *Inbox) tellTaken(in *lane.Incoming, a lane.Answer, first bool) {
	if in.Arrived != 0 {
		s.cfg.Missed.Taken(in.GateName, lane.AsDigest(in.Digest), in.Snapshot && !a.SeenBefore, in.Came)
	}
	if in.Snapshot { // also for a duplicate: the original may have come through another replica
		s.cfg.Changed(in.Tenant)
	}
	if in.Snapshot && first {
		s.background.Go(func() { s.warnIfAmbiguous(TenantRef{in.Platform, in.Tenant}) })
	}
	switch {
	case a.Lease != nil:
		s.courier.Deliver(a.Lease)
	case a.Unleased && s.courier != nil:
		s.courier.Wake(in.To)
	}
}

// warnIfAmbiguous logs that new tenants' codes exist on several platforms from now on: who asks what they may use
// must name the platform. Often it is a webhook whose platform was null by mistake.
func (s *Inbox) warnIfAmbiguous(tenants ...TenantRef) {
	names := make([][]string, len(tenants))
	err := s.read(s.run, func(tx engine.Tx) error {
		for n, t := range tenants {
			names[n] = []string{ShowTenant(t.Platform, t.Tenant)}
			tx.Queue("namesakes", func(r engine.Row) error {
				var other string
				err := r.Scan(&other)
				names[n] = append(names[n], ShowTenant(other, t.Tenant))
				return err
			}, t.Tenant, t.Platform)
		}
		return tx.Send()
	})
	if err != nil {
		return
	}
	for _, all := range names {
		if len(all) > 1 {
			sorted := strings.Join(slices.Sorted(slices.Values(all)), ", ")
			s.cfg.Log.Warn("a tenant's code exists on several platforms now: "+
				"questions about what it may use that name no platform are answered 409 AMBIGUOUS",
				"new", text.Clip(all[0], 200), "tenants", text.Clip(sorted, 500))
		}
	}
}

// orOutage returns the error of a piece of work. If ctx ended before the writer had confirmed it, that is the outage,
// if there is one.
func (s *Inbox) orOutage(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	return s.outage()
}

// outage is the error of what the database did not answer in time.
func (s *Inbox) outage() error { return cmp.Or(s.health.lastErr(), errNotInTime) }

var errNotInTime = errors.New("the inbox did not confirm the webhook in time")

// wakeCourier has the courier look for lanes, if there is one.
func (s *Inbox) wakeCourier() {
	if s.courier != nil {
		s.courier.Wake(nil)
	}
}

// arriving reads what the inbox must know of a webhook.
func arriving(w *webhookgate.Webhook) lane.Incoming {
	in := lane.Incoming{
		Webhook:  newWebhook(w),
		GateName: w.Lane,
		To:       w.Receiver,
		Signed:   w.SignedID != "",
		IDHash:   sha256.Sum256([]byte(w.SignedID)),
	}
	if w.Snapshot {
		if in.Brings = w.State; in.Brings == nil { // it does not come from the gate
			in.Brings = snapshot.Read(w.Body).Stored(w.Lane.Platform, w.Lane.Tenant, w.ID)
		}
	}
	return in
}

// snapshotColumns returns the row of a snapshot.
func snapshotColumns(r *snapshot.Stored) []any {
	return []any{r.Tenant, r.Platform, r.Seq, r.Webhook, r.Received.UnixMicro(), r.Name, string(r.Features)}
}

// withoutZero replaces the zero character, which PostgreSQL's text cannot have.
func withoutZero(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }

func scanSeen(r engine.Row) (*lane.SeenID, error) {
	s := new(lane.SeenID)
	name := &s.LaneName
	var hash []byte
	var state int64
	err := r.Scan(&name.Tenant, &name.Platform, &name.Type, &hash, &s.Digest, &s.Seq, &s.At, &state, &s.UUID)
	copy(s.Hash[:], hash)
	s.State = knownState(state)
	return s, err
}

// seenColumns returns the row of a signed id.
func seenColumns(r *lane.SeenID) []any {
	return []any{r.LaneName.Tenant, r.LaneName.Platform, r.LaneName.Type, r.Hash[:], r.Digest, r.Seq, r.At, r.UUID}
}
