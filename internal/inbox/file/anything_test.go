package file

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// Whatever happens, and in whatever order: each tenant's snapshot is the last that was taken in for it,
// the bytes are counted right, and a receiver that is well ends up with what came last.
func TestAnythingHappens(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newChaos(t, seed).run() })
		}) {
			return
		}
	}
}

var chaosTenants = []string{"t", "u", "v"}

// chaos is an inbox to which anything may happen.
type chaos struct {
	*running
	cfg      setup
	receiver *inboxtest.Receiver
	rnd      *rand.Rand
	last     map[string]string // tenant → what came last
	story    []string
}

func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{receiver: new(inboxtest.Receiver), rnd: rand.New(rand.NewPCG(seed, 0)), last: make(map[string]string)}
	c.cfg = config(t.TempDir(), c.receiver)
	c.cfg.DedupWindow, c.cfg.courier.MaxAge = 1000*time.Hour, 1000*time.Hour
	c.cfg.courier.Attempts = 3 + c.rnd.IntN(10)
	c.cfg.courier.KeepLatest = c.rnd.IntN(2) == 0
	c.open(t)
	return c
}

func (c *chaos) open(t *testing.T) {
	told := make(map[webhookgate.Lane]uint64)
	c.cfg.OnSnapshot = func(lane webhookgate.Lane, id uint64, _ *webhookgate.Webhook) { told[lane] = id }
	c.running = open(t, c.cfg)
	c.told = told
	c.act(func(*bbolt.Tx) error { c.db.NoSync = true; return nil })
}

func (c *chaos) say(format string, args ...any) {
	c.story = append(c.story, fmt.Sprintf(format, args...))
}

func (c *chaos) run() {
	happens := []func(){
		c.comes, c.comes, c.comes, c.comes, c.comes, c.redeliver, c.redeliver, c.discard,
		c.trimSome, c.erase, c.receiverTurns, c.restart, c.harm, c.pass,
	}
	for range 40 {
		happens[c.rnd.IntN(len(happens))]()
		synctest.Wait()
		for _, tenant := range chaosTenants {
			if got := c.snapshot(tenant); got != c.last[tenant] {
				c.t.Errorf("the snapshot of %s is %q, not %q", tenant, got, c.last[tenant])
			}
		}
		c.act(c.recount)
		if c.t.Failed() {
			c.t.Fatal(strings.Join(c.story, "\n"))
		}
	}
}

// act has the writer do something to the file.
func (c *chaos) act(f func(*bbolt.Tx) error) {
	c.must(c.do(&op{act: func(tx *bbolt.Tx, _ *op) error { return f(tx) }}).err)
}

// anID is that of anything in the inbox; or of nothing.
func (c *chaos) anID() uint64 {
	entries, err := c.List(record.Filter{})
	c.must(err)
	if len(entries) == 0 {
		return 1
	}
	return entries[c.rnd.IntN(len(entries))].ID
}

func (c *chaos) aTenant() string { return chaosTenants[c.rnd.IntN(len(chaosTenants))] }

func (c *chaos) comes() {
	tenant, body := c.aTenant(), string(rune('A'+c.rnd.IntN(3)))
	well := c.rnd.IntN(3) == 0
	if well {
		c.receiver.Set(nil)
		synctest.Wait()
	}
	c.say("%s:%s comes, a copy: %v", tenant, body, c.keep(tenant, body))
	c.last[tenant] = body
	if !well {
		return
	}
	time.Sleep(30 * time.Minute)
	got := slices.DeleteFunc(c.receiver.Accepted(), func(s string) bool { return !strings.HasPrefix(s, tenant+":") })
	if got[len(got)-1] != tenant+":"+body {
		c.t.Errorf("the receiver, which is well, has %v", got)
	}
}

func (c *chaos) redeliver() {
	id, force := c.anID(), c.rnd.IntN(2) == 0
	c.say("redeliver %d, force %v: %v", id, force, c.Redeliver(id, force))
}

func (c *chaos) discard() {
	id := c.anID()
	c.say("discard %d: %v", id, c.Discard(id))
}

// trimSome drops some of what is finished, as the history does.
func (c *chaos) trimSome() {
	c.act(func(tx *bbolt.Tx) error {
		sizes := finished(tx)
		for _, key := range slices.Sorted(maps.Keys(sizes)) {
			if c.rnd.IntN(3) == 0 {
				continue
			}
			c.say("drop %d", record.KeyID([]byte(key)))
			c.history.remove(sizes[key])
			if err := c.drop(tx, []byte(key)); err != nil {
				return err
			}
		}
		return nil
	})
}

// finished returns the sizes of the records that are.
func finished(tx *bbolt.Tx) map[string]int64 {
	all := make(map[string]int64)
	_ = tx.Bucket(recordBucket).ForEach(func(k, v []byte) error {
		if record.Finished(tx.Bucket(statusBucket).Get(k)) {
			all[string(k)] = int64(len(v))
		}
		return nil
	})
	return all
}

func (c *chaos) erase() {
	tenant := c.aTenant()
	n, err := c.Erase("p", tenant)
	c.must(err)
	c.say("erase %s: %d", tenant, n)
	delete(c.last, tenant)
}

func (c *chaos) receiverTurns() {
	status := []int{200, 422, 500, 503}[c.rnd.IntN(4)]
	c.say("the receiver answers %d", status)
	c.receiver.Set(inboxtest.Status(status))
}

// restart ends the process in order, or without a word.
func (c *chaos) restart() {
	synctest.Wait()
	crash := c.rnd.IntN(2) == 0
	c.say("restart after a crash: %v", crash)
	now, err := os.ReadFile(c.cfg.Path)
	c.must(err)
	c.stop()
	if crash {
		c.must(os.WriteFile(c.cfg.Path, now, 0o600))
	}
	c.open(c.t)
}

// harm damages the memory of a lane.
func (c *chaos) harm() {
	tenant := c.aTenant()
	c.say("the memory of %s is damaged", tenant)
	c.act(func(tx *bbolt.Tx) error {
		key := record.LaneKey(inboxtest.Webhook(tenant, "").Lane)
		if m, err := decodeMemory(tx.Bucket(laneBucket).Get(key)); err != nil || m.Newest == 0 {
			return nil // there is none, or it is damaged already
		}
		return damage(tx, laneBucket, key)
	})
}

func (c *chaos) pass() { time.Sleep(time.Duration(c.rnd.IntN(1000)) * 200 * time.Millisecond) }

// recount compares what is counted with what is there.
func (c *chaos) recount(tx *bbolt.Tx) error {
	var all, old int64
	_ = tx.Bucket(recordBucket).ForEach(func(_, v []byte) error { all += int64(len(v)); return nil })
	done := finished(tx)
	for _, size := range done {
		old += size
	}
	if h := c.history; h.count != len(done) || h.bytes != old || c.used.Load() != all-old {
		c.t.Errorf("counted %d of %d bytes finished, and %d bytes that are not; there are %d of %d, and %d",
			h.count, h.bytes, c.used.Load(), len(done), old, all-old)
	}
	return nil
}
