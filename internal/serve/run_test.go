package serve

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/content"
	"usher/internal/settings"
	"usher/webhookgate"
)

// A second signal ends usher even if something hangs, such as the database of the inbox.
func TestSecondSignalWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := webhookgate.New(webhookgate.Config{Store: func(context.Context, *webhookgate.Webhook) (string, error) { return "", nil }})
		u := &Usher{settings: new(settings.Settings), log: slog.New(slog.DiscardHandler), gate: gate}
		u.settings.Admin.ShutdownGrace = time.Hour
		atOnce, stop := context.WithCancelCause(context.Background())
		time.AfterFunc(time.Minute, func() { stop(errSecondSignal) })
		hung := make(chan struct{})
		defer close(hung)
		begin := time.Now()
		err := u.shutdown(atOnce, func(context.Context) error { <-hung; return nil }, func() {})
		if took := time.Since(begin); !errors.Is(err, errSecondSignal) || took > time.Minute+time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// When the grace is over usher ends, even if something hangs, such as the database of the inbox: a service manager
// would kill it a few seconds later.
func TestShutdownKeepsToTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &Usher{settings: new(settings.Settings), log: slog.New(slog.DiscardHandler)}
		u.settings.Admin.ShutdownDelay, u.settings.Admin.ShutdownGrace = 5*time.Second, 15*time.Second
		hung := make(chan struct{})
		time.AfterFunc(time.Hour, func() { close(hung) }) // or a failing test would not end
		begin := time.Now()
		err := u.shutdown(context.Background(), func(context.Context) error { return nil }, func() { <-hung })
		if took := time.Since(begin); err != nil || took > 23*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		<-hung
	})
}

// usher gives its leases back as soon as its deliveries have ended. It does not wait until the last sender has its
// answer, which may take the whole grace.
func TestCourierDoesNotWaitForSenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stored, storing := make(chan struct{}), make(chan struct{})
		rules, err := content.NewRules([]string{"*"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		gate := webhookgate.New(webhookgate.Config{
			Path: "/webhooks", Rules: rules, MaxBody: 100, MaxInflight: 1, Log: slog.New(slog.DiscardHandler), StoreUnclaimed: true,
			Store: func(context.Context, *webhookgate.Webhook) (string, error) { close(storing); <-stored; return "", nil },
		})
		answer := httptest.NewRecorder()
		go gate.ServeHTTP(answer, httptest.NewRequest("POST", "/webhooks", strings.NewReader(`{"type":"a"}`)))
		synctest.Wait()
		select {
		case <-storing:
		default:
			t.Fatalf("%d %s", answer.Code, answer.Body)
		}
		u := &Usher{settings: new(settings.Settings), log: slog.New(slog.DiscardHandler), gate: gate}
		u.settings.Admin.ShutdownGrace = 15 * time.Second
		time.AfterFunc(10*time.Second, func() { close(stored) })
		var waited time.Duration
		begin := time.Now()
		stopCourier := func(context.Context) error { waited = time.Since(begin); return nil }
		if err := u.shutdown(context.Background(), stopCourier, func() {}); err != nil || waited > 0 {
			t.Errorf("%v; deliveries were ended after %v", err, waited)
		}
		if synctest.Wait(); answer.Code != 200 {
			t.Errorf("%d %s", answer.Code, answer.Body)
		}
	})
}
