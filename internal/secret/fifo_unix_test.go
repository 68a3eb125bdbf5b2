//go:build unix

package secret

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// Opening a pipe blocks until somebody opens its other end. A pipe in place of a secret's file must not stop the
// watch of the other files, nor keep usher from ending.
func TestWatchPassesOverPipes(t *testing.T) {
	dir := t.TempDir()
	piped, other := filepath.Join(dir, "piped"), filepath.Join(dir, "other")
	write(t, piped, "first")
	write(t, other, "first")
	synctest.Test(t, func(t *testing.T) {
		a, _ := FromFile(piped)
		b, _ := FromFile(other)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { Watch(ctx, slog.New(slog.DiscardHandler), a, b); close(ended) }()
		if err := os.Remove(piped); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(piped, 0o600); err != nil {
			t.Fatal(err)
		}
		write(t, other, "second")
		time.Sleep(3 * pollEvery)
		synctest.Wait()
		if a.Get() != "first" || b.Get() != "second" {
			t.Errorf("got %q and %q", a.Get(), b.Get())
		}
		cancel()
		<-ended
	})
}
