package inbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/webhookgate"
)

// jetStore keeps the inbox in a stream of a NATS cluster, for several replicas.
//
// The stream is a log, and it is all there is: the webhooks, one subject for each
// lane; how each of them stands; what lanes have been told to forget; and which
// replica delivers. Every replica follows the log from its beginning and holds what
// it says in memory, the mirror. A mirror may be behind, so nothing is decided by it
// alone:
//
//   - A webhook is appended with the sequence that its lane is expected to end with.
//     If another replica was faster the servers refuse it, and it is looked at anew.
//   - A copy is only dropped after it was noted in its lane, by a message that is
//     refused like a webhook if another replica was faster, and that the mirror has
//     then read. Reading the lane's last message would not do: a server that was cut
//     off, and does not know it yet, still tells what it has. And whoever still waits to
//     append what came before the copy is refused too.
//   - Only the replica that holds the lease delivers (see lease).
type jetStore struct {
	cfg    *NATS
	log    *slog.Logger
	nc     *nats.Conn
	why    func() error // there is no connection
	js     jetstream.JetStream
	self   string // this replica, in the lease
	prefix string // of all subjects
	mirror *mirror
	notes  notes
	alive  context.Context    // of the background work
	end    context.CancelFunc // ends it
	ended  sync.WaitGroup

	until atomic.Pointer[deadline] // how long this replica may deliver

	mu      sync.Mutex       // guards what follows
	handle  jetstream.Stream // nil: not yet seen
	trouble error            // why it can't be followed at the moment
	misfit  error            // why nothing may be taken in, though it can
	fatal   error            // why it never will again
	next    *mark            // the mark that is made next
	marking bool
	lines   map[string][]turn // who appends to a lane from here, the first now
}

const (
	// requestTimeout is how long the servers may take for one request, and
	// appendTimeout how long a webhook may take to be safe. A new leader among the
	// servers is elected within some seconds.
	requestTimeout = 2 * time.Second
	appendTimeout  = 5 * time.Second
	// firstPatience is how long a start waits for the servers, to find out whether the
	// settings fit.
	firstPatience = 3 * time.Second
	// silence is how long the log may say nothing: the lease is renewed every second.
	silence = leaseTime + 3*time.Second
	// lookEvery is how often the stream is looked at, for what somebody may have edited.
	lookEvery = time.Minute
)

// openJetStream connects and reads the log. Servers that can't be reached are no
// reason not to start: they are asked again until they can.
func openJetStream(cfg *NATS, window time.Duration, log *slog.Logger) (*jetStore, error) {
	ctx, end := context.WithCancel(context.Background())
	s := &jetStore{
		cfg: cfg, log: log, alive: ctx, end: end,
		self: rand.Text(), prefix: prefixOf(cfg),
		mirror: newMirror(window, log),
		lines:  make(map[string][]turn),
	}
	s.notes.init()
	var err error
	if s.nc, s.why, err = cfg.connect(log, s.mirror.poke); err != nil {
		end()
		return nil, fmt.Errorf("the inbox's servers can't be used: %w", err)
	}
	if s.js, err = jetstream.New(s.nc, jetstream.WithDefaultTimeout(requestTimeout)); err != nil {
		end()
		s.nc.Close()
		return nil, err
	}
	if err := s.firstLook(ctx); err != nil {
		end()
		s.nc.Close()
		return nil, err
	}
	s.ended.Go(func() { s.follow(ctx) })
	s.ended.Go(func() { s.tend(ctx) })
	return s, nil
}

// firstLook gives the servers some time to answer. What is wrong with the settings,
// or with the stream that is there, is an error of the start.
func (s *jetStore) firstLook(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, firstPatience)
	defer cancel()
	for {
		err := s.prepare(ctx)
		if err == nil {
			return nil
		}
		var misfit *misfitError
		if errors.As(err, &misfit) || errors.Is(err, nats.ErrAuthorization) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
			return fmt.Errorf("the inbox %s can't be used: %w", s.cfg.Stream, err)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			s.setTrouble(err)
			s.log.Warn("inbox not reached, trying on", "err", err)
			return nil
		}
	}
}

// Err says why nothing can be taken in at the moment.
func (s *jetStore) Err() error {
	s.mu.Lock()
	trouble := errors.Join(s.fatal, s.misfit, s.trouble)
	s.mu.Unlock()
	heard, caughtUp := s.mirror.heardAt()
	switch {
	case trouble != nil:
	case !s.nc.IsConnected():
		trouble = s.why()
	case !caughtUp:
		trouble = errors.New("its log is still being read")
	case elapsed(heard) > silence:
		trouble = errSilent
	default:
		return nil
	}
	return fmt.Errorf("the inbox %s can't be used: %w", s.cfg.Stream, trouble)
}

func (s *jetStore) setTrouble(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = err
}

// stream is what requests go through; there is one once the mirror holds anything.
func (s *jetStore) stream() jetstream.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handle
}

// Close ends the background work. What Update noted was written when the lease was
// given up.
func (s *jetStore) Close() error {
	s.mu.Lock()
	s.end() // under the lock: mark begins nothing after that
	s.mu.Unlock()
	s.ended.Wait()
	s.nc.Close()
	return nil
}

// prefixOf begins the subjects of a stream: no two may share one.
func prefixOf(cfg *NATS) string { return strings.ToLower(cfg.Stream) + "." }

// Subjects. The mirror takes them apart again.
func (s *jetStore) laneSubject(lane webhookgate.Lane) string {
	return s.prefix + "in." + laneToken(lane)
}
func (s *jetStore) forgetSubject(lane webhookgate.Lane) string {
	return s.prefix + "forget." + laneToken(lane)
}
func (s *jetStore) statusSubject(id uint64) string {
	return s.prefix + "status." + strconv.FormatUint(id, 10)
}

// laneToken stands for a lane in subjects, where not every letter may.
func laneToken(lane webhookgate.Lane) string { return fmt.Sprintf("%x", laneKey(lane)[:16]) }

// publish writes one message and returns its sequence, once a majority has it.
func (s *jetStore) publish(ctx context.Context, m *nats.Msg) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ack, err := s.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// message is one that replaces those before it on its subject.
func message(subject string, data []byte) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = data
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	return m
}

// expect has m refused unless the last message on its subject is that one; zero: none.
func expect(m *nats.Msg, last uint64) {
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
}

// expectOn is expect for another subject than m's own.
func expectOn(m *nats.Msg, subject string, last uint64) {
	expect(m, last)
	m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, subject)
}

// isConflict says whether a message was refused because something else was there.
func isConflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
