package inbox

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"
)

// TestNothingIsLostOrDroppedOnAGuess throws random traffic at an inbox: copies, changes
// back and forth, two receivers that fail, hang, are down for a while, time out having
// applied a snapshot or not, redeliveries, discards, forgetting, evictions, waits beyond
// the window, for several tenants at once; and every now and then a process is gone, and
// another one finds the store as it was at that moment, perhaps with other receivers for
// the platforms. Then it asks what may never be:
//
//	(a) a copy answered duplicate of what its receiver neither holds for sure as its
//	    latest nor is about to get as such,
//	(b) a delivery that overlaps or overtakes another of its tenant, comes after it was
//	    discarded, or is made again without a crash or a cut to excuse it,
//	(c) a webhook that was acknowledged, and is neither delivered, nor parked for a
//	    reason, nor superseded by a newer one, nor discarded,
//	(d) a receiver that in the end does not hold the newest that it accepted,
//	(e) a snapshot, for entitlements, that is older than the last acknowledged one,
//	(f) a try of what is paused.
func TestNothingIsLostOrDroppedOnAGuess(t *testing.T) {
	checkWorlds(t, 1000, func(_ *rapid.T, w *world) opener { return &fileOpener{dir: w.dir} },
		"duplicate", "delivered", "parked", "superseded", "discarded", "crash", "in doubt", "repeat", "redelivered", "forced", "asked", "paused")
}

// A fileOpener keeps the inbox in a file. After a crash it is a copy of what there was.
type fileOpener struct {
	dir   string
	files int
}

func (o *fileOpener) path() string { return filepath.Join(o.dir, fmt.Sprint(o.files, ".db")) }

func (o *fileOpener) open(_ *place, cfg Config) (*Inbox, error) {
	cfg.URL = "file:" + o.path()
	cfg.update = func(db *bbolt.DB, f func(*bbolt.Tx) error) error {
		db.NoSync = true // it is the kernel's copy that survives here
		time.Sleep(testDisk)
		err := db.Update(f)
		time.Sleep(testDisk) // it is safe, and nobody knows yet
		return err
	}
	return Open(cfg)
}

func (o *fileOpener) crash(p *place) {
	file, err := os.ReadFile(o.path())
	if err != nil {
		panic(err)
	}
	p.kill()
	o.files++
	if err := os.WriteFile(o.path(), file, 0o600); err != nil {
		panic(err)
	}
}

func (o *fileOpener) places() int                      { return 1 }
func (o *fileOpener) steps() []string                  { return nil }
func (o *fileOpener) trouble(*rapid.T, *place, string) {}
func (o *fileOpener) settled() time.Duration           { return testSettled }
func (o *fileOpener) several() bool                    { return false }
func (o *fileOpener) end()                             {}
