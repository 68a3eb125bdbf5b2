package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// misfitError says that the servers, or the stream that is there, can't be usher's
// inbox.
type misfitError struct {
	what   string
	faults []string
}

func (e *misfitError) Error() string { return e.what + ": " + strings.Join(e.faults, "; ") }

const badStream = "the stream that is there does not fit"

// oldest is the first version that knows all that is asked of it: a message can depend on
// what is last on another subject.
var oldest = []int{2, 11}

// checkVersion says whether a server is too old.
func checkVersion(name, version string) error {
	var have [2]int
	if n, _ := fmt.Sscanf(version, "%d.%d", &have[0], &have[1]); n == 2 && slices.Compare(have[:], oldest) < 0 {
		return &misfitError{"a server is too old", []string{fmt.Sprintf("%s runs NATS %s, and usher needs %d.%d or newer", name, version, oldest[0], oldest[1])}}
	}
	return nil
}

// prepare makes the stream, or looks at the one that is there. One that fitted once, and
// was edited since, can be followed on: what waits in it is still to be delivered.
func (s *jetStore) prepare(ctx context.Context) error {
	if !s.nc.IsConnected() {
		return s.why()
	}
	if err := checkVersion(s.nc.ConnectedServerName(), s.nc.ConnectedServerVersion()); err != nil {
		return err
	}
	stream, err := s.js.Stream(ctx, s.cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) && s.stream() == nil {
		// Several replicas may do this at once: with the same settings all succeed.
		stream, err = s.js.CreateStream(ctx, s.wanted())
		if err == nil {
			s.log.Info("inbox stream made", "stream", s.cfg.Stream, "replicas", stream.CachedInfo().Config.Replicas)
		}
	}
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return &misfitError{badStream, []string{"another replica has just made it otherwise: all of them need the same settings"}}
	}
	if err != nil {
		return err // a stream that is not there any more is never made again: servers that have just started may not know it yet
	}
	info := stream.CachedInfo()
	var misfit error
	if faults := s.misfits(&info.Config); len(faults) > 0 {
		misfit = &misfitError{badStream, faults}
	}
	before, err := s.adopt(stream, misfit)
	switch {
	case err != nil:
		return err
	case misfit != nil && before == nil:
		s.log.Error("inbox stream was edited, nothing more is taken in", "err", misfit)
	case misfit == nil && before != nil:
		s.log.Info("inbox stream fits again")
	}
	return nil
}

// adopt takes a stream as it is found, unless it never fitted, or is not the one that this
// replica has followed. It returns what did not fit before.
func (s *jetStore) adopt(stream jetstream.Stream, misfit error) (before, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.handle == nil && misfit != nil:
		return nil, misfit
	case s.handle != nil && !s.handle.CachedInfo().Created.Equal(stream.CachedInfo().Created):
		s.fatal = errReplaced
		return nil, s.fatal
	}
	before = s.misfit
	s.handle, s.misfit = stream, misfit
	return before, nil
}

// errReplaced: what this replica believes is of a log that is no more.
var errReplaced = errors.New("its stream was deleted while usher ran, and what waited in it is gone with it; usher needs a restart")

// errShorter: the same, and its sequences are given to other messages now.
var errShorter = errors.New("its servers have lost the end of its log, as after a power failure without sync_interval: always, or were restored from a backup; usher needs a restart")

// wanted is the stream as usher makes it. Nothing in it goes by itself: usher deletes
// what is finished and old, and what waits stays until it is delivered.
func (s *jetStore) wanted() jetstream.StreamConfig {
	replicas := s.cfg.Replicas
	switch {
	case replicas > 0:
	case s.nc.ConnectedClusterName() != "":
		replicas = 3
	default:
		replicas = 1
	}
	return jetstream.StreamConfig{
		Name:        s.cfg.Stream,
		Description: "usher's inbox of webhooks",
		Subjects:    []string{s.prefix + ">"},
		Storage:     jetstream.FileStorage,
		Replicas:    replicas,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardNew,
		AllowRollup: true,
	}
}

// misfits names what is wrong with a stream that somebody else has made.
func (s *jetStore) misfits(c *jetstream.StreamConfig) (faults []string) {
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	check(slices.Contains(c.Subjects, s.prefix+">"), "its subjects are %q, and should be %q", c.Subjects, s.prefix+">")
	check(c.Storage == jetstream.FileStorage, "its storage should be file")
	check(c.Retention == jetstream.LimitsPolicy, "its retention should be limits")
	// Full, it would drop webhooks that wait, or refuse also what says that they were
	// delivered, and so never get empty.
	check(c.MaxBytes <= 0 && c.MaxMsgs <= 0, "it has room for %d bytes and %d messages at most (-1: any): there should be no max_bytes and no max_msgs", c.MaxBytes, c.MaxMsgs)
	check(c.MaxAge == 0, "it deletes messages after %v, also webhooks that wait: there should be no max_age", c.MaxAge)
	check(c.MaxMsgsPerSubject <= 0, "it keeps %d messages per subject: there should be no such limit", c.MaxMsgsPerSubject)
	check(c.AllowRollup, "allow_rollup_hdrs should be on")
	check(!c.DenyDelete && !c.DenyPurge, "it denies deletes or purges: usher deletes what is finished and old")
	check(!c.AllowDirect, "allow_direct should be off: a server that is behind may not answer for the others")
	check(c.Mirror == nil && len(c.Sources) == 0, "it gets messages from another stream")
	check(!c.Sealed, "it is sealed")
	check(!c.NoAck, "no_ack should be off: usher waits until a message is acknowledged")
	check(c.MaxMsgSize <= 0, "it takes messages of %d bytes at most: there should be no max_msg_size", c.MaxMsgSize)
	check(c.PersistMode == jetstream.DefaultPersistMode, "its persist_mode is %v: it would acknowledge what is not on disk", c.PersistMode)
	check(c.SubjectTransform == nil, "there should be no subject_transform")
	check(s.cfg.Replicas == 0 || c.Replicas == s.cfg.Replicas, "it has %d replicas, and should have %d", c.Replicas, s.cfg.Replicas)
	return faults
}

// Check says whether the servers can be reached and used, without changing anything.
func (n *NATS) Check(ctx context.Context) (found string, err error) {
	log := slog.New(slog.DiscardHandler)
	nc, why, err := n.connect(log, func() {})
	if err != nil {
		return "", err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return "", err
	}
	s := &jetStore{cfg: n, nc: nc, js: js, prefix: prefixOf(n)}
	for !nc.IsConnected() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return "", why()
		}
	}
	if err := checkVersion(nc.ConnectedServerName(), nc.ConnectedServerVersion()); err != nil {
		return "", err
	}
	stream, err := js.Stream(ctx, n.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Sprintf("the stream %s will be made, with %d replicas", n.Stream, s.wanted().Replicas), nil
	}
	if err != nil {
		return "", err
	}
	if faults := s.misfits(&stream.CachedInfo().Config); len(faults) > 0 {
		return "", &misfitError{badStream, faults}
	}
	return fmt.Sprintf("the stream %s is there, with %d replicas", n.Stream, stream.CachedInfo().Config.Replicas), nil
}
