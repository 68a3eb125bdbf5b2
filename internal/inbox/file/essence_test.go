package file

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// What stays of a snapshot for years is what is needed to answer from: no contacts, and no headers.
func TestEssenceOutlivesTheHistory(t *testing.T) {
	for name, leave := range map[string]func(*running){
		"trimmed": func(i *running) {
			i.must(i.db.Update(func(tx *bbolt.Tx) error { return i.drop(tx, record.IDKey(1)) }))
		},
		"a copy of what was sent again": func(i *running) {
			i.keep("t", "B")
			time.Sleep(time.Second)
			i.must(i.Redeliver(1, true))
			time.Sleep(time.Second)
			if !i.keep("t", "features and contacts") {
				t.Error("the receiver holds it, and gets it again")
			}
			i.must(i.db.Update(func(tx *bbolt.Tx) error { return i.drop(tx, record.IDKey(1)) }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := config(t.TempDir(), new(inboxtest.Receiver))
				cfg.Essence = func(body []byte) []byte { return bytes.TrimSuffix(body, []byte(" and contacts")) }
				told := make(map[webhookgate.Lane]uint64)
				cfg.OnSnapshot = func(lane webhookgate.Lane, id uint64, _ *webhookgate.Webhook) { told[lane] = id }
				i := open(t, cfg)
				i.told = told
				i.keep("t", "features and contacts")
				time.Sleep(time.Second)
				leave(i)
				if got := i.snapshot("t"); got != "features" {
					t.Errorf("the snapshot is %q", got)
				}
				i.must(i.db.View(func(tx *bbolt.Tx) error {
					return tx.Bucket(snapshotBucket).ForEach(func(_, v []byte) error {
						if bytes.Contains(v, []byte("contacts")) || bytes.Contains(v, []byte("X-Test")) {
							t.Errorf("%q stays", v)
						}
						return nil
					})
				}))
				if !i.keep("t", "features and contacts") {
					t.Error("the receiver holds it, and gets it again")
				}
			})
		})
	}
}
