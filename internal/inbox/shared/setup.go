package shared

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// misfitError says that the servers, or the streams that are there, can't be usher's inbox.
type misfitError struct {
	what   string
	faults []string
}

func (e *misfitError) Error() string { return e.what + ": " + strings.Join(e.faults, "; ") }

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

// How many finished webhooks the servers keep.
const (
	keepCount = 10_000
	keepBytes = 256 << 20
	keepAge   = 7 * 24 * time.Hour
)

// leastBytes is what usher asks for at the least, where the servers do not grant more.
const leastBytes = 16 << 20

// The streams' metadata, so that another version recognises the format.
const (
	formatKey = "usher-format"
	format    = "5"
)

// wanted is the stream of what is not finished. What is full refuses what is new, and
// goes on taking deletions.
func (s *Store) wanted() jetstream.StreamConfig {
	c := s.common(s.cfg.NATS.Stream, s.prefix)
	c.Description = "usher's inbox: webhooks that wait or are parked, and what it remembers of each tenant"
	c.Discard, c.MaxBytes = jetstream.DiscardNew, s.room.wanted()
	c.AllowRollup = true
	c.Duplicates = 30 * time.Second // only while a webhook is being taken in
	return c
}

// wantedHistory is the stream of what is finished: the last word on each webhook.
func (s *Store) wantedHistory() jetstream.StreamConfig {
	c := s.common(s.cfg.NATS.Stream+"_HISTORY", s.historyPrefix)
	c.Description = "usher's inbox: webhooks that are finished, to be looked at"
	c.Discard, c.MaxBytes, c.MaxMsgs, c.MaxAge = jetstream.DiscardOld, keepBytes, keepCount, keepAge
	c.MaxMsgsPerSubject = 1
	c.Duplicates = time.Second
	return c
}

func (s *Store) common(name, prefix string) jetstream.StreamConfig {
	replicas := s.cfg.NATS.Replicas
	switch {
	case replicas > 0:
	case s.nc.ConnectedClusterName() != "":
		replicas = 3
	default:
		replicas = 1
	}
	return jetstream.StreamConfig{
		Name: name, Subjects: []string{prefix + ">"}, Replicas: replicas,
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
		Metadata: map[string]string{formatKey: format},
	}
}

// look makes the streams, or looks at those that are there. Those that fitted once, and
// were edited since, can be used on: what waits in them is still to be delivered.
func (s *Store) look(ctx context.Context) error {
	if !s.nc.IsConnected() {
		return s.why()
	}
	if err := checkVersion(s.nc.ConnectedServerName(), s.nc.ConnectedServerVersion()); err != nil {
		return err
	}
	known, _, err := s.streams()
	first := err != nil
	stream, err := s.provide(ctx, s.wanted(), first)
	if err != nil {
		return err
	}
	history, err := s.provide(ctx, s.wantedHistory(), true) // it is only to be looked at
	for first && isRoom(err) {
		if stream, err = s.shrink(ctx, stream, err); err == nil {
			history, err = s.provide(ctx, s.wantedHistory(), true)
		}
	}
	if err != nil {
		return err
	}
	if !majority(stream.CachedInfo()) {
		return errSilent
	}
	faults := misfits(s.wanted(), &stream.CachedInfo().Config, s.cfg.NATS.Replicas)
	faults = append(faults, misfits(s.wantedHistory(), &history.CachedInfo().Config, s.cfg.NATS.Replicas)...)
	var misfit error
	if len(faults) > 0 {
		misfit = &misfitError{"the existing streams do not fit", faults}
	}
	if first && misfit != nil {
		return misfit
	}
	if !first && !known.CachedInfo().Created.Equal(stream.CachedInfo().Created) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fatal = errReplaced
		return s.fatal
	}
	s.adopt(stream, history, misfit)
	return nil
}

func (s *Store) adopt(stream, history jetstream.Stream, misfit error) {
	info := stream.CachedInfo()
	s.measured(info)
	s.saw(info.State.LastSeq)
	s.heard.Store(time.Now().UnixNano())
	s.mu.Lock()
	before := s.misfit
	s.stream, s.history, s.misfit, s.trouble = stream, history, misfit, nil
	s.mu.Unlock()
	switch {
	case misfit != nil && before == nil:
		s.log.Error("somebody changed the inbox streams, usher takes no webhooks in", "err", misfit)
	case misfit == nil && before != nil:
		s.log.Info("the inbox streams are right again, usher takes webhooks in")
	}
}

// errReplaced: what this replica believes is of a stream that is no more.
var errReplaced = errors.New("somebody deleted its stream while usher ran, and the webhooks that waited in it are lost; restart usher")

// provide returns a stream, and makes it where it may and it is not there. One that was there is
// never made again: servers that have just started may not know it yet. Where the servers
// do not grant the room, half of it is asked for.
func (s *Store) provide(ctx context.Context, want jetstream.StreamConfig, mayMake bool) (jetstream.Stream, error) {
	stream, err := s.js.Stream(ctx, want.Name)
	if !errors.Is(err, jetstream.ErrStreamNotFound) || !mayMake {
		return s.grow(ctx, stream, want, err)
	}
	asked := want.MaxBytes
	for {
		// Several replicas may do this at once: with the same settings all succeed.
		stream, err = s.js.CreateStream(ctx, want)
		if !isRoom(err) || want.MaxBytes <= leastBytes {
			break
		}
		want.MaxBytes = max(want.MaxBytes/2, leastBytes)
	}
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return s.js.Stream(ctx, want.Name) // made by another replica, to which less was granted
	}
	if err != nil {
		return nil, err
	}
	s.log.Info("inbox stream created", "stream", want.Name, "replicas", stream.CachedInfo().Config.Replicas, "max_bytes", want.MaxBytes)
	if want.MaxBytes < asked {
		s.log.Warn("inbox servers grant less room than asked for", "stream", want.Name, "asked", asked, "granted", want.MaxBytes)
	}
	s.hasAsked(want.Name, asked)
	return stream, nil
}

