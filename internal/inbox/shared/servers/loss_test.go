package servers

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/natstest"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// Servers that were out of reach are back, without the end of their log. That is told at once: until then messages that
// are no more count, and others have their numbers.
func TestLossIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := natstest.New()
		defer server.End()
		wire := &natstest.Wire{Server: server, Delay: 100 * time.Millisecond}
		s, err := Open(&NATS{Servers: []string{nats.DefaultURL}, Stream: "USHER", Options: []nats.Option{nats.InProcessServer(wire)}}, 64<<20, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.saw(1000)
		s.setTrouble(errors.New("out of reach"))
		var told atomic.Bool
		go s.Watch(t.Context(), func(lost bool) { told.Store(told.Load() || lost) })
		time.Sleep(1950 * time.Millisecond) // a second, a request, half a second, another request
		wire.Stuck.Store(true)
		time.Sleep(time.Second)
		if !told.Load() {
			t.Error("it is not told")
		}
		wire.Stuck.Store(false)
	})
}
