package guard

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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
	return a.issueUntil(t, name, time.Now().Add(time.Hour))
}

func (a *authority) issueUntil(t *testing.T, name string, end time.Time) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: end,
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

// A file whose read never ends, as on a network disk that is gone, stops no handshake: the first ones wait
// for half a second, later ones not at all, and the files are read again when it is back.
func TestTLSFilesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
		ca := newAuthority(t, "ca")
		install := func() {
			cert, key := ca.issue(t, "gate.test")
			write(t, certFile, cert)
			write(t, keyFile, key)
		}
		install()
		var log bytes.Buffer
		files, err := newTLSFiles(certFile, keyFile, "", slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		good, read, back := files.current(), files.read, make(chan struct{})
		files.read = func(name string) ([]byte, error) { <-back; return read(name) }
		install()
		for i, most := range []time.Duration{readPatience, 0, 0} {
			began := time.Now()
			if got := files.current(); got != good || time.Since(began) > most {
				t.Errorf("handshake %d waited for %v", i, time.Since(began))
			}
		}
		if n := strings.Count(log.String(), "takes long"); n != 1 {
			t.Errorf("said %d times: %s", n, &log)
		}
		close(back)
		synctest.Wait()
		if files.current() == good {
			t.Error("the new files are not in use")
		}
	})
}

// pipes is a listener whose connections are in memory, for a simulated clock.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error { close(p); return nil }
func (pipes) Addr() net.Addr { return &net.UnixAddr{} }

// A connection lives on only while its certificate would be accepted anew: after its CA is
// removed, or its certificate has ended, it is closed at the next request.
func TestClientCertificateOfAnOpenConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		certFile, keyFile, caFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
		server, ours, others := newAuthority(t, "server"), newAuthority(t, "ours"), newAuthority(t, "others")
		cert, key := server.issue(t, "gate.test")
		write(t, certFile, cert)
		write(t, keyFile, key)
		both := slices.Concat(ours.pem, others.pem)
		write(t, caFile, both)
		config, err := TLSConfig(certFile, keyFile, caFile, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		listener, served := make(pipes), 0
		srv := NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }), slog.New(slog.DiscardHandler))
		go srv.Serve(Listener(listener, config, Patience, slog.New(slog.DiscardHandler)))
		defer srv.Close()

		client := func(until time.Duration) *http.Client {
			pair, err := tls.X509KeyPair(ours.issueUntil(t, "sender", time.Now().Add(until)))
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AddCert(server.cert)
			transport := &http.Transport{
				TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "gate.test", Certificates: []tls.Certificate{pair}},
				DialContext: func(context.Context, string, string) (net.Conn, error) {
					here, there := net.Pipe()
					listener <- there
					return here, nil
				},
			}
			t.Cleanup(transport.CloseIdleConnections)
			return &http.Client{Transport: transport}
		}
		call := func(c *http.Client) (reused bool, err error) {
			trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}
			req, _ := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "POST", "https://gate.test/", strings.NewReader("body"))
			req.GetBody = nil // or the client tries again
			resp, err := c.Do(req)
			if err == nil {
				resp.Body.Close()
			}
			return reused, err
		}
		long, short := client(30*time.Minute), client(time.Minute)
		for i, step := range []struct {
			client *http.Client
			before func()
			reused bool
			ok     bool
		}{
			{long, nil, false, true},
			{long, nil, true, true},
			// other files, and still good
			{long, func() { write(t, caFile, slices.Concat(others.pem, ours.pem)) }, true, true},
			{long, func() { os.Remove(caFile) }, true, true}, // the last good ones
			{long, func() { write(t, caFile, others.pem) }, true, false},
			{long, nil, false, false},
			{long, func() { write(t, caFile, both) }, false, true},
			{short, nil, false, true},
			{short, func() { time.Sleep(59 * time.Second) }, true, true},
			{short, func() { time.Sleep(2 * time.Second) }, true, false},
			{long, nil, true, true},
		} {
			if step.before != nil {
				step.before()
			}
			before := served
			if reused, err := call(step.client); reused != step.reused || (err == nil) != step.ok || (served > before) != step.ok {
				t.Errorf("step %d: reused %v, %v; served %v", i, reused, err, served > before)
			}
			synctest.Wait()
		}
	})
}

// That a certificate has expired is in the log once: at the start, when its time comes, or when it replaces a good one.
func TestExpiredCertificateIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		certFile, keyFile := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
		ca := newAuthority(t, "CA")
		install := func(end time.Time) {
			cert, key := ca.issueUntil(t, "gate.test", end)
			write(t, certFile, cert)
			write(t, keyFile, key)
		}
		install(time.Now().Add(-time.Minute))
		var log bytes.Buffer
		config, err := TLSConfig(certFile, keyFile, "", slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		want := func(when string, lines int) {
			t.Helper()
			for range 3 {
				if _, err := config.GetConfigForClient(nil); err != nil {
					t.Fatal(err)
				}
			}
			if n := strings.Count(log.String(), "has expired"); n != lines {
				t.Errorf("%s: %d lines, want %d: %s", when, n, lines, &log)
			}
		}
		if !strings.Contains(log.String(), "has expired") || !strings.Contains(log.String(), certFile) {
			t.Errorf("at the start: %s", &log)
		}
		want("at the start", 1)
		install(time.Now().Add(time.Hour))
		want("a good one", 1)
		time.Sleep(2 * time.Hour)
		want("its time has come", 2)
		install(time.Now().Add(-time.Second))
		want("an expired one in its place", 3)
	})
}
