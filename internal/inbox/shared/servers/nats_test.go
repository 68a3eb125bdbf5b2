package servers

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
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
			try := func(n NATS) (*Servers, error) {
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

func open(n *NATS) (*Servers, error) { return Open(n, 64<<20, slog.New(slog.DiscardHandler)) }
