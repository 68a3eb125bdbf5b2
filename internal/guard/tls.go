package guard

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// TLSConfig makes a server's configuration from files that may be replaced while it serves. It
// reads them at each handshake, which costs little compared with the handshake. It does not
// rely on times and inodes, because files are truncated and symlinks swapped. If the files
// cannot be read, or do not fit together (a new certificate with the old key), the last good
// ones stay in use, and the problem is logged once. With a clientCAFile, clients must have a
// certificate of that CA, also for each later request on the same connection (see Server).
func TLSConfig(certFile, keyFile, clientCAFile string, log *slog.Logger) (*tls.Config, error) {
	files := &tlsFiles{names: []string{certFile, keyFile}, log: log}
	if clientCAFile != "" {
		files.names = append(files.names, clientCAFile)
	}
	if err := files.reload(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return files.current(), nil
		},
	}, nil
}

type tlsFiles struct {
	names []string // certificate, key, and client CAs if any
	log   *slog.Logger

	mu       sync.Mutex  // guards what follows
	contents [][]byte    // config was made from these
	config   *tls.Config // the last good one
	problem  string      // the last one logged
}

// current returns the configuration from the files as they are now, or the last good one.
func (f *tlsFiles) current() *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	problem := ""
	if err := f.reload(); err != nil {
		problem = err.Error()
	}
	if problem != f.problem && problem != "" {
		f.log.Warn("cannot use the new TLS files, usher keeps the last good ones", "error", problem)
	}
	f.problem = problem
	return f.config
}

func (f *tlsFiles) reload() error {
	contents := make([][]byte, len(f.names))
	changed := f.config == nil
	for i, name := range f.names {
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		contents[i] = content
		changed = changed || !bytes.Equal(content, f.contents[i])
	}
	if !changed {
		return nil
	}
	config, err := f.parse(contents)
	if err != nil {
		return err
	}
	if f.config != nil {
		f.log.Info("TLS files have changed and are in use", "certificate", f.names[0])
	}
	f.contents, f.config = contents, config
	return nil
}

func (f *tlsFiles) parse(contents [][]byte) (*tls.Config, error) {
	cert, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", f.names[0], f.names[1], err)
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{cert},
		NextProtos:   []string{"http/1.1"}, // no HTTP/2, whatever the server's own list says
	}
	if len(contents) > 2 {
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(contents[2]) {
			return nil, fmt.Errorf("%s: no certificate in it", f.names[2])
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
		// A resumed session would still trust the CAs of its first handshake.
		config.SessionTicketsDisabled = true
	}
	return config, nil
}

// acceptable reports whether the client's certificate, if one is required, would be accepted in a
// handshake now. The CA may have been removed since, or the certificate may have ended.
func (c *tlsConn) acceptable(now time.Time) bool {
	config := c.config
	if config.GetConfigForClient != nil {
		config, _ = config.GetConfigForClient(nil) // see TLSConfig: there is no error
	}
	if config.ClientAuth != tls.RequireAndVerifyClientCert || config == c.accepted && now.Before(c.until) {
		return true
	}
	certs := c.tls.ConnectionState().PeerCertificates // at least one
	options := x509.VerifyOptions{
		Roots: config.ClientCAs, Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, cert := range certs[1:] {
		options.Intermediates.AddCert(cert)
	}
	chains, err := certs[0].Verify(options)
	if err != nil {
		c.log.Info("connection closed: its client certificate is not accepted any more", "why", err.Error(), "from", c.RemoteAddr().String())
		return false
	}
	c.accepted, c.until = config, chains[0][0].NotAfter
	for _, cert := range chains[0] {
		if cert.NotAfter.Before(c.until) {
			c.until = cert.NotAfter
		}
	}
	return true
}
