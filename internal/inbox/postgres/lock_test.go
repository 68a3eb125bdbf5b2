package postgres

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// After a transaction has waited in vain for a lock, the next ones wait for a short time only. That ends, even if
// they wait in vain, too: the others may just be slow.
func TestHurryEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := new(Engine)
		hurries := 0
		for range 100 {
			hurried := e.hurried()
			if hurried {
				hurries++
			}
			time.Sleep(time.Second / 5)
			e.noteLock(&pgconn.PgError{Code: "55P03"}, hurried)
		}
		if hurries < 50 || hurries == 99 {
			t.Errorf("%d of 100 transactions were hurried", hurries)
		}
	})
}
