package guard_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/guard"
	"usher/internal/testkit"
)

// serve runs a server of usher's until the test ends.
func serve(t *testing.T, cert *guard.Certificate, h http.HandlerFunc) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := guard.NewServer(h, cert, slog.New(slog.DiscardHandler))
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return l.Addr().String()
}

// copied makes the file to the same as from. It is written in place, as some tools do.
func copied(t *testing.T, to, from string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// New files are in use from the next handshake on. While they are no good, the last good ones are.
func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	cert1, key1 := testkit.Certificate(t, "127.0.0.1")
	cert2, key2 := testkit.Certificate(t, "127.0.0.1")
	copied(t, certFile, cert1)
	copied(t, keyFile, key1)
	var log bytes.Buffer
	cert, err := guard.NewCertificate(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	addr := serve(t, cert, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })
	for _, step := range []struct {
		name   string
		change func()
		want   string
		says   string // how often the log has this by then, and nothing else
		times  int
	}{
		{"at first", func() {}, cert1, "cannot use", 0},
		{"a new certificate, not yet the key", func() { copied(t, certFile, cert2) }, cert1, "cannot use", 1},
		{"the same once more", func() {}, cert1, "cannot use", 1},
		{"the key", func() { copied(t, keyFile, key2) }, cert2, "have changed and are in use", 1},
		{"no key", func() { os.Remove(keyFile) }, cert2, "cannot use", 2},
		{"a directory", func() { os.Mkdir(keyFile, 0o700) }, cert2, "is not a regular file", 1},
		{"the old ones", func() { os.Remove(keyFile); copied(t, keyFile, key1); copied(t, certFile, cert1) }, cert1, "have changed and are in use", 2},
	} {
		step.change()
		pool := x509.NewCertPool()
		pem, _ := os.ReadFile(step.want)
		pool.AppendCertsFromPEM(pem)
		client := http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true, ForceAttemptHTTP2: true,
		}}
		resp, err := client.Get("https://" + addr)
		if err != nil || resp.Proto != "HTTP/1.1" {
			t.Errorf("%s: %v, %v", step.name, resp, err)
			continue
		}
		resp.Body.Close()
		if !bytes.Equal(resp.TLS.PeerCertificates[0].Raw, cert.Leaf().Raw) {
			t.Errorf("%s: Leaf is another certificate", step.name)
		}
		if n := strings.Count(log.String(), step.says); n != step.times {
			t.Errorf("%s: logged %d times:\n%s", step.name, n, &log)
		}
	}
	for _, files := range [][2]string{{certFile, filepath.Join(dir, "missing")}, {certFile, certFile}, {certFile, key2}} {
		if _, err := guard.NewCertificate(files[0], files[1], slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), files[1]) {
			t.Errorf("%v: %v", files, err)
		}
	}
}
