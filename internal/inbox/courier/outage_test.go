package courier

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// 5,000 tenants wait while the receiver is down: it is probed, not hammered; once it
// is back all is delivered soon, and never more at once than allowed.
func TestOutage(t *testing.T) {
	for _, noting := range []time.Duration{0, 5 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			rc := new(inboxtest.Receiver)
			rc.Set(inboxtest.Refusing)
			rc.Slow(10 * time.Millisecond)
			d := run(t, config(rc))
			d.change(func() { d.noting = noting })
			for n := range 5000 {
				d.send(fmt.Sprint("t", n), "A")
			}
			time.Sleep(time.Minute)
			if n := len(rc.Tried()); n > 100 {
				t.Errorf("%d tries in a minute of outage", n)
			}
			rc.Set(nil)
			back := time.Now()
			time.Sleep(longestProbe + time.Second)
			if len(rc.Accepted()) == 0 {
				t.Error("the receiver's return was not noticed")
			}
			for len(rc.Accepted()) < 5000 {
				time.Sleep(time.Second)
				if time.Since(back) > time.Minute {
					t.Fatalf("only %d delivered in a minute", len(rc.Accepted()))
				}
			}
			time.Sleep(time.Second)
			if s := d.Stats(); rc.Most() > 32 || s.Pending != 0 {
				t.Errorf("%d deliveries at once, %+v", rc.Most(), s)
			}
		})
	}
}

// Also a single tenant whose own pauses have become long learns soon that the
// receiver is back.
func TestReturnIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Refusing)
		d := run(t, config(rc))
		d.send("t", "A")
		time.Sleep(30 * time.Minute)
		rc.Set(nil)
		time.Sleep(longestProbe)
		synctest.Wait()
		rc.Want(t, "t:A")
	})
}

// One tenant gets nothing but 500s, then there is an outage: whenever the receiver comes
// back, the other tenant's webhook is delivered within the pause between two probes,
// whichever of the two lanes has the longer pause of its own.
func TestReturnIsNoticedBehindAnIllTenant(t *testing.T) {
	for n := range 20 {
		synctest.Test(t, func(t *testing.T) {
			rc := new(inboxtest.Receiver)
			rc.Set(inboxtest.Status(500))
			cfg := config(rc)
			cfg.Attempts, cfg.Pause = 1000, full
			d := run(t, cfg)
			d.send("ill", "A")
			time.Sleep(10 * time.Minute)
			rc.Set(inboxtest.Refusing)
			d.send("well", "A")
			time.Sleep(10*time.Minute + time.Duration(n)*31*time.Second)
			rc.Set(inboxtest.Ill("ill"))
			time.Sleep(longestProbe)
			synctest.Wait()
			if len(rc.Accepted()) == 0 {
				t.Errorf("run %d: not delivered", n)
			}
		})
	}
}

// Whatever a receiver answers that was down: it is back, and those are woken who wait for
// that.
func TestAnyAnswerWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Refusing)
		cfg := config(rc)
		cfg.Pause = full
		d := run(t, cfg)
		d.send("waits", "A")
		time.Sleep(20 * time.Minute) // its pause is five minutes by now
		back := time.Now()
		rc.Set(inboxtest.Ill("ill"))
		d.send("ill", "A")
		time.Sleep(longestProbe)
		if got := rc.Accepted(); fmt.Sprint(got) != "[waits:A]" {
			t.Errorf("%v after the receiver's return it has accepted %v", time.Since(back), got)
		}
	})
}

// A lane whose note is being written is in no heap. When the receiver has taken
// something meanwhile it is woken as the others were.
func TestNotingLaneIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(func(w *webhookgate.Webhook, n int) webhookgate.Attempt {
			if n == 1 {
				return webhookgate.Attempt{Status: 503}
			}
			return webhookgate.Attempt{Status: 200}
		})
		cfg := config(rc)
		cfg.Pause = func(time.Duration) time.Duration { return lastPause }
		d := run(t, cfg)
		d.change(func() { d.noting = time.Second })
		d.send("t", "A")
		time.Sleep(time.Second / 2)
		d.send("u", "A")
		time.Sleep(3 * time.Second)
		rc.Want(t, "u:A", "t:A")
	})
}

