package servers

import (
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/natstest"
)

// A hanging connects to a server that can stop to read, so that writes to it hang when its buffers are full.
type hanging struct {
	*natstest.Server
	hangs atomic.Bool
}

func (h *hanging) InProcessConn() (net.Conn, error) {
	c, err := h.Server.InProcessConn()
	nowhere, _ := net.Pipe()
	return &hangingConn{c, nowhere, h}, err
}

type hangingConn struct {
	net.Conn
	nowhere net.Conn // nobody reads its other end
	h       *hanging
}

func (c *hangingConn) Write(p []byte) (int, error) {
	if c.h.hangs.Load() {
		return c.nowhere.Write(p)
	}
	return c.Conn.Write(p)
}

func (c *hangingConn) SetWriteDeadline(t time.Time) error { return c.nowhere.SetWriteDeadline(t) }

// A server hangs while usher writes to it. Whoever asks for something has an answer soon: the client holds a lock over the write.
// Not in a bubble: because of that lock no time would pass there.
func TestWriteToAServerThatHangs(t *testing.T) {
	t.Parallel()
	server := &hanging{Server: natstest.New()}
	defer server.End()
	s, err := Open(&NATS{Servers: []string{nats.DefaultURL}, Stream: "USHER", Options: []nats.Option{nats.InProcessServer(server)}}, 64<<20, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server.hangs.Store(true)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if _, err := s.Publish(t.Context(), nats.NewMsg("usher.0.lease")); err == nil {
			t.Error("a server that hangs has taken a message")
		}
		_ = s.Err()
		s.Close()
	}()
	select {
	case <-answered:
	case <-time.After(30 * time.Second):
		t.Error("no answer within 30 seconds")
		server.hangs.Store(false)
		<-answered
	}
}
