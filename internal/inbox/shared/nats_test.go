package shared

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

func TestParseNATS(t *testing.T) {
	for _, c := range []struct {
		address string
		servers string
		stream  string
		copies  int
		fault   string
	}{
		{"nats://a", "nats://a:4222", "USHER", 0, ""},
		{"nats://a,b:5000,[::1]:6000", "nats://a:4222 nats://b:5000 nats://[::1]:6000", "USHER", 0, ""},
		{"tls://a/", "tls://a:4222", "USHER", 0, ""},
		{"nats://a?stream=EU&replicas=5", "nats://a:4222", "EU", 5, ""},
		{"nats://user:pw@a", "", "", 0, "user or password"},
		{"nats://", "", "", 0, "host"},
		{"nats://a,,b", "", "", 0, "host"},
		{"nats://a/path", "", "", 0, "host"},
		{"nats://a?stream=x.y", "", "", 0, "stream"},
		{"nats://a?stream=", "", "", 0, "stream"},
		{"nats://a?replicas=0", "", "", 0, "replicas"},
		{"nats://a?replicas=three", "", "", 0, "replicas"},
		{"nats://a?copies=3", "", "", 0, `"copies"`},
		{"nats://a?%zz", "", "", 0, "question mark"},
	} {
		n, err := ParseNATS(c.address)
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) || strings.Contains(err.Error(), "pw") {
				t.Errorf("%s: %v", c.address, err)
			}
			continue
		}
		if err != nil || strings.Join(n.Servers, " ") != c.servers || n.Stream != c.stream || n.Replicas != c.copies {
			t.Errorf("%s: %+v %v", c.address, n, err)
		}
	}
}

func TestVersions(t *testing.T) {
	for version, good := range map[string]bool{"2.11.0": true, "2.15.2": true, "3.0.0-RC.1": true, "2.10.29": false, "1.4.1": false, "dev": true} {
		if err := checkVersion("n0", version); (err == nil) != good {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// listening starts a server with a port.
func listening(t *testing.T, opts *server.Options) string {
	t.Helper()
	opts.Host, opts.Port, opts.JetStream, opts.StoreDir, opts.NoSigs, opts.NoLog = "127.0.0.1", -1, true, t.TempDir(), true, true
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s.Addr().String()
}

func TestIdentities(t *testing.T) {
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := user.PublicKey()
	seed, _ := user.Seed()
	web := httptest.NewTLSServer(nil) // for its certificate
	defer web.Close()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	operated := newOperated(t)
	fixed := func(s string) func() string { return func() string { return s } }
	for _, c := range []struct {
		name   string
		server server.Options
		right  NATS
		wrong  NATS
	}{
		{"password", server.Options{Users: []*server.User{{Username: "u", Password: "pw"}}},
			NATS{User: "u", Password: fixed("pw")}, NATS{User: "u", Password: fixed("no")}},
		{"token", server.Options{Authorization: "tk"}, NATS{Token: fixed("tk")}, NATS{Token: fixed("no")}},
		{"nkey", server.Options{Nkeys: []*server.NkeyUser{{Nkey: public}}}, NATS{Seed: fixed(string(seed))}, NATS{}},
		{"credentials", operated.options, NATS{CredsFile: operated.creds(t)}, NATS{CredsFile: newOperated(t).creds(t)}},
		{"TLS", server.Options{TLS: true, TLSConfig: &tls.Config{Certificates: web.TLS.Certificates}},
			NATS{TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}}, NATS{TLS: &tls.Config{}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := listening(t, &c.server)
			try := func(n NATS) (*Store, error) {
				n.Servers, n.Stream = []string{"nats://" + addr}, "USHER"
				return open(&n)
			}
			s, err := try(c.right)
			if err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(10 * time.Second); s.Err() != nil && time.Now().Before(deadline); {
				time.Sleep(10 * time.Millisecond) // a real server and sockets: nothing to wait on
			}
			if err := s.Err(); err != nil {
				t.Error(err)
			}
			s.Close()
			s, err = try(c.wrong)
			if err == nil {
				err = s.Err()
				s.Close()
			}
			if err == nil || strings.Contains(err.Error(), "no\"") {
				t.Errorf("let in: %v", err)
			}
			t.Log(err)
		})
	}
}

// operated is how servers run that let in whom an operator has signed.
type operated struct {
	key      nkeys.KeyPair
	resolver *server.MemAccResolver
	options  server.Options
}

func newOperated(t *testing.T) *operated {
	t.Helper()
	o := &operated{resolver: new(server.MemAccResolver)}
	var public string
	o.key, public = newKey(t, nkeys.CreateOperator)
	claims := jwt.NewOperatorClaims(public)
	_, claims.SystemAccount = o.account(t, jwt.JetStreamLimits{})
	o.options = server.Options{
		TrustedOperators: []*jwt.OperatorClaims{claims}, AccountResolver: o.resolver, SystemAccount: claims.SystemAccount,
	}
	return o
}

func newKey(t *testing.T, create func() (nkeys.KeyPair, error)) (key nkeys.KeyPair, public string) {
	t.Helper()
	key, err := create()
	if err != nil {
		t.Fatal(err)
	}
	if public, err = key.PublicKey(); err != nil {
		t.Fatal(err)
	}
	return key, public
}

// account makes an account, known to the servers.
func (o *operated) account(t *testing.T, limits jwt.JetStreamLimits) (key nkeys.KeyPair, public string) {
	t.Helper()
	key, public = newKey(t, nkeys.CreateAccount)
	claims := jwt.NewAccountClaims(public)
	claims.Limits.JetStreamLimits = limits
	signed, err := claims.Encode(o.key)
	if err == nil {
		err = o.resolver.Store(public, signed)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key, public
}

// creds writes the credentials of a user in an account of its own, that may have two
// streams, and those on disk.
func (o *operated) creds(t *testing.T) (path string) {
	t.Helper()
	account, _ := o.account(t, jwt.JetStreamLimits{DiskStorage: jwt.NoLimit, Streams: 2, Consumer: jwt.NoLimit})
	user, public := newKey(t, nkeys.CreateUser)
	signed, err := jwt.NewUserClaims(public).Encode(account)
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	content, err := jwt.FormatUserConfig(signed, seed)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "usher.creds")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// open opens a store that only takes in.
func open(n *NATS) (*Store, error) {
	log := slog.New(slog.DiscardHandler)
	return Open(Config{
		NATS: n, Route: func(webhookgate.Lane) string { return "main" }, Idle: true, DedupSize: 10, DedupWindow: time.Minute,
		MaxBytes: 64 << 20, Log: log,
	}, courier.New(courier.Config{Attempts: 1, MaxAge: time.Hour, Log: log}))
}

// A stream that is there and does not fit is an error of the start, that names all
// that is wrong with it.
func TestMisfits(t *testing.T) {
	s := &Store{cfg: Config{NATS: &NATS{Stream: "USHER", Replicas: 1}, MaxBytes: 1 << 30}, prefix: "usher.", historyPrefix: "usher_history."}
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
		cfg := s.wanted()
		c.change(&cfg)
		faults := misfits(s.wanted(), &cfg, 1)
		if c.fault == "" && len(faults) > 0 || c.fault != "" && !slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(f, c.fault) }) {
			t.Errorf("%s: %q", c.fault, faults)
		}
	}

	addr := listening(t, new(server.Options))
	cfg := &NATS{Servers: []string{"nats://" + addr}, Stream: "USHER", Replicas: 1}
	nc, _, err := cfg.connect(slog.New(slog.DiscardHandler), func() {})
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
