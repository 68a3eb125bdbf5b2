package serve

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/settings"
	"usher/webhookgate"
)

// A second signal ends usher also if something hangs, such as the inbox's servers.
func TestSecondSignalWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, err := webhookgate.New(webhookgate.Config{ForwardURL: &url.URL{Scheme: "http", Host: "localhost"}})
		if err != nil {
			t.Fatal(err)
		}
		u := &Usher{settings: new(settings.Settings), log: slog.New(slog.DiscardHandler), gate: gate}
		u.settings.Admin.ShutdownGrace = time.Hour
		atOnce, stop := context.WithCancelCause(context.Background())
		time.AfterFunc(time.Minute, func() { stop(errSecondSignal) })
		hung := make(chan struct{})
		defer close(hung)
		begin := time.Now()
		err = u.shutdown(atOnce, func(context.Context) error { <-hung; return nil }, func() {})
		if took := time.Since(begin); !errors.Is(err, errSecondSignal) || took > time.Minute+time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}
