package inbox

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/webhookgate"
)

// A story is what happens to one tenant, as words:
//
//	A+ A= A!full   a webhook with the body A comes: it is taken in, is a copy, or is invalid
//	up s500 down   what the receiver answers from now on; f500: to the next try alone
//	idle           wait until nothing waits
//	tried parked   wait until the first that waits was tried, until one is parked
//	hang underway  tries take until "release"; wait until one is under way
//	quiet          wait until no try is under way: one that began before a pause may still be
//	+10m           the clock goes on
//	again:1 force:1 discard:1    by number of arrival; "!busy" and the like behind it: that is the error
//	erase pause resume restart
type story struct {
	name, script string
	accepted     string // what the receiver took, in order
	states       string // in the end, the oldest first
}

func (d *desk) play(tenant string, s story) {
	t := d.t
	t.Helper()
	platform, code, ok := strings.Cut(tenant, "/")
	if !ok {
		platform, code = "", tenant
	}
	for _, word := range strings.Fields(s.script) {
		verb, arg, _ := strings.Cut(word, ":")
		arg, wanted, _ := strings.Cut(arg, "!")
		number, _ := strconv.Atoi(arg)
		var err error
		switch verb {
		case "up":
			d.main.set(code, nil)
		case "down":
			d.main.set(code, unreachable)
		case "idle":
			d.idle(code)
		case "tried":
			d.until("tried", func() bool {
				for _, e := range d.list(code) {
					if e.State == state.Waiting {
						return e.Tries > 0
					}
				}
				return false
			})
		case "parked":
			d.until("parked", func() bool { return strings.Contains(d.states(code), "parked") })
		case "hang":
			d.release[code] = d.main.hang(code)
		case "underway":
			d.until("under way", func() bool {
				d.main.mu.Lock()
				defer d.main.mu.Unlock()
				return d.main.underway > 0
			})
		case "quiet": // after a pause: a try that had begun before may still be on its way
			d.until("nothing under way", func() bool {
				d.courier.mu.Lock()
				defer d.courier.mu.Unlock()
				return d.courier.unfinished == 0
			})
		case "release":
			d.release[code]()
		case "again":
			err = d.Redeliver(d.nth(code, number), false)
		case "force":
			err = d.Redeliver(d.nth(code, number), true)
		case "discard":
			err = d.Discard(d.nth(code, number))
		case "erase":
			_, err = d.Erase(platform, code)
		case "pause":
			err = d.Pause(Pause{Platform: platform, Tenant: code})
		case "resume":
			_, err = d.Resume(Pause{Platform: platform, Tenant: code})
		case "restart":
			d.restart()
		default:
			if after, err := time.ParseDuration(word); err == nil && (word[0] == '+' || word[0] == '-') {
				d.ahead.Add(int64(after))
				continue
			}
			if answer, err := strconv.Atoi(word[1:]); err == nil && word[0] == 's' {
				d.main.set(code, status(answer))
				continue
			} else if err == nil && word[0] == 'f' {
				d.main.set(code, answers(answer, 200))
				continue
			}
			d.arrive(tenant, word)
			continue
		}
		if got := errorWord(err); got != wanted {
			t.Fatalf("%s: %q, want %q (%v)", word, got, wanted, err)
		}
	}
	d.want("accepted", strings.Join(d.main.got(code), " "), s.accepted)
	d.want("states", d.states(code), s.states)
}

// arrive sends the webhook that a word of a story describes.
func (d *desk) arrive(tenant, word string) {
	d.t.Helper()
	end := strings.IndexAny(word, "+=!")
	if end < 0 {
		d.t.Fatalf("what is %s?", word)
	}
	w := d.hook(tenant, word[:end])
	if got := d.sendHook(w); got != strings.TrimPrefix(word[end:], "!") {
		d.t.Fatalf("%s: %s", word, got)
	}
}

// errorWord returns a short name of an action's error.
func errorWord(err error) string {
	var overwrite *lane.OverwriteError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, lane.ErrFinished):
		return "finished"
	case errors.Is(err, lane.ErrBusy):
		return "busy"
	case errors.Is(err, lane.ErrMeanwhile):
		return "newer"
	case errors.Is(err, lane.ErrStored):
		return "stored"
	case errors.Is(err, webhookgate.ErrFull):
		return "full"
	case errors.As(err, &overwrite):
		return "overwrite"
	}
	return err.Error()
}

func playAll(t *testing.T, d *desk, platform string, stories []story) {
	t.Helper()
	defer func() { // one has failed
		for _, release := range d.release {
			release()
		}
	}()
	for n, s := range stories {
		t.Log(s.name)
		d.play(platform+fmt.Sprintf("t%d", n), s)
	}
}

