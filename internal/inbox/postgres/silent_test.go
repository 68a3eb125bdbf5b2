package postgres

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"usher/internal/inbox/engine"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// A replica that was stopped while it sends its last statements holds the row of numbers. Whoever waits for that row in
// its own last statements ends it, and goes on; but not one who has locked a row and is at work.
func TestSilentClientIsEnded(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	a, err := Parse(s.DSN())
	check(t, err)
	e, err := Open(a, nil, slog.New(slog.DiscardHandler))
	check(t, err)
	defer e.Close()
	const locks = "BEGIN; UPDATE usher.schema_version SET version = version"
	touch := func() error {
		return e.Write(func(tx engine.Tx) error {
			err := tx.Send()
			tx.Queue("touch", nil)
			return err
		})
	}

	silent := connected(t, s)
	check(t, second(silent.Exec(t.Context(), locks)))
	if !testkit.Comes(func() bool { return touch() == nil }) { // on a busy machine not in time for the first
		t.Fatal("nothing can be written")
	}
	if err := silent.Ping(t.Context()); err == nil {
		t.Error("the silent one holds its row still")
	}

	busy := connected(t, s)
	check(t, second(busy.Exec(t.Context(), locks)))
	ctx, cancel := context.WithCancel(t.Context())
	works := make(chan error, 1)
	defer func() { cancel(); <-works }()
	go func() { defer close(works); works <- second(busy.Exec(ctx, "SELECT pg_sleep(600)")) }()
	const sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
	if !testkit.Comes(func() bool { return s.Exec(t, sleeps) == "1" }) {
		t.Fatal("the other one does nothing")
	}
	if err := touch(); !errors.Is(err, engine.ErrLocked) {
		t.Errorf("while another one is at work: %v", err)
	}
	select {
	case err := <-works:
		t.Errorf("it was ended: %v", err)
	default:
	}
}
