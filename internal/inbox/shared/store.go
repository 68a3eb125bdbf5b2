package shared

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/courier"
	"usher/webhookgate"
)

// Config is what the store needs to know.
type Config struct {
	// NATS says how to reach the servers. Required.
	NATS *NATS
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
	cfg           Config
	log           *slog.Logger
	nc            *nats.Conn
	why           func() error // there is no connection
	js            jetstream.JetStream
	courier       *courier.Courier
	self          string // this replica
	prefix        string // of the subjects of what is not finished
	historyPrefix string // of what is
	parts         int    // into which the lanes fall
	livePrefix    string // of what replicas tell each other, and nobody keeps

	alive      context.Context // of the background work
	stop       context.CancelFunc
	background sync.WaitGroup

	ends     *lru.Cache[string, end] // of lanes, as far as is known here
	lines    lines
	room     room
	seen     atomic.Uint64 // the stream's last message that is known here
	troubled atomic.Int64  // when a request last took too long, in Unix nanoseconds
	heard    atomic.Int64  // when the servers last took or told something, likewise
	blind    atomic.Int64  // since when nothing can be read, likewise; zero: it can
	leases   leases
	follower follower
	pauses   pauses

	mu      sync.Mutex // guards what follows
	stream  jetstream.Stream
	history jetstream.Stream
	trouble error            // why it cannot be used right now
	misfit  error            // why nothing may be taken in, though what waits is delivered
	fatal   error            // why it never will be usable again
	asked   map[string]int64 // how many bytes, for each stream
}

const (
	// requestTimeout is how long the servers may take for one request.
	requestTimeout = 2 * time.Second
	// firstPatience is how long a start waits for the servers, to find out whether the
	// settings fit.
	firstPatience = 3 * time.Second
	// silence is how long the servers may say nothing before the inbox counts as out of reach.
	silence = 8 * time.Second
	// lookEvery is how often the streams are looked at, for what somebody may have edited.
	lookEvery = time.Minute
)

// Open connects. Servers that can't be reached are no reason not to start: they are asked
// again until they can.
func Open(cfg Config, c *courier.Courier) (*Store, error) {
	name := strings.ToLower(cfg.NATS.Stream)
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		cfg: cfg, log: cfg.Log, courier: c, alive: ctx, stop: stop, self: rand.Text(),
		prefix: name + ".", historyPrefix: name + "_history.", livePrefix: name + "_live.",
	}
	s.lines.lanes = make(map[string]chan struct{})
	s.room.most, s.room.reserved, s.asked = cfg.MaxBytes, reservation(cfg.MaxBytes), make(map[string]int64)
	s.heard.Store(time.Now().UnixNano())
	s.blind.Store(time.Now().UnixNano())
	if s.parts = parts; cfg.NATS.Parts > 0 {
		s.parts = cfg.NATS.Parts
	}
	s.leases.init(s.parts)
	if err := s.connect(); err != nil {
		stop()
		if s.nc != nil {
			s.nc.Close()
		}
		return nil, err
	}
	s.background.Go(func() { s.watch(ctx) })
	s.background.Go(func() { s.followPauses(ctx) })
	s.background.Go(func() { s.followLeases(ctx) })
	if cfg.OnSnapshot != nil {
		s.background.Go(func() { s.followSnapshots(ctx) })
	}
	return s, nil
}

func (s *Store) connect() (err error) {
	if s.ends, err = lru.New[string, end](s.cfg.DedupSize); err != nil {
		return err
	}
	if s.nc, s.why, err = s.cfg.NATS.connect(s.log, s.leases.poke); err != nil {
		return fmt.Errorf("the inbox's servers can't be used: %w", err)
	}
	if s.js, err = jetstream.New(s.nc, jetstream.WithDefaultTimeout(requestTimeout)); err != nil {
		return err
	}
	return s.firstLook(s.alive)
}

// firstLook gives the servers some time to answer. What is wrong with the settings,
// or with the streams that are there, is an error of the start.
func (s *Store) firstLook(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, firstPatience)
	defer cancel()
	for {
		err := s.look(ctx)
		if err == nil {
			return nil
		}
		var misfit *misfitError
		if errors.As(err, &misfit) || errors.Is(err, nats.ErrAuthorization) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
			return fmt.Errorf("the inbox %s can't be used: %w", s.cfg.NATS.Stream, err)
		}
		pause(ctx, 200*time.Millisecond)
		if ctx.Err() != nil {
			s.setTrouble(err)
			s.log.Warn("cannot reach the inbox servers, trying again", "err", err)
			return nil
		}
	}
}

// watch looks at the streams until ctx ends: how full they are, and whether they still fit.
func (s *Store) watch(ctx context.Context) {
	const sayEvery = time.Minute
	said, looked := time.Now(), time.Now()
	for {
		pause(ctx, s.room.measureEvery())
		if ctx.Err() != nil {
			return
		}
		err := s.measure(ctx)
		if err != nil || s.inTrouble() != nil || time.Since(looked) > lookEvery || s.wantsMore() {
			looked = time.Now()
			err = s.look(ctx)
			s.setTrouble(err)
		}
		if err != nil && ctx.Err() == nil && time.Since(said) > sayEvery {
			said = time.Now()
			s.log.Warn("still cannot use the inbox servers, trying again", "err", err)
		}
	}
}

// wantsMore says whether the stream should grow, and that was not asked for yet.
func (s *Store) wantsMore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room.wanted() > s.asked[s.cfg.NATS.Stream]
}

// Err says why nothing can be taken in right now.
func (s *Store) Err() error {
	s.mu.Lock()
	trouble := errors.Join(s.fatal, s.misfit, s.trouble)
	s.mu.Unlock()
	switch {
	case trouble != nil:
	case !s.nc.IsConnected():
		trouble = s.why()
	case time.Since(time.Unix(0, s.heard.Load())) > silence:
		trouble = errSilent
	case s.isBlind() && time.Since(time.Unix(0, s.blind.Load())) > silence:
		trouble = errBlind
	default:
		return nil
	}
	return fmt.Errorf("the inbox %s can't be used: %w", s.cfg.NATS.Stream, trouble)
}

var (
	errSilent = errors.New("no majority of its servers has answered recently")
	errBlind  = errors.New("its streams cannot be read: usher needs to make consumers")
)

// isBlind: nothing can be read, so that this replica can deliver nothing.
func (s *Store) isBlind() bool { return s.blind.Load() != 0 }

func (s *Store) setTrouble(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = err
}

func (s *Store) inTrouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trouble
}

// streams are what requests go through.
func (s *Store) streams() (stream, history jetstream.Stream, err error) {
	s.mu.Lock()
	stream, history = s.stream, s.history
	s.mu.Unlock()
	if stream != nil {
		return stream, history, nil
	}
	if err := s.Err(); err != nil {
		return nil, nil, err
	}
	return nil, nil, errors.New("usher has not reached the inbox servers yet")
}

// Close ends the background work. Run has ended.
func (s *Store) Close() error {
	s.stop()
	s.background.Wait()
	s.nc.Close()
	return nil
}
