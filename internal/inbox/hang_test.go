package inbox

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/receiver"
)

// A transaction whose COMMIT waits, as it does while the only synchronous standby is away, holds up all others. After
// five seconds the inbox says so, whatever the transaction was for, until one is committed.
func TestAnyTransactionThatHangsShows(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"sweep_lock", "add_webhook"} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := &hanging{Engine: inFile(t, newFile(t))(), statement: statement, release: make(chan struct{})}
				cfg := Config{Rules: lane.Rules{StoreUnclaimed: true, Log: slog.New(slog.DiscardHandler), Receivers: receiver.NewSet(newTaker(receiver.Main, 1).Receiver)}, MaxBytes: 1 << 30}
				i := New(e, cfg)
				ctx, stop := context.WithCancel(t.Context())
				go i.Run(ctx, ctx)
				go i.Store(aHook(cfg.Receivers, "t", "A"))
				time.Sleep(4 * time.Second)
				check(t, i.Err())
				time.Sleep(3 * time.Second)
				if i.Err() == nil {
					t.Error("nothing is written for seven seconds, and the inbox says that all is well")
				}
				close(e.release)
				synctest.Wait()
				if statement == "add_webhook" && i.Err() == nil { // after the others the next one is committed at once
					t.Error("nobody knows whether it was done, and the inbox says that all is well")
				}
				time.Sleep(2 * time.Second)
				check(t, i.Err())
				stop()
				synctest.Wait()
				check(t, i.Close())
			})
		})
	}
}

// hanging is an engine whose transactions with this statement hang until it is released, and then nobody knows
// whether they were committed.
type hanging struct {
	engine.Engine
	statement string
	release   chan struct{}
	began     bool
	hung      bool
}

func (e *hanging) Write(fn func(engine.Tx) error) error {
	hangs := false
	err := e.Engine.Write(func(tx engine.Tx) error {
		return fn(&listening{tx, func(statement string) { hangs = hangs || statement == e.statement }})
	})
	if hangs && e.began && !e.hung {
		e.hung = true
		<-e.release
		return engine.ErrDoubt
	}
	e.began = true // the first one opens the inbox
	return err
}

// listening tells which statements are queued.
type listening struct {
	engine.Tx
	hear func(statement string)
}

func (l *listening) Queue(statement string, each func(engine.Row) error, args ...any) {
	l.hear(statement)
	l.Tx.Queue(statement, each, args...)
}
