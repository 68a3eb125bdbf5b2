package guard

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// An authority makes certificates for one name.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// tlsServer serves with config, and answers everything with 200.
func tlsServer(t *testing.T, config *tls.Config) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.TLS = config
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// handshake connects anew, sends a request, and returns the name of the server's CA.
func handshake(t *testing.T, s *httptest.Server, roots *authority, client *tls.Certificate) (string, error) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(roots.cert)
	config := &tls.Config{RootCAs: pool, ServerName: "gate.test"}
	if client != nil {
		config.Certificates = []tls.Certificate{*client}
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, ForceAttemptHTTP2: true}
	resp, err := (&http.Client{Transport: transport}).Get(s.URL)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("answered %s", resp.Status)
	}
	return resp.TLS.PeerCertificates[0].Issuer.CommonName, nil
}

func TestTLSFilesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	cert, key := first.issue(t, "gate.test")
	write(t, certFile, cert)
	write(t, keyFile, key)

	var log bytes.Buffer
	config, err := TLSConfig(certFile, keyFile, "", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s := tlsServer(t, config)

	expect := func(want *authority) {
		t.Helper()
		if got, err := handshake(t, s, want, nil); err != nil || got != want.cert.Subject.CommonName {
			t.Errorf("certificate of %q, %v; want %q", got, err, want.cert.Subject.CommonName)
		}
	}
	expect(first)
	cert, key = second.issue(t, "gate.test")
	write(t, certFile, cert) // not yet the key
	expect(first)
	expect(first)
	if n := strings.Count(log.String(), "cannot use the new TLS files"); n != 1 {
		t.Errorf("said %d times:\n%s", n, &log)
	}
	write(t, keyFile, key)
	expect(second)
	os.Remove(keyFile)
	expect(second)
	write(t, certFile, nil)
	expect(second)
	cert, key = first.issue(t, "gate.test")
	write(t, certFile, cert)
	write(t, keyFile, key)
	expect(first)
}

func TestClientCertificates(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile, caFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
	server, ours, others := newAuthority(t, "server"), newAuthority(t, "ours"), newAuthority(t, "others")
	cert, key := server.issue(t, "gate.test")
	write(t, certFile, cert)
	write(t, keyFile, key)
	write(t, caFile, ours.pem)
	pair := func(a *authority) *tls.Certificate {
		c, err := tls.X509KeyPair(a.issue(t, "sender"))
		if err != nil {
			t.Fatal(err)
		}
		return &c
	}
	config, err := TLSConfig(certFile, keyFile, caFile, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := tlsServer(t, config)
	for _, tt := range []struct {
		name   string
		client *tls.Certificate
		ok     bool
	}{{"ours", pair(ours), true}, {"none", nil, false}, {"another's", pair(others), false}} {
		if _, err := handshake(t, s, server, tt.client); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	write(t, caFile, others.pem)
	if _, err := handshake(t, s, server, pair(others)); err != nil {
		t.Errorf("new CA: %v", err)
	}
	if _, err := handshake(t, s, server, pair(ours)); err == nil {
		t.Error("the old CA is still good")
	}
}

func TestBadTLSFiles(t *testing.T) {
	dir := t.TempDir()
	name := func(s string) string { return filepath.Join(dir, s) }
	cert, key := newAuthority(t, "a").issue(t, "gate.test")
	write(t, name("crt"), cert)
	write(t, name("key"), key)
	write(t, name("empty"), nil)
	for _, files := range [][3]string{{"crt", "missing", ""}, {"crt", "crt", ""}, {"crt", "key", "missing"}, {"crt", "key", "empty"}} {
		ca := files[2]
		if ca != "" {
			ca = name(ca)
		}
		_, err := TLSConfig(name(files[0]), name(files[1]), ca, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%v: %v", files, err)
		}
	}
}
