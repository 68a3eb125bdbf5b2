package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/testkit/pgtest"
	"usher/webhookgate"
)

// invalid makes a webhook that cannot be taken in. Without a tenant, its tenant is not certain.
func (d *desk) invalid(tenant, body string) *webhookgate.Invalid {
	faults := []content.Fault{{Path: "/x", Message: "is odd"}}
	return &webhookgate.Invalid{Webhook: *d.hook(tenant, body), Status: 422, Faults: faults}
}

// recordInvalid lets the inbox store an invalid webhook.
func (d *desk) recordInvalid(tenant, body string) {
	d.t.Helper()
	if d.RecordInvalid(context.Background(), d.invalid(tenant, body)) == 0 {
		d.t.Fatal("not stored")
	}
}

// invalidBodies returns the bodies of the invalid webhooks that nobody has dealt with, the oldest first.
func (d *desk) invalidBodies() string {
	d.t.Helper()
	var all []string
	check(d.t, d.Each(context.Background(), Filter{State: state.Invalid}, true, func(i *lane.Webhook) bool {
		all = append([]string{fmt.Sprintf("%.2s", i.Body)}, all...)
		return true
	}))
	return strings.Join(all, " ")
}

// Invalid webhooks are bounded in their number, in their bytes and in their age. The oldest are
// deleted first, and the log says so. Actions are bounded in their age.
func TestInvalidIsBounded(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open, func(c *setup) {
			c.Limits.Invalid, c.Limits.InvalidBytes = 5, 10_000
		})
		agree := func(want string) {
			t.Helper()
			d.until("invalid: "+want, func() bool { return d.invalidBodies() == want })
			count := 0
			for _, tenant := range must(d.Tenants(context.Background(), TenantFilter{Troubled: true}))(t) {
				count += tenant.Invalid
			}
			n := len(strings.Fields(want))
			d.until("counted", func() bool { return d.Stats().Invalid == n })
			if count != n-strings.Count(want, "u") {
				t.Errorf("%s: %d of tenants", want, count)
			}
		}
		for n := range 3 {
			d.recordInvalid("acme", fmt.Sprint("a", n))
		}
		agree("a0 a1 a2")
		for n := range 4 {
			d.recordInvalid("", fmt.Sprint("u", n))
		}
		agree("a2 u0 u1 u2 u3")
		if !strings.Contains(d.log.String(), "they are too many or too old") {
			t.Error("nobody was told")
		}
		d.recordInvalid("large", "l0"+strings.Repeat("x", 9000))
		agree("l0")
		check(t, d.Note(&Action{Who: "ana", What: "pause"}, 0))
		for _, after := range []struct {
			days    int
			invalid string
			actions int
		}{{31, "", 1}, {91, "", 0}} {
			d.ahead.Store(int64(after.days) * int64(24*time.Hour))
			d.restart()
			agree(after.invalid)
			d.until("actions", func() bool {
				return len(must(d.Actions(t.Context(), 0, 10))(t)) == after.actions
			})
		}
	})
}

// An invalid webhook that comes again is there once, and is as new as its last copy: which ones are deleted goes by
// that, also by the clock of somebody who has set it back.
func TestInvalidGoesByItsLastCopy(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open, func(c *setup) {
			c.Limits.Invalid = 5
		})
		for _, body := range []string{"a0", "a1", "a2", "a0", "a3"} {
			d.recordInvalid("acme", body)
			d.ahead.Add(-int64(time.Second))
		}
		d.want("of one tenant", d.invalidBodies(), "a0 a1 a2 a3")
		for _, body := range []string{"u0", "u1", "a0", "u0", "u2"} {
			d.recordInvalid(map[bool]string{true: "acme"}[body == "a0"], body)
			d.ahead.Add(-int64(time.Second))
		}
		d.until("the last five", func() bool { return d.invalidBodies() == "a0 a3 u0 u1 u2" })
		const day = int64(24 * time.Hour)
		d.ahead.Add(29 * day)
		d.recordInvalid("", "u1")
		d.ahead.Add(2 * day)
		d.restart()
		d.until("not older than 30 days", func() bool { return d.invalidBodies() == "u1" })
		d.ahead.Add(29 * day)
		d.restart()
		d.until("nor that one", func() bool { return d.invalidBodies() == "" })
	})
}

// The writer hangs for so long that the sender of an invalid webhook gets its answer. The sender's next webhook goes
// through another replica. Then the invalid one is not stored any more: it would count as the newer one.
func TestInvalidAfterItsSenderGaveUp(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	h := newHeld()
	one := newDesk(t, inDatabase(t, dsn), between(intercepted{write: h.write}))
	two := newDesk(t, inDatabase(t, dsn), func(c *setup) { c.Receivers = one.cfg.Receivers })
	one.until("up", one.Ready)
	h.hold()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := one.storeInvalid(ctx, one.invalid("acme", snapshotOf("acme", "old"))); err == nil {
		t.Fatal("stored")
	}
	two.take("acme", snapshotOf("acme", "new"))
	h.goOn()
	one.take("other", "A") // after it
	two.idle("acme")
	two.want("states", two.states("acme"), "delivered")
}

