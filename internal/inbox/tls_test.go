package inbox

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"usher/internal/testkit/pgtest"
)

// TLS with a client's certificate in place of a password. Without the certificate the server rejects the connection.
func TestClientCertificate(t *testing.T) {
	costly(t)
	t.Parallel()
	dir := t.TempDir()
	authority := newCertificate(t, nil, "authority")
	server := newCertificate(t, authority, "localhost")
	client := newCertificate(t, authority, "app")
	for name, content := range map[string][]byte{
		"ca.crt":  authority.cert,
		"app.crt": client.cert,
		"app.key": client.key,
	} {
		check(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	s := pgtest.New(t)
	s.Write(t, "server.crt", string(server.cert))
	s.Write(t, "server.key", string(server.key))
	s.Write(t, "ca.crt", string(authority.cert))
	s.Write(t, "pg_hba.conf", "local all all trust\nhostssl all app 127.0.0.1/32 cert\n")
	s.Exec(t, "CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app")
	for _, setting := range []string{"ssl_ca_file = 'ca.crt'", "ssl = on"} {
		s.Exec(t, "ALTER SYSTEM SET "+setting)
	}
	s.Exec(t, "SELECT pg_reload_conf()")
	address := fmt.Sprintf("postgres://app@localhost:%d/postgres?sslmode=verify-full", s.Port())
	address += fmt.Sprintf("&sslrootcert=%s/ca.crt", dir)
	with := address + fmt.Sprintf("&sslcert=%s/app.crt&sslkey=%s/app.key", dir, dir)
	d := newDesk(t, inDatabase(t, with))
	d.insist("t", "A") // the server reads its settings when it likes
	d.idle("")
	if e, err := openDatabase(address, nil); err == nil {
		e.Close()
		t.Error("without a certificate it gets in, or goes on trying")
	}
}

type certificate struct {
	*x509.Certificate
	private   *ecdsa.PrivateKey
	cert, key []byte // PEM
}

func newCertificate(t *testing.T, by *certificate, name string) *certificate {
	t.Helper()
	c := &certificate{private: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: name},
		DNSNames:              []string{name},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  by == nil,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := template, c.private
	if by != nil {
		parent, signer = by.Certificate, by.private
	}
	der := must(x509.CreateCertificate(rand.Reader, template, parent, c.private.Public(), signer))(t)
	c.Certificate = must(x509.ParseCertificate(der))(t)
	c.cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	c.key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(c.private))(t)})
	return c
}
