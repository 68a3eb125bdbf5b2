package servers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// How many finished webhooks the servers keep.
const (
	keepCount = 10_000
	keepBytes = 256 << 20
	keepAge   = 7 * 24 * time.Hour
)

// leastBytes is what usher asks for at the least, where the servers do not grant more.
const leastBytes = 16 << 20

// waiting is the stream of what is not finished. What is full refuses what is new, and
// goes on taking deletions.
func (n *NATS) waiting(replicas int, bytes int64) jetstream.StreamConfig {
	c := common(n.Stream, n.Prefix(), replicas)
	c.Description = "usher's inbox: webhooks that wait or are parked, and what it remembers of each tenant"
	c.Discard, c.MaxBytes = jetstream.DiscardNew, bytes
	c.AllowRollup = true
	c.Duplicates = 30 * time.Second // only while a webhook is being taken in
	return c
}

// history is the stream of what is finished: the last word on each webhook.
func (n *NATS) history(replicas int) jetstream.StreamConfig {
	c := common(n.Stream+"_HISTORY", n.HistoryPrefix(), replicas)
	c.Description = "usher's inbox: webhooks that are finished, to be looked at"
	c.Discard, c.MaxBytes, c.MaxMsgs, c.MaxAge = jetstream.DiscardOld, keepBytes, keepCount, keepAge
	c.MaxMsgsPerSubject = 1
	c.Duplicates = time.Second
	return c
}

func common(name, prefix string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Subjects: []string{prefix + ">"}, Replicas: replicas,
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
		Metadata: map[string]string{formatKey: format},
	}
}

// replicas is how many servers keep a copy of a stream that is made.
func (n *NATS) replicas(nc *nats.Conn) int {
	switch {
	case n.Replicas > 0:
		return n.Replicas
	case nc.ConnectedClusterName() != "":
		return 3
	}
	return 1
}

// look makes the streams, or looks at those that are there. Those that fitted once, and
// were edited since, can be used on: what waits in them is still to be delivered.
func (s *Servers) look(ctx context.Context) error {
	if !s.Conn.IsConnected() {
		return s.why()
	}
	if err := checkVersion(s.Conn.ConnectedServerName(), s.Conn.ConnectedServerVersion()); err != nil {
		return err
	}
	known, err := s.Waiting.get()
	first := err != nil
	replicas := s.cfg.replicas(s.Conn)
	want, wantPast := s.cfg.waiting(replicas, s.Room.wanted()), s.cfg.history(replicas)
	stream, err := s.provide(ctx, want, first)
	if err != nil {
		return err
	}
	history, err := s.provide(ctx, wantPast, true) // it is only to be looked at
	for first && isRoom(err) {
		if stream, err = s.shrink(ctx, stream, err); err == nil {
			history, err = s.provide(ctx, wantPast, true)
		}
	}
	if err != nil {
		return err
	}
	if !majority(stream.CachedInfo()) {
		return errSilent
	}
	want.MaxBytes = reservation(s.Room.most) // it need not have grown since: then less is taken in
	faults := misfits(want, &stream.CachedInfo().Config, s.cfg.Replicas)
	faults = append(faults, misfits(wantPast, &history.CachedInfo().Config, s.cfg.Replicas)...)
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

func (s *Servers) adopt(stream, history jetstream.Stream, misfit error) {
	s.took(stream.CachedInfo())
	s.mu.Lock()
	before := s.misfit
	s.Waiting.stream, s.History.stream, s.misfit, s.trouble = stream, history, misfit, nil
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
func (s *Servers) provide(ctx context.Context, want jetstream.StreamConfig, mayMake bool) (jetstream.Stream, error) {
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
func (s *Servers) grow(ctx context.Context, stream jetstream.Stream, want jetstream.StreamConfig, err error) (jetstream.Stream, error) {
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
	if Passing(err) && !isRoom(err) { // the servers have not decided
		s.mu.Lock()
		s.asked[want.Name] = 0
		s.mu.Unlock()
		return stream, nil
	}
	s.log.Warn("inbox servers grant no more room for the stream", "stream", want.Name, "asked", want.MaxBytes, "has", stream.CachedInfo().Config.MaxBytes)
	return stream, nil
}

// hasAsked notes that so much was asked for a stream, and says whether that is more than ever.
func (s *Servers) hasAsked(name string, bytes int64) bool {
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
func (s *Servers) shrink(ctx context.Context, stream jetstream.Stream, reason error) (jetstream.Stream, error) {
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
