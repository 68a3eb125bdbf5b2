// Package servers is the connection to the NATS servers that keep an inbox, and the two streams that it has there: one of
// what waits and one of what is finished, the history. It knows what the servers can do and how they fail, and nothing of
// webhooks.
//
// It makes the streams, looks now and then whether they are still as they should be, and measures how full they are. What it
// writes is safe once the servers have answered: a majority has it. What must be complete is asked of a stream's leader,
// message by message (Stream.Each), or read from a consumer and then compared with what the leader has (Stream.Visit): a consumer may be on a
// server that is behind the others.
package servers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Servers is the connection, and what is known of the streams.
type Servers struct {
	// Conn is for what nobody keeps: what replicas tell each other.
	Conn *nats.Conn
	// Waiting is the stream of what is not finished, History the one of what is.
	Waiting, History *Stream
	Room             Room

	cfg        *NATS
	log        *slog.Logger
	why        func() error // there is no connection
	js         jetstream.JetStream
	alive      context.Context // of the background work
	stop       context.CancelFunc
	background sync.WaitGroup
	large      chan struct{} // has a value while a large message is written

	seen     atomic.Uint64 // the last message of what waits that is known here
	copies   atomic.Int64  // how many servers keep what waits
	troubled atomic.Int64  // when a request last took too long, in Unix nanoseconds
	heard    atomic.Int64  // when the servers last took or told something, likewise
	blind    atomic.Int64  // since when nothing can be read, likewise; zero: it can

	mu      sync.Mutex       // guards what follows, and the streams
	trouble error            // why it cannot be used right now
	misfit  error            // why nothing may be taken in, though what waits is delivered
	fatal   error            // why it never will be usable again
	asked   map[string]int64 // how many bytes, for each stream
}

const (
	// RequestTimeout is how long the servers may take for one request.
	RequestTimeout = 2 * time.Second
	// slow is how long one takes at the most while all is well.
	slow = 500 * time.Millisecond
	// firstPatience is how long a start waits for the servers, to find out whether the
	// settings fit.
	firstPatience = 3 * time.Second
	// silence is how long the servers may say nothing before the inbox counts as out of reach.
	silence = 8 * time.Second
	// lookEvery is how often the streams are looked at, for what somebody may have edited.
	lookEvery = time.Minute
)

// Open connects. maxBytes is what may wait or be parked. Servers that can't be reached are no reason not to start: Watch asks
// them again until they can.
func Open(cfg *NATS, maxBytes int64, log *slog.Logger) (*Servers, error) {
	s := newServers(cfg, maxBytes, log)
	err := s.connect()
	if err == nil {
		err = s.firstLook(s.alive)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func newServers(cfg *NATS, maxBytes int64, log *slog.Logger) *Servers {
	s := &Servers{cfg: cfg, log: log, large: make(chan struct{}, 1), asked: make(map[string]int64)}
	s.alive, s.stop = context.WithCancel(context.Background())
	s.Waiting, s.History = &Stream{servers: s}, &Stream{servers: s}
	s.Room.most, s.Room.reserved = maxBytes, reservation(maxBytes)
	s.heard.Store(time.Now().UnixNano())
	s.blind.Store(time.Now().UnixNano())
	return s
}

func (s *Servers) connect() (err error) {
	if s.Conn, s.why, err = s.cfg.connect(s.log); err != nil {
		return fmt.Errorf("the inbox's servers can't be used: %w", err)
	}
	s.js, err = jetstream.New(s.Conn, jetstream.WithDefaultTimeout(RequestTimeout))
	return err
}

// Close ends the connection.
func (s *Servers) Close() {
	s.stop()
	s.background.Wait()
	if s.Conn != nil {
		s.Conn.Close()
	}
}

// firstLook gives the servers some time to answer. What is wrong with the settings,
// or with the streams that are there, is an error of the start.
func (s *Servers) firstLook(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, firstPatience)
	defer cancel()
	for {
		err := s.look(ctx)
		if err == nil {
			return nil
		}
		var misfit *misfitError
		if errors.As(err, &misfit) || errors.Is(err, nats.ErrAuthorization) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
			return s.unusable(err)
		}
		Sleep(ctx, 200*time.Millisecond)
		if ctx.Err() != nil {
			s.setTrouble(err)
			s.log.Warn("cannot reach the inbox servers, trying again", "err", err)
			return nil
		}
	}
}

