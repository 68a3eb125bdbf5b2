package shared

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats-server/v2/server"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
)

// least are the permissions that docs/operations.md names.
func least(stream string) *server.Permissions {
	name := strings.ToLower(stream)
	publish := []string{name + ".>", name + "_history.>", name + "_live.>"}
	for _, s := range []string{stream, stream + "_HISTORY"} {
		publish = append(publish,
			"$JS.API.STREAM.INFO."+s, "$JS.API.STREAM.CREATE."+s, "$JS.API.STREAM.MSG.GET."+s, "$JS.API.STREAM.MSG.DELETE."+s, "$JS.API.STREAM.PURGE."+s,
			"$JS.API.CONSUMER.CREATE."+s+".>", "$JS.API.CONSUMER.DELETE."+s+".*", "$JS.API.CONSUMER.MSG.NEXT."+s+".*")
	}
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: publish},
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>", name + "_live.>"}},
		Response:  &server.ResponsePermission{MaxMsgs: 1},
	}
}

// The permissions that the documentation names are enough for everything.
func TestLeastPermissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, server: natstest.New(func(o *server.Options) {
			o.Users = []*server.User{{Username: "u", Password: "pw", Permissions: least("USHER")}}
		})}
		defer c.server.End()
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.NATS.User, cfg.NATS.Password = "u", func() string { return "pw" }
		}
		owner, other, tenant := c.elsewhere()
		defer owner.stop()
		defer other.stop()
		c.receiver.Set(inboxtest.Status(422))
		owner.send(t, tenant, "A")
		until(t, "parked", func() bool { return owner.courier.Stats().Parked == 1 })
		e := other.only(t, tenant, record.Parked)
		if err := other.Discard(e.ID); err != nil {
			t.Error(err)
		}
		c.receiver.Set(nil)
		if err := other.Redeliver(e.ID, false); err != nil {
			t.Error(err)
		}
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		if _, err := other.Forget(nil, tenant); err != nil {
			t.Error(err)
		}
		if item, err := other.Show(e.ID); err != nil || string(item.Body) != "A" {
			t.Error(err)
		}
		if err := other.Pause(record.Pause{}); err != nil {
			t.Error(err)
		}
		if was, err := other.Resume(record.Pause{}); !was || err != nil {
			t.Error(was, err)
		}
		if n, err := other.Erase("p", tenant); n != 1 || err != nil {
			t.Error(n, err)
		}
	})
}
