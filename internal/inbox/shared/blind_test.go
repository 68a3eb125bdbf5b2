package shared

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/natstest"
)

// A replica that may write, but not read from the stream, delivers nothing. The others deliver everything.
func TestBlindReplicaHasNoShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, parts: 4, server: natstest.New(func(o *server.Options) {
			o.Users = []*server.User{{Username: "usher", Password: "usher"}, {Username: "blind", Password: "blind",
				Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.API.CONSUMER.>"}}}}}
		})}
		defer c.server.End()
		as := func(user string) *replica {
			c.change = func(cfg *Config, _ *courier.Config) {
				cfg.NATS.User, cfg.NATS.Password = user, func() string { return user }
			}
			return c.start()
		}
		one := as("usher")
		defer one.stop()
		until(t, "it delivers", func() bool { return one.terms() == one.subjects.Parts })
		blind := as("blind")
		defer blind.stop()
		time.Sleep(time.Minute)
		const tenants = 20
		for n := range tenants {
			one.send(t, fmt.Sprint("t", n), "A")
		}
		time.Sleep(time.Minute)
		if got := len(c.receiver.Accepted()); got != tenants {
			t.Errorf("%d of %d are delivered; one delivers %d of %d parts, the other %d, and says %v", got, tenants, one.terms(), one.subjects.Parts, blind.terms(), blind.Err())
		}
	})
}
