package shared

import (
	"fmt"
	"os"
	"testing"
	"time"

	"usher/internal/inbox/natstest"
)

// The servers lose the last few messages, and are back before the lease has run out. What comes in then has the numbers of
// what was lost, and is delivered all the same.
func TestDeliversAfterAShortLoss(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.parts = 16
		dir, backup := t.TempDir(), t.TempDir()
		end := func(s *natstest.Server) {
			time.Sleep(time.Second / 2)
			s.Shutdown()
			s.WaitForShutdown()
			time.Sleep(time.Second / 2)
		}
		server := natstest.Start(dir)
		r := c.startAt(&natstest.Wire{Server: server})
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		r.wire.Sever()
		end(server)
		if err := os.CopyFS(backup, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		server = natstest.Start(dir)
		r.wire.Replace(server)
		until(t, "connected again", func() bool { return r.Err() == nil && r.servers.Conn.IsConnected() })
		for n := range 60 {
			r.send(t, "acme", fmt.Sprint("lost ", n))
		}
		until(t, "delivered, and noted", func() bool { return len(c.receiver.Accepted()) == 60 && len(r.waiting(t)) == 0 })
		r.wire.Sever()
		end(server)
		server = natstest.Start(backup)
		r.wire.Replace(server)
		until(t, "connected again", func() bool { return r.Err() == nil && r.servers.Conn.IsConnected() })
		time.Sleep(1500 * time.Millisecond) // it has asked the servers what they have
		r.send(t, "acme", "new")
		time.Sleep(time.Minute)
		if got := c.receiver.Accepted(); len(got) != 61 || got[60] != "acme:new" {
			t.Errorf("%d were delivered, the last of them %s", len(got), got[len(got)-1])
		}
		r.stop()
		end(server)
	})
}
