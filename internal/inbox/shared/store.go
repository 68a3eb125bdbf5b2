package shared

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/shared/lease"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

// Config is what the store needs to know.
type Config struct {
	// NATS says how to reach the servers. Required.
	NATS *servers.NATS
	// Route names the receiver of a lane's webhooks. Required.
	Route func(webhookgate.Lane) string
	// Idle has this replica deliver nothing: it only takes in, or only reads.
	Idle bool
	// DedupSize is how many lanes' ends are held in memory; all are on the servers.
	// DedupWindow is how long a delivered snapshot counts as held by the receiver; zero
	// turns dedup off. DedupSize is required.
	DedupSize   int
	DedupWindow time.Duration
	// MaxBytes is what may wait or be parked. Required.
	MaxBytes int64
	// OnSnapshot is told, of each lane, the id of the last snapshot that was taken in for it,
	// through whichever replica, and has all of them once Following says so. w is that
	// snapshot where it came through this replica, which is told before its sender; else nil, and
	// Snapshot reads it. It must be quick. Nil: nobody wants to know.
	OnSnapshot func(lane webhookgate.Lane, id uint64, w *webhookgate.Webhook)
	// Essence is what stays of a snapshot's body when the webhook is finished. Nil: all.
	Essence func(body []byte) []byte
	// LeaseChanged is told when this replica begins to deliver a part (taken), and when it
	// ends: by itself (given_back), or because its lease ran out (lost). May be nil.
	LeaseChanged func(change string)
	// OnErase is told that a lane was erased, through whichever replica: what came before the
	// id upTo is gone. Nil: as OnSnapshot.
	OnErase func(lane webhookgate.Lane, upTo uint64)
	// OnLost is told that the servers have lost the last messages: nothing that OnSnapshot was told counts
	// any more, and it is told all that is left. Nil: as OnSnapshot.
	OnLost func()
	// Log is told what happens. Required.
	Log *slog.Logger
}

// Store is the inbox on the servers, seen from one replica.
type Store struct {
	cfg      Config
	log      *slog.Logger
	courier  *courier.Courier
	servers  *servers.Servers
	subjects message.Subjects
	leases   *lease.Keeper
	self     string // this replica

	alive      context.Context // of the background work
	stop       context.CancelFunc
	background sync.WaitGroup

	ends     ends
	lines    lines
	follower follower
	pauses   pauses
}

// Open connects. Servers that can't be reached are no reason not to start: they are asked
// again until they can.
func Open(cfg Config, c *courier.Courier) (*Store, error) {
	known, err := lru.New[string, message.End](cfg.DedupSize)
	if err != nil {
		return nil, err
	}
	connected, err := servers.Open(cfg.NATS, cfg.MaxBytes, cfg.Log)
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, log: cfg.Log, courier: c, servers: connected, self: rand.Text(), ends: ends{Cache: known}}
	s.alive, s.stop = context.WithCancel(context.Background())
	s.subjects = message.Subjects{
		Prefix: cfg.NATS.Prefix(), History: cfg.NATS.HistoryPrefix(), Live: cfg.NATS.LivePrefix(), Parts: cmp.Or(cfg.NATS.Parts, message.Parts),
	}
	s.leases = lease.New(lease.Config{Servers: connected, Subjects: s.subjects, Self: s.self, Changed: cfg.LeaseChanged, Log: cfg.Log})
	s.background.Go(func() { connected.Watch(s.alive, s.measured) })
	s.background.Go(func() { s.followPauses(s.alive) })
	s.background.Go(func() { s.leases.Follow(s.alive) })
	if cfg.OnSnapshot != nil {
		s.background.Go(func() { s.followSnapshots(s.alive) })
	}
	return s, nil
}

// measured is told each time that the servers have said how full the stream is.
func (s *Store) measured(lost bool) {
	_ = s.askBoot() // else it is asked the next time
	if lost {
		s.ends.doubt()
		s.follower.restart()
		s.leases.Drop()
	}
	s.servers.Room.SetLoad(s.leases.Load())
}

// Run delivers this replica's share of the parts until ctx ends, and returns when the deliveries in
// progress have ended. When hard ends they are cancelled.
func (s *Store) Run(ctx, hard context.Context) {
	if s.cfg.Idle {
		<-ctx.Done()
		return
	}
	var delivering sync.WaitGroup
	delivering.Go(func() { s.courier.Run(ctx, hard) })
	s.leases.Run(ctx, hard, s.begin)
	delivering.Wait()
}

// Delivers reports whether this replica delivers anything right now.
func (s *Store) Delivers() bool { return s.leases.Held() > 0 }

// Usage is how many bytes wait or are parked, and how many may.
func (s *Store) Usage() (used, limit int64) { return s.servers.Room.Usage() }

// Err says why nothing can be taken in right now.
func (s *Store) Err() error { return s.servers.Err() }

// Close ends the background work. Run has ended.
func (s *Store) Close() error {
	s.stop()
	s.background.Wait()
	s.servers.Close()
	return nil
}
