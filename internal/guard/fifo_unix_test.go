//go:build unix

package guard

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Files that cannot be read to an end, or not in a reasonable time, are like files that are missing: the last
// good ones stay in use.
func TestEndlessTLSFiles(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile, fifo := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "fifo")
	ca := newAuthority(t, "ca")
	cert, key := ca.issue(t, "gate.test")
	write(t, certFile, cert)
	write(t, keyFile, key)
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	config, err := TLSConfig(certFile, keyFile, "", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s := tlsServer(t, config)
	for name, replace := range map[string]func() error{
		"is not a regular file":          func() error { return os.Rename(fifo, certFile) },
		"the file is larger than 16 MiB": func() error { os.Remove(certFile); write(t, certFile, cert); return os.Truncate(certFile, 1<<40) },
	} {
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		if _, err := handshake(t, s, ca, nil); err != nil || !strings.Contains(log.String(), name) {
			t.Errorf("%s: %v; the log:\n%s", name, err, &log)
		}
	}
	if _, err := TLSConfig(certFile, keyFile, "", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("usable at the start")
	}
}