// A, B and A again are invalid. The second A is only counted, but it is what the sender sent last. To accept B does
// not deal with A.
func TestInvalidAgainAfterANewerOne(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		a, b, before := snapshotOf("acme", "a"), snapshotOf("acme", "b"), snapshotOf("acme", "before")
		for _, body := range []string{before, a, b, a} {
			d.recordInvalid("acme", body)
			d.ahead.Add(-int64(time.Minute)) // the clock says nothing about their order
		}
		must(d.Accept(d.nth("acme", 3), false))(t)
		d.becomes("acme", "superseded invalid replaced delivered")
		must(d.Accept(d.nth("acme", 2), false))(t)
		d.idle("acme")
		d.want("accepted", strings.Join(d.main.got("acme"), " "), b+" "+a)
		d.want("states", d.states("acme"), "superseded replaced replaced delivered delivered")
	})
}

// A snapshot supersedes invalid snapshots before it, but not other events.
func TestSnapshotDoesNotStandForAInvalidEvent(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.recordInvalid("acme", "A")
		event := d.invalid("acme", `{"type":"InvoiceIssued","payload":{"tenant":{"code":"acme"}}}`)
		event.Type, event.Snapshot = "InvoiceIssued", false
		if d.RecordInvalid(context.Background(), event) == 0 {
			t.Fatal("not stored")
		}
		d.take("acme", "B")
		d.idle("acme")
		d.want("states", d.states("acme"), "superseded invalid delivered")
		must(d.Accept(d.nth("acme", 2), false))(t)
		d.idle("acme")
		d.want("accepted", strings.Join(d.main.got("acme"), " "), "B "+string(event.Body))
	})
}

// Who cannot accept a webhook learns which of the reasons it may be.
func TestWhyAWebhookIsNotAccepted(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.recordInvalid("acme", snapshotOf("acme", "a"))
		d.take("acme", snapshotOf("acme", "b"))
		_, err := d.Accept(d.nth("acme", 2), true)
		wantError(t, "it was not invalid", err, "it was not invalid")
		d.recordInvalid("acme", `{"type":"TenantProvisioningChange","type":"x"}`)
		_, err = d.Accept(d.nth("acme", 3), true)
		wantError(t, "a name twice", err, "/type is in the object twice")
	})
}

// To accept a webhook needs --force only if the tenant has a newer snapshot: not after an event, nor after an invalid
// webhook that came before it and was accepted. It says which snapshot that is.
func TestForceIsForANewerSnapshot(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		accept := func(tenant string, n int, force bool, want string) {
			t.Helper()
			_, err := d.Accept(d.nth(tenant, n), force)
			older, got := new(lane.OverwriteError), "ok"
			if errors.As(err, &older) {
				got = fmt.Sprint(older.Latest.State, " ", strings.Contains(string(older.Latest.Type), "Provisioning"))
			} else if err != nil {
				got = err.Error()
			}
			d.want(fmt.Sprint(tenant, " ", n), got, want)
			d.idle(tenant)
		}
		event := func(tenant string) {
			d.want("event", d.sendHook(d.event(tenant, `{"type":"Other"}`)), "+")
			d.idle(tenant)
		}
		d.recordInvalid("two", snapshotOf("two", "a"))
		d.recordInvalid("two", snapshotOf("two", "b"))
		accept("two", 1, false, "ok")
		accept("two", 2, false, "ok")

		d.recordInvalid("event", snapshotOf("event", "a"))
		event("event")
		accept("event", 1, false, "ok")

		d.take("copy", "A")
		d.idle("copy")
		d.recordInvalid("copy", snapshotOf("copy", "a"))
		d.recordInvalid("copy", snapshotOf("copy", "b"))
		d.want("copy", d.send("copy", "A"), "=")
		event("copy")
		accept("copy", 3, false, "delivered true")
		accept("copy", 2, true, "ok")
		accept("copy", 3, true, "ok")
	})
}

// An invalid webhook cannot be sent again. What to do instead depends on whether it can be accepted.
func TestInvalidIsNotSentAgain(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		for _, tc := range []struct {
			tenant, body string
			discarded    bool
			want         string
		}{
			{"readable", snapshotOf("readable", "x"), false, "it is invalid: use 'usher inbox accept ID'"},
			{"", "{", false, "it is invalid, and cannot be accepted either: the body is not JSON: " +
				"unexpected end of JSON input, at line 1, column 1. " +
				"Correct it in the billing service, and send it again from there"},
			{"done", snapshotOf("done", "x"), true, "it is invalid, and somebody has dealt with it"},
		} {
			d.recordInvalid(tc.tenant, tc.body)
			all := must(d.List(t.Context(), Filter{Limit: 1}))(t)
			if tc.discarded {
				check(t, d.Discard(all[0].ID))
			}
			if err := d.Redeliver(all[0].ID, true); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("%q: %v", tc.tenant, err)
			}
		}
	})
}