// grow gives a stream that was made with less room as much as is asked for now, if the servers
// grant it. One with more keeps it: another replica may want that. The same is not asked for
// twice: somebody may have given it less on purpose.
func (s *Store) grow(ctx context.Context, stream jetstream.Stream, want jetstream.StreamConfig, err error) (jetstream.Stream, error) {
	if err != nil {
		return nil, err
	}
	cfg := stream.CachedInfo().Config
	if !s.hasAsked(want.Name, want.MaxBytes) || cfg.MaxBytes >= want.MaxBytes || cfg.Metadata[formatKey] != format {
		return stream, nil
	}
	cfg.MaxBytes = want.MaxBytes
	grown, err := s.js.UpdateStream(ctx, cfg)
	if err == nil {
		return grown, nil
	}
	if passing(err) && !isRoom(err) { // the servers have not decided
		s.mu.Lock()
		s.asked[want.Name] = 0
		s.mu.Unlock()
		return stream, nil
	}
	s.log.Warn("inbox servers grant no more room for the stream", "stream", want.Name, "asked", want.MaxBytes, "has", stream.CachedInfo().Config.MaxBytes)
	return stream, nil
}

// hasAsked notes that so much was asked for a stream, and says whether that is more than ever.
func (s *Store) hasAsked(name string, bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes <= s.asked[name] {
		return false
	}
	s.asked[name] = bytes
	return true
}

// shrink halves a stream's room, so that there is some for its history: where the servers grant just
// what the stream has asked for, nothing is left. Its error is never one of isRoom.
func (s *Store) shrink(ctx context.Context, stream jetstream.Stream, reason error) (jetstream.Stream, error) {
	info := stream.CachedInfo()
	cfg := info.Config
	cfg.MaxBytes = max(cfg.MaxBytes/2, leastBytes)
	if cfg.Metadata[formatKey] != format || info.Config.MaxBytes <= leastBytes || info.State.Bytes > uint64(cfg.MaxBytes)/2 {
		return stream, fmt.Errorf("no room for the history of stream %s: %v", cfg.Name, reason)
	}
	smaller, err := s.js.UpdateStream(ctx, cfg)
	if err != nil {
		return stream, fmt.Errorf("no room for the history of stream %s (%v), and it can't be made smaller: %v", cfg.Name, reason, err)
	}
	s.log.Warn("inbox stream made smaller, so that its history has room", "stream", cfg.Name, "granted", cfg.MaxBytes)
	return smaller, nil
}

// isRoom says whether a stream was refused for want of room.
func isRoom(err error) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}
	switch api.ErrorCode {
	case 10002, 10005, 10023, 10028, 10040, 10047: // limits of an account, a cluster and a server
		return true
	}
	return false
}

// misfits names what is wrong with a stream that somebody else has made.
func misfits(want jetstream.StreamConfig, c *jetstream.StreamConfig, replicas int) (faults []string) {
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, "stream "+want.Name+": "+fmt.Sprintf(format, args...))
		}
	}
	if c.Metadata[formatKey] != format {
		return []string{fmt.Sprintf("stream %s: it was not made by this version of usher (its metadata has %s=%q, and should have %q): deliver what waits in it with the version that made it, then delete it, or name another one with ?stream=NAME",
			want.Name, formatKey, c.Metadata[formatKey], format)}
	}
	check(slices.Contains(c.Subjects, want.Subjects[0]), "its subjects are %q, and should be %q", c.Subjects, want.Subjects[0])
	check(c.Storage == want.Storage, "its storage should be file")
	check(c.Retention == want.Retention, "its retention should be limits")
	check(c.Discard == want.Discard, "its discard policy should be %v", want.Discard)
	check(c.MaxBytes >= min(leastBytes, want.MaxBytes), "it has room for %d bytes: max_bytes should be at least %d", c.MaxBytes, leastBytes)
	check(c.MaxMsgs <= 0 || want.MaxMsgs > 0, "it has room for %d messages: there should be no max_msgs", c.MaxMsgs)
	check(c.MaxAge == 0 || want.MaxAge > 0, "it deletes messages after %v, also webhooks that wait: there should be no max_age", c.MaxAge)
	check(max(c.MaxMsgsPerSubject, 0) == want.MaxMsgsPerSubject, "it keeps %d messages per subject: max_msgs_per_subject should be %d", c.MaxMsgsPerSubject, want.MaxMsgsPerSubject)
	check(c.AllowRollup || !want.AllowRollup, "allow_rollup_hdrs should be on")
	check(!c.DenyDelete && !c.DenyPurge, "it denies deletes or purges: usher deletes what is finished")
	check(!c.AllowDirect, "allow_direct should be off: a server that is behind may not answer for the others")
	check(c.Mirror == nil && len(c.Sources) == 0, "it gets messages from another stream")
	check(!c.Sealed, "it is sealed")
	check(!c.NoAck, "no_ack should be off: usher waits until a message is acknowledged")
	check(c.MaxMsgSize <= 0, "it takes messages of %d bytes at most: there should be no max_msg_size", c.MaxMsgSize)
	check(c.PersistMode == jetstream.DefaultPersistMode, "its persist_mode is %v: it would acknowledge what is not on disk", c.PersistMode)
	check(c.SubjectTransform == nil, "there should be no subject_transform")
	check(replicas == 0 || c.Replicas == replicas, "it has %d replicas, and should have %d", c.Replicas, replicas)
	return faults
}