// Dedup asks one question: does the receiver hold exactly this state, or will it, when all waiting webhooks are
// delivered?
func TestCopies(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		playAll(t, newDesk(t, open), "", []story{
			{"a copy of what was delivered", "A+ idle A=", "A", "delivered"},
			{"A, B, A are three changes", "A+ idle B+ idle A+ idle", "A B A", "delivered delivered delivered"},
			{"also at once", "hang A+ B+ A+ A= release idle", "A B A", "delivered delivered delivered"},
			{"a copy of the tail", "s500 A+ tried A= B+ B= up idle B=", "A B", "delivered delivered"},
			{"a copy of what waits before the tail is a change back",
				"hang A+ B+ A+ release idle A=", "A B A", "delivered delivered delivered"},
			{"while it waits the window does not apply", "s500 A+ tried +1h A= up idle", "A", "delivered"},
			{"the window counts from acceptance",
				"s500 A+ tried +1h up idle A= +9m59s A= +2s A+ idle", "A A", "delivered delivered"},
			{"the window does not slide", "A+ idle +6m A= +6m A+ idle", "A A", "delivered delivered"},
			{"a clock that goes back", "A+ idle -1h A+ idle +1h", "A A", "delivered delivered"},
			{"what was parked is not held", "s400 A+ parked up A+ idle", "A", "superseded delivered"},
			{"what was discarded is not held", "s500 A+ tried discard:1 up A+ idle", "A", "discarded delivered"},
			{"what was refused after a redelivery is not held",
				"A+ idle s400 again:1 parked up A+ idle", "A A", "superseded delivered"},
			{"nor is what is newer than that",
				"A+ idle B+ idle s400 force:1 parked up B+ idle", "A B B", "superseded delivered delivered"},
			{"a failed try empties the memory",
				"A+ idle s400 B+ parked up A+ idle", "A A", "delivered superseded delivered"},
			{"discarding the tail", "s500 A+ tried B+ discard:2 B+ up idle", "A B", "delivered discarded delivered"},
			{"discarding before the tail", "s500 A+ tried B+ discard:1 B= up idle", "B", "discarded delivered"},
			{"sent again, it is the tail again",
				"s400 A+ parked hang up again:1 underway A= release idle A=", "A", "delivered"},
			{"an older one sent again is no news: the next is",
				"A+ idle B+ idle force:1 idle A+ idle A= B+ idle",
				"A B A A B", "delivered delivered delivered delivered"},
			{"an older one that waits, sent again with force, does not hide a copy of the newest",
				"A+ idle B+ idle hang force:1 underway B+ release idle", "A B A B", "delivered delivered delivered"},
			{"a copy outlives a restart", "A+ idle restart A=", "A", "delivered"},
			{"a copy of what waits outlives a restart", "s500 A+ tried restart A= up idle", "A", "delivered"},
		})
	})
}

// A webhook that is no snapshot is never a duplicate. With a window of 0 no webhook is.
func TestNoCopies(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		for range 2 {
			d.want("an event without a tenant", d.sendHook(d.event("", "A")), "+")
			d.want("an event of a tenant", d.sendHook(d.event("t", "E")), "+")
		}
		d.idle("")
		d.shut()
		d.cfg.DedupWindow = 0
		d.start()
		d.take("u", "A", "A")
		d.idle("")
		d.want("accepted", fmt.Sprint(d.main.got("u")), "[A A]")
	})
}

// One delivery at a time in a lane, in order of arrival; a webhook that is sent again goes ahead.
func TestOrder(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		playAll(t, newDesk(t, open), "", []story{
			{"in order", "s500 A+ tried B+ C+ D+ up idle", "A B C D", "delivered delivered delivered delivered"},
			{"a parked one frees its lane", "s400 A+ parked up B+ idle", "B", "superseded delivered"},
			{"a parked one that is the last stays", "A+ idle s410 B+ parked", "A", "delivered parked"},
			{"redelivered", "s422 A+ parked up again:1 idle", "A", "delivered"},
			{"sent again ahead of what waits",
				"s413 A+ parked s500 B+ tried pause quiet again:1!overwrite force:1 up resume idle",
				"A B", "delivered delivered"},
			{"what waits is tried now", "s503 A+ tried pause quiet again:1 up again:1 resume idle", "A", "delivered"},
			{"a redelivery would undo what is newer",
				"A+ idle B+ idle again:1!overwrite force:1 idle again:2 idle", "A B A B", "delivered delivered"},
			{"even if the newer one was discarded",
				"A+ idle s500 B+ tried discard:2 up again:1!overwrite", "A", "delivered discarded"},
			{"several sent again go by age",
				"A+ idle B+ idle C+ idle pause force:2 force:1 resume idle",
				"A B C A B", "delivered delivered delivered"},
			{"the newest, discarded and sent again behind an older one",
				"pause A+ B+ discard:2 again:2 resume idle", "A B", "delivered delivered"},
			{"the newest sent again last",
				"A+ idle B+ idle pause again:2 force:1 resume idle", "A B A B", "delivered delivered"},
			{"sent again without force, and overtaken",
				"s500 A+ tried discard:1 pause again:1 B+ again:1 up resume idle", "A B", "delivered delivered"},
			{"discard the first, and the next goes",
				"s500 A+ tried B+ pause discard:1 up resume idle", "B", "discarded delivered"},
			{"discard what is parked", "s400 A+ parked discard:1 discard:1!finished", "", "discarded"},
			{"discard what is delivered", "A+ idle discard:1!finished", "A", "delivered"},
			{"send a discarded one again", "s500 A+ tried discard:1 up again:1 idle", "A", "delivered"},
			{"parked and sent again while a newer one waits",
				"s400 A+ parked s500 B+ tried up idle again:1!overwrite", "B", "superseded delivered"},
			{"what waits outlives a restart",
				"s500 A+ tried B+ restart C+ up idle", "A B C", "delivered delivered delivered"},
			{"what is parked outlives a restart", "s400 A+ parked restart up again:1 idle", "A", "delivered"},
			{"erase what waits", "s500 A+ tried B+ erase up C+ idle", "C", "delivered"},
			{"erase what is parked and finished", "A+ idle s400 B+ parked up erase A+ idle", "A A", "delivered"},
		})
	})
}

