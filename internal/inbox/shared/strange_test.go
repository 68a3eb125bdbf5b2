package shared

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// Messages under subjects that usher never writes hold nothing up: they are of somebody else who may
// write to the stream.
func TestStrangeSubjects(t *testing.T) {
	for _, subject := range []string{"in", "in.x", "in.a.b.c.d", "in.0.1", "in.1.2", "parked.x", "parked.1.2.x", "again.1.2.3.4.5", "status.x", "x.y"} {
		t.Run(subject, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.parts = 2
				r := c.start()
				defer func() { r.stop() }()
				until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
				m := nats.NewMsg(r.subjects.Part(0, subject))
				m.Data = []byte("rubbish")
				if _, err := r.servers.Publish(t.Context(), m); err != nil {
					t.Fatal(err)
				}
				for round := range 2 {
					const tenants = 8
					for n := range tenants {
						r.send(t, fmt.Sprint("t", n), fmt.Sprint(round))
					}
					until(t, "delivered", func() bool { return len(c.receiver.Accepted()) >= (round+1)*tenants })
					time.Sleep(time.Second)
					r.stop()
					r = c.start()
				}
			})
		})
	}
}
