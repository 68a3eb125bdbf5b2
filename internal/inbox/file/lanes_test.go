package file

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

func (r *running) snapshot(tenant string) string {
	r.t.Helper()
	lane := inboxtest.Webhook(tenant, "").Lane
	w, id, err := r.Snapshot(context.Background(), lane)
	if errors.Is(err, record.ErrNotFound) {
		return ""
	}
	if err != nil {
		r.t.Fatal(err)
	}
	if w.Lane != lane || w.ID == "" || w.Received.IsZero() || id != r.told[lane] {
		r.t.Errorf("%+v, %d; told was %d", w, id, r.told[lane])
	}
	return string(w.Body)
}

// A lane's snapshot is the last that was taken in, however it fares; a redelivery never
// changes it, a duplicate promises as much as what it is a copy of.
func TestSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		rc := new(inboxtest.Receiver)
		told := make(map[webhookgate.Lane]uint64)
		cfg := config(dir, rc)
		cfg.OnSnapshot = func(lane webhookgate.Lane, id uint64, _ *webhookgate.Webhook) {
			if told[lane] > id {
				t.Errorf("told %d after %d", id, told[lane])
			}
			told[lane] = id
		}
		i := open(t, cfg)
		i.told = told
		want := func(when, tenant, snapshot string) {
			t.Helper()
			if got := i.snapshot(tenant); got != snapshot {
				t.Errorf("%s: %q, want %q", when, got, snapshot)
			}
		}
		want("before all", "t", "")
		i.keep("t", "A")
		want("at once", "t", "A")
		time.Sleep(time.Second)
		rc.Set(inboxtest.Status(422))
		i.keep("t", "B")
		want("waiting", "t", "B")
		time.Sleep(time.Second)
		want("parked", "t", "B")
		rc.Set(nil)
		if err := i.Redeliver(1, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		want("an old one sent again", "t", "B")
		if !i.keep("t", "A") {
			t.Error("the receiver holds A")
		}
		want("A has come again, though as a copy", "t", "A")
		if !i.keep("t", "A") {
			t.Error("the receiver holds A")
		}
		want("and again", "t", "A")
		overwrite := new(record.OverwriteError)
		if err := i.Redeliver(2, false); !errors.As(err, &overwrite) || overwrite.Latest.ID != 1 {
			t.Errorf("B over A, which has come again: %v", err)
		}
		event := inboxtest.Webhook("t", "an event")
		event.Type, event.Snapshot = "Other", false
		i.keepWebhook(event)
		want("after an event of another type", "t", "A")
		if _, err := i.Append(inboxtest.Webhook("u", "K"), true); err != nil {
			t.Fatal(err)
		}
		want("kept", "u", "K")
		elsewhere := inboxtest.Webhook("t", "E")
		elsewhere.Lane.Platform = "q"
		i.keepWebhook(elsewhere)
		want("on another platform", "t", "A")
		i.stop()

		clear(told)
		i = open(t, cfg)
		i.told = told
		want("after a restart", "t", "A")
		// Long after all is gone from the history.
		if err := i.db.Update(func(tx *bbolt.Tx) error {
			for id := uint64(1); id <= 6; id++ {
				if err := i.drop(tx, record.IDKey(id)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		want("the history trimmed", "t", "A")
	})
}

// The platform of a tenant is given to another receiver: what the former one accepted is no
// reason to drop anything, and what waits goes to the new one.
func TestReceiverChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		receivers := map[string]*inboxtest.Receiver{"one": new(inboxtest.Receiver), "two": new(inboxtest.Receiver)}
		route := func(name string) setup {
			cfg := config(dir, nil)
			cfg.courier.Receivers = nil
			for name, rc := range receivers {
				cfg.courier.Receivers = append(cfg.courier.Receivers, courier.Receiver{Name: name, Try: rc.Try, Concurrency: 1})
			}
			cfg.courier.Route = func(webhookgate.Lane) string { return name }
			return cfg
		}
		i := open(t, route("one"))
		i.keep("t", "A")
		time.Sleep(time.Second)
		if !i.keep("t", "A") {
			t.Error("the receiver holds it")
		}
		receivers["one"].Set(inboxtest.Refusing)
		i.keep("u", "A")
		time.Sleep(time.Second)
		i.stop()

		i = open(t, route("two"))
		if !i.keep("u", "A") {
			t.Error("it waits, for whoever is the receiver then")
		}
		if i.keep("t", "A") {
			t.Error("what another receiver accepted does not count")
		}
		time.Sleep(time.Second)
		receivers["two"].Want(t, "u:A", "t:A")
		if !i.keep("t", "A") || !i.keep("u", "A") {
			t.Error("the new receiver holds it")
		}
		i.stop()

		i = open(t, route("nobody"))
		i.keep("t", "B")
		time.Sleep(time.Hour)
		i.want(record.Delivered, record.Delivered, record.Delivered, record.Waiting)
		if s := i.courier.Stats(); s.Receivers[""].Pending != 1 {
			t.Errorf("%+v", s)
		}
		i.stop()

		open(t, route("two"))
		time.Sleep(time.Second)
		receivers["two"].Want(t, "u:A", "t:A", "t:B")
	})
}