// Pauses of one tenant. A delivery that has begun may finish, and new webhooks wait.
func TestPausedTenant(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		playAll(t, newDesk(t, open), "crm/", []story{
			{"nothing goes until it is resumed",
				"pause A+ B+ A+ restart resume idle", "A B A", "delivered delivered delivered"},
			{"what is under way finishes", "hang A+ B+ underway pause release restart", "A", "delivered waiting"},
			{"in the middle of pauses", "s500 A+ tried pause up B+ resume idle", "A B", "delivered delivered"},
			{"redelivery waits, too", "s400 A+ parked up pause again:1 restart", "", "waiting"},
			{"an erased tenant stays paused", "pause A+ erase B+ restart", "", "waiting"},
		})
	})
}

// Of the parked snapshots of a tenant the newest stays.
func TestOneParkedSnapshot(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		playAll(t, d, "", []story{
			{"a newer one", "s422 A+ parked B+ idle", "", "superseded parked"},
			{"an older one that somebody has forced",
				"A+ idle B+ idle C+ idle s422 force:2 idle force:1 idle up again:3 idle",
				"A B C C", "superseded superseded delivered"},
		})
	})
}

// A webhook that no receiver takes is stored. A waiting webhook never becomes stored.
func TestStored(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		main := newTaker("docs", 4, "docs")
		d := newDesk(t, open, func(c *setup) { c.StoreUnclaimed, c.Receivers = true, receiver.NewSet(main.Receiver) })
		d.main = main
		playAll(t, d, "crm/k", []story{
			{"stored at once", "A+ A= B+ A+", "", "stored stored stored"},
			{"the window counts", "A+ +9m A= +2m A+", "", "stored stored"},
			{"not sent again", "A+ again:1!stored force:1!stored discard:1!finished", "", "stored"},
		})
		// The platform had a receiver: what waits or is parked stays so, and what comes queues behind it.
		d.shut()
		both := receiver.NewSet(main.Receiver, newTaker("crm", 4, "crm").Receiver)
		none := d.cfg.Receivers
		crm := both.For("crm").Transport.(*taker)
		crm.set("", status(500))
		crm.set("parked", status(400))
		d.cfg.Receivers = both
		d.start()
		d.take("crm/waits", "A")
		d.take("crm/parked", "A")
		d.becomes("parked", "parked")
		d.shut()
		d.cfg.Receivers = none
		d.start()
		d.want("a copy of the tail", d.send("crm/waits", "A"), "=")
		d.take("crm/waits", "B")
		d.take("crm/parked", "A")
		d.want("behind what waits", d.states("waits"), "waiting waiting")
		d.want("behind what is parked", d.states("parked"), "parked waiting")
		d.until("counted by receiver", func() bool { return d.Stats().Receivers[""].Pending == 3 })
		d.shut()
		crm.set("", nil)
		crm.set("parked", nil)
		d.cfg.Receivers = both
		d.start()
		d.idle("")
		d.want("accepted in the end", fmt.Sprint(crm.got("waits"), crm.got("parked")), "[A B] [A]")
	})
}

// Dedup goes by the receiver: what another receiver has accepted does not count, and waiting webhooks go to the new
// one.
func TestReceiverChanges(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.main.set("w", status(500))
		d.take("crm/a", "A")
		d.take("crm/w", "A")
		d.idle("a")
		d.shut()
		crm := newTaker("crm", 4, "crm")
		d.cfg.Receivers = receiver.NewSet(d.main.Receiver, crm.Receiver)
		d.start()
		d.take("crm/a", "A")
		d.want("a copy", d.send("crm/a", "A"), "=")
		d.idle("")
		got := crm.got("")
		if fmt.Sprint(d.main.got("")) != "[a:A]" || len(got) != 2 {
			t.Errorf("the former one got %v, the new one %v", d.main.got(""), got)
		}
	})
}
