package guard

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"usher/internal/secret"
)

// TLSConfig makes a server's configuration from files that may be replaced while it serves. It
// reads them at each handshake, which costs little compared with the handshake. (Times and inodes
// do not show every change: files are rewritten in place, and symlinks swapped.) If the files
// cannot be read, or not within readPatience, or do not fit together (a new certificate with the
// old key), the last good ones stay in use, and the problem is logged once. With a clientCAFile, clients need a valid
// certificate of that CA, not only for the handshake but for each request (see NewServer).
func TLSConfig(certFile, keyFile, clientCAFile string, log *slog.Logger) (*tls.Config, error) {
	files, err := newTLSFiles(certFile, keyFile, clientCAFile, log)
	if err != nil {
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
	names  []string // certificate, key and, if there is one, the file with client CAs
	log    *slog.Logger
	read   func(name string) ([]byte, error)
	config atomic.Pointer[tls.Config] // the last good one

	// mu guards reading. It is never held while a file is read: that may take for ever (a dead network disk).
	mu      sync.Mutex
	reading *fileReading // the try that is under way; nil: none is

	// Used by the try that is under way only:
	contents [][]byte    // of the files that config was made from
	problem  string      // of the last try; empty: none
	expired  *tls.Config // that of the expired certificate that was logged last
}

// fileReading is one try to read the files.
type fileReading struct {
	began time.Time
	done  chan struct{} // closed at its end
	late  sync.Once     // logs that it takes long
}

// readPatience is how long a handshake waits for the files.
const readPatience = time.Second / 2

func newTLSFiles(certFile, keyFile, clientCAFile string, log *slog.Logger) (*tlsFiles, error) {
	f := &tlsFiles{names: []string{certFile, keyFile}, log: log, read: secret.ReadRegular}
	if clientCAFile != "" {
		f.names = append(f.names, clientCAFile)
	}
	if err := f.reload(); err != nil {
		return nil, err
	}
	f.reportExpired(time.Now())
	return f, nil
}

// current returns the configuration that the files hold now, or else the last good one.
func (f *tlsFiles) current() *tls.Config {
	f.mu.Lock()
	r := f.reading
	if r == nil {
		r = &fileReading{began: time.Now(), done: make(chan struct{})}
		f.reading = r
		go f.update(r)
	}
	f.mu.Unlock()
	late := time.NewTimer(max(0, readPatience-time.Since(r.began)))
	defer late.Stop()
	select {
	case <-r.done:
	case <-late.C:
		r.late.Do(func() {
			f.log.Warn("reading the TLS files takes long, usher keeps the last good ones", "certificate", f.names[0])
		})
	}
	return f.config.Load()
}

// update is one try to read the files.
func (f *tlsFiles) update(r *fileReading) {
	problem := ""
	if err := f.reload(); err != nil {
		problem = err.Error()
	}
	if problem != f.problem && problem != "" {
		f.log.Warn("cannot use the new TLS files, usher keeps the last good ones", "error", problem)
	}
	f.problem = problem
	f.reportExpired(time.Now())
	f.mu.Lock()
	f.reading = nil
	f.mu.Unlock()
	close(r.done)
}

// reportExpired logs once that the certificate has expired: senders do not say why they no longer connect.
func (f *tlsFiles) reportExpired(now time.Time) {
	config := f.config.Load()
	if end := config.Certificates[0].Leaf.NotAfter; now.After(end) && f.expired != config {
		f.expired = config
		f.log.Error("the TLS certificate has expired, senders refuse it: put a new one into the file",
			"certificate", f.names[0], "expired", end)
	}
}

func (f *tlsFiles) reload() error {
	contents := make([][]byte, len(f.names))
	first := f.config.Load() == nil
	changed := first
	for i, name := range f.names {
		content, err := f.read(name)
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
	f.contents = contents
	f.config.Store(config)
	if !first {
		f.log.Info("TLS files have changed and are in use", "certificate", f.names[0])
	}
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

// acceptable reports whether a handshake would still accept the client's certificate, if one is
// required. Since the handshake the CA may have been removed, or a certificate may have expired.
func (c *tlsConn) acceptable(now time.Time) bool {
	config := c.config
	if config.GetConfigForClient != nil {
		config, _ = config.GetConfigForClient(nil) // that of TLSConfig returns no error
	}
	if config.ClientAuth != tls.RequireAndVerifyClientCert || config == c.accepted && now.Before(c.acceptedUntil) {
		return true
	}
	certs := c.tls.ConnectionState().PeerCertificates // at least one
	options := x509.VerifyOptions{
		Roots:         config.ClientCAs,
		Intermediates: x509.NewCertPool(),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, cert := range certs[1:] {
		options.Intermediates.AddCert(cert)
	}
	chains, err := certs[0].Verify(options)
	if err != nil {
		c.log.Info("connection closed: its client certificate is not accepted any more",
			"why", err.Error(), "from", c.RemoteAddr().String())
		return false
	}
	first := slices.MinFunc(chains[0], func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	c.accepted, c.acceptedUntil = config, first.NotAfter
	return true
}
