package shared

import (
	"os"
	"sync"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/natstest"
	"usher/webhookgate"
)

// Who has lost the connection says so: what others take in meanwhile is not known here.
func TestFollowingSaysWhenItIsCutOff(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.OnSnapshot = func(webhookgate.Lane, uint64, *webhookgate.Webhook) {}
		}
		r := c.start()
		defer r.stop()
		fresh := func() bool {
			stale, ready := r.Following()
			return ready && stale == 0
		}
		until(t, "all is read", fresh)
		time.Sleep(5 * time.Second)
		r.wire.Sever()
		time.Sleep(time.Second)
		if fresh() {
			t.Error("it is cut off, and says that it hears all")
		}
		time.Sleep(20 * time.Second)
		if stale, ready := r.Following(); !ready || stale < 20*time.Second {
			t.Errorf("after 21 s: stale for %v, ready %v", stale, ready)
		}
		r.wire.Mend()
		until(t, "it hears again", fresh)
	})
}

// Servers that have lost the end of the stream count on from where it ends now. What came in after that
// must not be taken for older than what was lost.
func TestFollowingAfterLoss(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		var mu sync.Mutex
		known := make(map[string]uint64)
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.OnSnapshot = func(l webhookgate.Lane, id uint64, _ *webhookgate.Webhook) {
				mu.Lock()
				defer mu.Unlock()
				known[l.Tenant] = max(known[l.Tenant], id)
			}
			cfg.OnLost = func() {
				mu.Lock()
				defer mu.Unlock()
				clear(known)
			}
		}
		dir, backup := t.TempDir(), t.TempDir()
		end := func(s *natstest.Server) {
			time.Sleep(time.Second)
			s.Shutdown()
			s.WaitForShutdown()
			time.Sleep(time.Second)
		}
		server := natstest.Start(dir)
		wire := &natstest.Wire{Server: server}
		r := c.startAt(wire)
		r.send(t, "acme", "A")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		wire.Sever()
		end(server)
		if err := os.CopyFS(backup, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		server = natstest.Start(dir)
		wire.Replace(server)
		until(t, "connected again", func() bool { return r.Err() == nil })
		time.Sleep(time.Minute)
		r.send(t, "acme", "lost")
		r.send(t, "other", "lost")
		time.Sleep(time.Second)
		mu.Lock()
		lost := known["acme"]
		mu.Unlock()
		wire.Sever()
		end(server)
		server = natstest.Start(backup)
		wire.Replace(server)
		until(t, "connected again", func() bool { return r.Err() == nil })
		time.Sleep(5 * time.Second)
		r.send(t, "acme", "B")
		time.Sleep(5 * time.Second)
		_, id, err := r.Snapshot(t.Context(), webhookgate.Lane{Platform: "p", Tenant: "acme"})
		mu.Lock()
		defer mu.Unlock()
		if err != nil || id >= lost || known["acme"] != id || known["other"] != 0 {
			t.Errorf("known are %v; the last of acme is %d, after %d that was lost, %v", known, id, lost, err)
		}
		if _, ready := r.Following(); !ready {
			t.Error("not ready")
		}
		r.stop()
		end(server)
	})
}

// What is told after a loss is not dropped with what was told before, however long that takes.
func TestToldAfterLoss(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		var mu sync.Mutex
		known := make(map[string]uint64)
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.OnSnapshot = func(l webhookgate.Lane, id uint64, _ *webhookgate.Webhook) {
				mu.Lock()
				defer mu.Unlock()
				known[l.Tenant] = max(known[l.Tenant], id)
			}
			cfg.OnLost = func() {
				time.Sleep(time.Second) // the process was stopped
				mu.Lock()
				defer mu.Unlock()
				clear(known)
			}
		}
		r := c.start()
		defer r.stop()
		r.send(t, "acme", "A")
		time.Sleep(10 * time.Second)
		r.believe(t, 1_000_000) // as if there had been so much more
		time.Sleep(10 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if _, ready := r.Following(); known["acme"] == 0 || !ready {
			t.Errorf("known are %v; ready: %v", known, ready)
		}
	})
}