// A tenant that the receiver can never answer in time does not profit from the others'
// success: it keeps its own, long pauses.
func TestLaneWithATroubleOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc, tries := new(inboxtest.Receiver), 0
		rc.Set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
			if w.Lane.Tenant == "bad" {
				tries++
				return webhookgate.Attempt{Err: context.DeadlineExceeded}
			}
			return webhookgate.Attempt{Status: 200}
		})
		d := run(t, config(rc))
		d.send("bad", "A")
		for n := range 600 {
			d.send("good", fmt.Sprint(n))
			time.Sleep(time.Second)
		}
		if got := len(rc.Accepted()); got != 600 || tries < 5 || tries > 30 {
			t.Errorf("%d accepted; %d tries of the bad one in ten minutes", got, tries)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	for _, test := range []struct {
		asked, waits time.Duration
	}{{30 * time.Second, 30 * time.Second}, {0, time.Second}, {48 * time.Hour, longestWish}} {
		t.Run(fmt.Sprint(test.asked), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, code := range []int{429, 503} {
					rc := new(inboxtest.Receiver)
					rc.Set(func(_ *webhookgate.Webhook, n int) webhookgate.Attempt {
						if n == 1 {
							return webhookgate.Attempt{Status: code, RetryAfter: test.asked}
						}
						return webhookgate.Attempt{Status: 200}
					})
					cfg := config(rc)
					cfg.Pause = full
					run(t, cfg).send("t", "A")
					time.Sleep(2 * time.Hour)
					if at := rc.Tried(); len(at) != 2 || at[1].Sub(at[0]) != test.waits {
						t.Errorf("%d: tried at %v", code, at)
					}
				}
			})
		})
	}
}

// A receiver that is down and says when it wants to be asked again is not asked before,
// by those whom it said so; others find out by themselves.
func TestRetryAfterWhileDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(func(*webhookgate.Webhook, int) webhookgate.Attempt {
			return webhookgate.Attempt{Status: 503, RetryAfter: 10 * time.Minute}
		})
		d := run(t, config(rc))
		for n := range 10 {
			d.send(fmt.Sprint("t", n), "A")
		}
		time.Sleep(time.Hour + time.Minute)
		if n := len(rc.Tried()); n < 40 || n > 70 {
			t.Errorf("%d tries of ten tenants in an hour", n)
		}
	})
}

// An outage is said once when it begins and once when it ends, however many tries
// there were between.
func TestOutageIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Refusing)
		var log bytes.Buffer
		cfg := config(rc)
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		d := run(t, cfg)
		for n := range 20 {
			w := inboxtest.Webhook(fmt.Sprint("t", n), "A")
			w.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
			d.sendWebhook(w, w)
		}
		time.Sleep(time.Minute)
		rc.Set(nil)
		time.Sleep(time.Minute)
		d.stop()
		for line, want := range map[string]int{
			`level=WARN msg="receiver seems to be down, trying one delivery at a time" receiver=main`: 1,
			`level=INFO msg="receiver answers again" receiver=main`:                                   1,
		} {
			if got := strings.Count(log.String(), line); got != want {
				t.Errorf("%s: %d times", line, got)
			}
		}
		for _, part := range []string{`msg="delivery failed, will retry"`, "attempt=1", "next_try=", "trace_id=0af7651916cd43dd8448eb211c80319c", "receiver=main"} {
			if line, _, _ := strings.Cut(log.String(), "\n"); !strings.Contains(line, part) {
				t.Errorf("%s is not in %s", part, line)
			}
		}
	})
}

// Three receivers, of which one refuses and one hangs: the third's deliveries are as fast
// as alone. Who has no receiver waits, and is counted.
func TestReceiversDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []string{"well", "refuses", "hangs"}
		receivers := make([]*inboxtest.Receiver, 3)
		cfg := config(new(inboxtest.Receiver))
		cfg.Receivers = nil
		for n, name := range names {
			receivers[n] = new(inboxtest.Receiver)
			cfg.Receivers = append(cfg.Receivers, Receiver{Name: name, Try: receivers[n].Try, Concurrency: 2})
		}
		receivers[0].Slow(100 * time.Millisecond)
		receivers[1].Set(inboxtest.Refusing)
		receivers[2].Slow(time.Hour)
		cfg.Route = func(l webhookgate.Lane) string { return l.Platform }
		d := run(t, cfg)
		for n := range 20 {
			for _, name := range append(names, "nobody", "") {
				w := inboxtest.Webhook(fmt.Sprint("t", n), name)
				w.Lane.Platform = name
				d.sendWebhook(w, w)
			}
		}
		time.Sleep(time.Second + time.Millisecond)
		s := d.Stats()
		if n := len(receivers[0].Accepted()); n != 20 || s.Pending != 80 {
			t.Errorf("%d of 20 delivered in a second, 10 after the other; %+v", n, s)
		}
		for name, pending := range map[string]int{"well": 0, "refuses": 20, "hangs": 20, "": 40} {
			if r := s.Receivers[name]; r.Pending != pending || r.Down != (name == "refuses") {
				t.Errorf("%s: %+v", name, r)
			}
		}
		receivers[1].Set(nil)
		time.Sleep(10 * time.Second)
		if n := len(receivers[1].Accepted()); n != 20 {
			t.Errorf("%d of 20 delivered to the second, which is back", n)
		}
		if w := d.stands(2); w.State != record.Delivered || w.Receiver != "refuses" {
			t.Errorf("%+v", w)
		}
	})
}
