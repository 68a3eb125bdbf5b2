package guard

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"usher/internal/secret"
)

// A Certificate comes from two files that may be replaced while it is in use: each handshake reads them again, since
// times and inodes do not show every change. While they cannot be used, such as a new certificate beside the old key,
// the last good one stays in use.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	good atomic.Pointer[tls.Certificate]

	mu              sync.Mutex // held by the handshake that reads the files; others take the last good one meanwhile
	certPEM, keyPEM []byte     // of which good was made
	problem         string     // of the last look
}

// NewCertificate returns a certificate. Its files must be good now.
func NewCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log}
	return c, c.read()
}

// Leaf returns the certificate that senders get to see.
func (c *Certificate) Leaf() *x509.Certificate { return c.current().Leaf }

// get is tls.Config.GetCertificate.
func (c *Certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil }

func (c *Certificate) current() *tls.Certificate {
	if c.mu.TryLock() {
		defer c.mu.Unlock()
		problem := ""
		if err := c.read(); err != nil {
			problem = err.Error()
		}
		if problem != "" && problem != c.problem {
			c.log.Warn("cannot use the new TLS files, usher keeps the last good ones", "error", problem)
		}
		c.problem = problem
	}
	return c.good.Load()
}

func (c *Certificate) read() error {
	certPEM, certErr := secret.ReadRegular(c.certFile)
	keyPEM, keyErr := secret.ReadRegular(c.keyFile)
	if err := cmp.Or(certErr, keyErr); err != nil {
		return err
	}
	if c.good.Load() != nil && bytes.Equal(certPEM, c.certPEM) && bytes.Equal(keyPEM, c.keyPEM) {
		return nil
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("%s, %s: %w", c.certFile, c.keyFile, err)
	}
	if c.good.Swap(&cert) != nil {
		c.log.Info("TLS files have changed and are in use", "certificate", c.certFile)
	}
	c.certPEM, c.keyPEM = certPEM, keyPEM
	return nil
}