// The window of a delivered snapshot is the same when its record is no longer in the
// history.
func TestWindowOutlivesTheHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		cfg := config(t.TempDir(), rc)
		i := open(t, cfg)
		i.keep("t", "A")
		time.Sleep(time.Second)
		if err := i.db.Update(func(tx *bbolt.Tx) error { return i.drop(tx, record.IDKey(1)) }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if !i.keep("t", "A") {
			t.Error("delivered again within the window")
		}
		time.Sleep(5 * time.Minute)
		if i.keep("t", "A") {
			t.Error("dropped after the window")
		}
	})
}

// Who is the newest of a lane is known without looking at all others, also when it is
// gone from the history.
func TestNewestIsKnownWithoutAScan(t *testing.T) {
	cost := func(others int) float64 {
		cfg := config(t.TempDir(), new(inboxtest.Receiver))
		p := openPast(t, cfg)
		var ops []*op
		for _, body := range []string{"A", "B"} {
			ops = append(ops, &op{webhook: inboxtest.Webhook("t", body)})
		}
		for n := range others {
			ops = append(ops, &op{webhook: inboxtest.Webhook(fmt.Sprint("u", n), "A")})
		}
		for id := range uint64(2) {
			ops = append(ops, &op{note: &record.Record{ID: id + 1, Webhook: ops[id].webhook, Status: record.Status{State: record.Delivered, Changed: time.Now()}}})
		}
		if err := errors.Join(p.write(ops...), p.Close()); err != nil {
			t.Fatal(err)
		}
		s := openStore(t, cfg)
		s.db.NoSync = true
		return testing.AllocsPerRun(10, func() {
			overwrite := new(record.OverwriteError)
			if err := s.Redeliver(1, false); !errors.As(err, &overwrite) || overwrite.Latest.ID != 2 {
				t.Errorf("got %v", err)
			}
		})
	}
	few, many := cost(10), cost(5000)
	if many > 2*few {
		t.Errorf("%v allocations with 10 others, %v with 5000", few, many)
	}
}

// What is gone from the history can't be shown, but it came, and an older one would undo
// it.
func TestOverwritingWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		time.Sleep(time.Second)
		i.keep("t", "B")
		time.Sleep(time.Second)
		if err := i.db.Update(func(tx *bbolt.Tx) error { return i.drop(tx, record.IDKey(2)) }); err != nil {
			t.Fatal(err)
		}
		overwrite := new(record.OverwriteError)
		if err := i.Redeliver(1, false); !errors.As(err, &overwrite) || overwrite.Latest.ID != 2 || overwrite.Latest.Received.IsZero() || overwrite.Latest.State != record.Delivered {
			t.Errorf("got %v", err)
		}
		if err := i.Redeliver(1, true); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		rc.Want(t, "t:A", "t:B", "t:A")
	})
}

// What waits from before usher was told to keep only the latest is superseded as well.
func TestKeepLatestFromNowOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Refusing)
		cfg := config(t.TempDir(), rc)
		i := open(t, cfg)
		for _, body := range []string{"A", "B", "C"} {
			i.keep("t", body)
		}
		time.Sleep(time.Second)
		i.stop()
		cfg.courier.KeepLatest = true
		rc.Set(nil)
		i = open(t, cfg)
		time.Sleep(time.Minute)
		rc.Want(t, "t:C")
		i.want(record.Superseded, record.Superseded, record.Delivered)
	})
}
