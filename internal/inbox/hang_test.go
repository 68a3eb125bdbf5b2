package inbox

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/receiver"
)

// A transaction whose COMMIT waits, as it does while the only synchronous standby is away, holds up all others. After
// five seconds the inbox says so, whatever the transaction was for, until one is committed.
func TestAnyTransactionThatHangsShows(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"sweep_lock", "webhook_add"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				// A transaction with this statement hangs until it is released, and then nobody knows whether it was
				// committed.
				release := make(chan struct{})
				asked, began, hung := false, false, false
				e := intercepted{
					write: func(run func(failure error) error) error {
						asked = false
						err := run(nil)
						if asked && began && !hung {
							hung = true
							<-release
							return engine.ErrDoubt
						}
						began = true // the first one opens the inbox
						return err
					},
					asks: func(s *statement) error {
						if s.tx.writes {
							asked = asked || s.name == name
						}
						return nil
					},
				}.on(inFile(t, newFile(t))())
				cfg := storing
				cfg.Receivers = receiver.NewSet(newTaker(receiver.Main, 1).Receiver)
				i := New(e, cfg)
				ctx, stop := context.WithCancel(t.Context())
				go i.Run(ctx, ctx)
				go i.Store(context.Background(), aHook(cfg.Receivers, "t", "A"))
				time.Sleep(4 * time.Second)
				check(t, i.Err())
				time.Sleep(3 * time.Second)
				if i.Err() == nil {
					t.Error("nothing is written for seven seconds, and the inbox says that all is well")
				}
				close(release)
				synctest.Wait()
				if name == "webhook_add" && i.Err() == nil { // after the others the next one is committed at once
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
