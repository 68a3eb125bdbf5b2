package inbox

import (
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"usher/internal/inbox/natstest"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// The same with two replicas on one server, whose wires are slow, get stuck or are cut.
func TestNothingIsLostOrDroppedOnAGuessOnNATS(t *testing.T) {
	checks, expected := 100, []string{"duplicate", "delivered", "crash", "cut", "given up", "redelivered"} // in so few no more can be relied on
	if testing.Short() {
		checks, expected = 20, []string{"delivered"}
	}
	checkWorlds(t, checks, func(rt *rapid.T, w *world) opener {
		o := &natsOpener{world: w}
		for range 2 {
			// Who has the longer wire learns late what the other one has done.
			delay := rapid.SampledFrom([]time.Duration{testDisk, testWire}).Draw(rt, "wire")
			o.wires = append(o.wires, &natstest.Wire{Delay: delay})
		}
		o.server = natstest.New() // nothing is drawn before somebody sees to its end
		for _, wire := range o.wires {
			wire.Server = o.server
		}
		return o
	}, expected...)
}

// A natsOpener keeps the inbox on a NATS server.
type natsOpener struct {
	world  *world
	server *natstest.Server
	wires  []*natstest.Wire
	conns  sync.Map // *place → *nats.Conn, the last one made
	dying  sync.WaitGroup
}

func (o *natsOpener) open(p *place, cfg Config) (*Inbox, error) {
	cfg.NATS = &NATS{
		Servers: []string{nats.DefaultURL}, Stream: "USHER", Parts: 2,
		Options: []nats.Option{nats.InProcessServer(o.wires[p.number]), func(opts *nats.Options) error {
			connected := opts.ConnectedCB
			opts.ConnectedCB = func(c *nats.Conn) {
				o.conns.Store(p, c)
				connected(c)
			}
			return nil
		}},
	}
	if testing.Verbose() {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return Open(cfg)
}

func (o *natsOpener) crash(p *place) {
	wire := o.wires[p.number]
	wire.Sever()
	if c, ok := o.conns.Load(p); ok {
		c.(*nats.Conn).Close() // it does not come back
	}
	o.dying.Go(p.kill) // it takes until its leases are over to give up
	wire.Mend()
}

// cuts is how long they last.
var cuts = []time.Duration{10 * time.Millisecond, time.Second, 3 * time.Second, 7 * time.Second}

func (o *natsOpener) steps() []string { return []string{"cut", "stick"} }

func (o *natsOpener) trouble(rt *rapid.T, p *place, step string) {
	d, now, wire := rapid.SampledFrom(cuts).Draw(rt, "for"), time.Now(), o.wires[p.number]
	o.world.mu.Lock()
	p.life.troubles = append(p.life.troubles, trouble{now, now.Add(d)})
	o.world.troubled = true
	o.world.mu.Unlock()
	if step == "cut" {
		wire.Sever()
		time.AfterFunc(d, wire.Mend)
		return
	}
	wire.Stuck.Store(true)
	time.AfterFunc(d, func() { wire.Stuck.Store(false) })
}

func (o *natsOpener) places() int            { return 2 }
func (o *natsOpener) settled() time.Duration { return testSettled + 20*testWire }
func (o *natsOpener) several() bool          { return true }

func (o *natsOpener) end() {
	o.dying.Wait()
	o.server.End()
}