// Watch looks at the streams until ctx ends: how full they are, and whether they still fit. It calls measured whenever it knows how full, and
// says whether they have lost their last messages: what is known here may then be of messages that are no more.
func (s *Servers) Watch(ctx context.Context, measured func(lost bool)) {
	const sayEvery = time.Minute
	said, looked := time.Now(), time.Now()
	for {
		Sleep(ctx, s.Room.measureEvery())
		if ctx.Err() != nil {
			return
		}
		lost, err := s.measure(ctx)
		if lost || err == nil {
			measured(lost) // before all that takes long
		}
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

// measure asks the servers how full the stream is.
func (s *Servers) measure(ctx context.Context) (lost bool, err error) {
	known := s.seen.Load()
	info, err := s.Waiting.Info(ctx)
	if err == nil && info.State.LastSeq < known { // a leader that was just elected may not have all ready
		Sleep(ctx, 500*time.Millisecond)
		info, err = s.Waiting.Info(ctx)
	}
	if err != nil {
		return false, err
	}
	if !majority(info) {
		return false, errSilent
	}
	if lost = info.State.LastSeq < known; lost {
		// As after a power failure without sync_interval: always, or they were restored from a backup.
		s.log.Error("the inbox servers have lost the end of the stream, reading it again", "had", known, "have", info.State.LastSeq)
		s.seen.Store(info.State.LastSeq)
	}
	s.took(info)
	return lost, nil
}

// took takes in what a stream's leader says of it.
func (s *Servers) took(info *jetstream.StreamInfo) {
	s.Room.setStream(info, s.Conn.MaxPayload())
	s.saw(info.State.LastSeq)
	s.copies.Store(int64(info.Config.Replicas))
	s.heard.Store(time.Now().UnixNano())
}

// wantsMore says whether the stream should grow, and that was not asked for yet.
func (s *Servers) wantsMore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Room.wanted() > s.asked[s.cfg.Stream]
}

// Err says why nothing can be taken in right now.
func (s *Servers) Err() error {
	s.mu.Lock()
	trouble := errors.Join(s.fatal, s.misfit, s.trouble)
	s.mu.Unlock()
	switch {
	case trouble != nil:
	case !s.Conn.IsConnected():
		trouble = s.why()
	case time.Since(time.Unix(0, s.heard.Load())) > silence:
		trouble = errSilent
	case s.Blind() && time.Since(time.Unix(0, s.blind.Load())) > silence:
		trouble = errBlind
	default:
		return nil
	}
	return s.unusable(trouble)
}

func (s *Servers) unusable(why error) error {
	return fmt.Errorf("the inbox %s can't be used: %w", s.cfg.Stream, why)
}

var (
	errSilent = errors.New("no majority of its servers has answered recently")
	errBlind  = errors.New("its streams cannot be read: usher needs to make consumers")
)

// Blind: nothing can be read, so that this replica can deliver nothing.
func (s *Servers) Blind() bool { return s.blind.Load() != 0 }

// SetBlind notes whether anything can be read.
func (s *Servers) SetBlind(blind bool) {
	if blind {
		s.blind.CompareAndSwap(0, time.Now().UnixNano())
		return
	}
	s.blind.Store(0)
}

// Boot names the start of the server that has the only copy of what waits: a server that fails may lose the end of its log,
// and after its next start other messages get the same numbers. It is empty where several servers have a copy: if most of them lose
// something they elect a leader first, which takes longer than a lease. An error: there is no connection right now.
func (s *Servers) Boot() (string, error) {
	if s.copies.Load() > 1 {
		return "", nil
	}
	if id := s.Conn.ConnectedServerId(); id != "" {
		return id, nil
	}
	return "", s.why()
}

// Seen is the last message of what waits that is known here.
func (s *Servers) Seen() uint64 { return s.seen.Load() }

// TroubledSince says whether a request took too long since then.
func (s *Servers) TroubledSince(t time.Time) bool { return s.troubled.Load() > t.UnixNano() }

func (s *Servers) setTrouble(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = err
}

func (s *Servers) inTrouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trouble
}

// Sleep returns after d, or when ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
