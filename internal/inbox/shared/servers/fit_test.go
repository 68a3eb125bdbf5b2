package servers

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
)

// A stream that is there and does not fit is an error of the start, that names all
// that is wrong with it.
func TestMisfits(t *testing.T) {
	n := &NATS{Stream: "USHER", Replicas: 1}
	for _, c := range []struct {
		change func(*jetstream.StreamConfig)
		fault  string
	}{
		{func(*jetstream.StreamConfig) {}, ""},
		{func(c *jetstream.StreamConfig) { c.MaxBytes = 16 << 20 }, ""},
		{func(c *jetstream.StreamConfig) { c.MaxBytes = -1 }, "max_bytes"},
		{func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }, "discard"},
		{func(c *jetstream.StreamConfig) { c.Metadata = nil }, "not made by this version"},
		{func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 }, "max_msgs"},
		{func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, "max_age"},
		{func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 }, "per subject"},
		{func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }, "storage"},
		{func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }, "retention"},
		{func(c *jetstream.StreamConfig) { c.AllowRollup = false }, "allow_rollup"},
		{func(c *jetstream.StreamConfig) { c.DenyDelete = true }, "denies"},
		{func(c *jetstream.StreamConfig) { c.AllowDirect = true }, "allow_direct"},
		{func(c *jetstream.StreamConfig) { c.Subjects = []string{"usher.in.*"} }, "subjects"},
		{func(c *jetstream.StreamConfig) { c.Replicas = 3 }, "replicas"},
		{func(c *jetstream.StreamConfig) { c.Sealed = true }, "sealed"},
		{func(c *jetstream.StreamConfig) { c.NoAck = true }, "no_ack"},
		{func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 << 10 }, "max_msg_size"},
		{func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 }, ""},
		{func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode }, "persist_mode"},
		{func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: ">", Destination: "x.>"}
		}, "subject_transform"},
	} {
		cfg := n.waiting(1, 1<<30)
		c.change(&cfg)
		faults := misfits(n.waiting(1, 1<<30), &cfg, 1)
		if c.fault == "" && len(faults) > 0 || c.fault != "" && !slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(f, c.fault) }) {
			t.Errorf("%s: %q", c.fault, faults)
		}
	}

	addr := listening(t, new(server.Options))
	cfg := &NATS{Servers: []string{"nats://" + addr}, Stream: "USHER", Replicas: 1}
	nc, _, err := cfg.connect(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "USHER", Subjects: []string{"usher.>"}, MaxAge: time.Hour, Metadata: map[string]string{formatKey: format},
	}); err != nil {
		t.Fatal(err)
	}
	_, err = open(cfg)
	if got := fmt.Sprint(err); !strings.Contains(got, "max_age") || !strings.Contains(got, "allow_rollup_hdrs") {
		t.Error(got)
	}
}

func TestMajority(t *testing.T) {
	peer := func(active time.Duration, offline bool) *jetstream.PeerInfo {
		return &jetstream.PeerInfo{Active: active, Offline: offline, Current: active < silence && !offline}
	}
	here, gone, off := peer(time.Second, false), peer(time.Minute, false), peer(0, true)
	for name, tc := range map[string]struct {
		replicas int
		leader   string
		peers    []*jetstream.PeerInfo
		want     bool
	}{
		"a stream on one server of a cluster":        {1, "a", nil, true},
		"three of three":                             {3, "a", []*jetstream.PeerInfo{here, here}, true},
		"two of three":                               {3, "a", []*jetstream.PeerInfo{here, gone}, true},
		"one of three, the others are silent":        {3, "a", []*jetstream.PeerInfo{gone, gone}, false},
		"one of three, the others are off":           {3, "a", []*jetstream.PeerInfo{off, off}, false},
		"no leader":                                  {3, "", []*jetstream.PeerInfo{here, here, here}, false},
		"three of five":                              {5, "a", []*jetstream.PeerInfo{here, here, gone, gone}, true},
		"two of five":                                {5, "a", []*jetstream.PeerInfo{here, gone, gone, off}, false},
		"one becomes three, the new are not there":   {3, "a", nil, true},
		"one becomes three, one of the new is there": {3, "a", []*jetstream.PeerInfo{here}, true},
		"three become one":                           {1, "a", []*jetstream.PeerInfo{here, gone}, true},
		"three become five, and one is lost":         {5, "a", []*jetstream.PeerInfo{here, gone}, true},
	} {
		info := &jetstream.StreamInfo{
			Config:  jetstream.StreamConfig{Replicas: tc.replicas},
			Cluster: &jetstream.ClusterInfo{Leader: tc.leader, Replicas: tc.peers},
		}
		if got := majority(info); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !majority(&jetstream.StreamInfo{Config: jetstream.StreamConfig{Replicas: 1}}) {
		t.Error("a single server")
	}
}

// Servers that do not answer have not refused: they are asked again for more room.
func TestAsksAgainForRoom(t *testing.T) {
	s, err := open(&NATS{Servers: []string{"nats://" + listening(t, new(server.Options))}, Stream: "USHER"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	stream, err := s.Waiting.get()
	if err != nil {
		t.Fatal(err)
	}
	want := s.cfg.waiting(1, s.Room.wanted()+growBy)
	over, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for _, ctx := range []context.Context{over, t.Context()} {
		if stream, err = s.grow(ctx, stream, want, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := stream.CachedInfo().Config.MaxBytes; got != want.MaxBytes {
		t.Errorf("it has room for %d bytes, want %d", got, want.MaxBytes)
	}
}
