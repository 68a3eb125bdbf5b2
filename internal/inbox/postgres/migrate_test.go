package postgres

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"usher/internal/inbox/engine"
	"usher/internal/testkit/pgtest"
)

// A newer usher migrates the tables, while an older replica runs. That one goes on, and starts again, if the
// migration says that it can; else it says why not.
func TestMigrations(t *testing.T) {
	s, ours := pgtest.New(t), migrations
	defer func() { migrations = ours }()
	for compatible, works := range map[int]bool{1: true, 2: false} {
		a, err := Parse(fmt.Sprintf("%s&schema=s%d", s.DSN(), compatible))
		need(t, err)
		writes := func(e *Engine, tenant string) {
			t.Helper()
			need(t, e.Write(func(tx engine.Tx) error {
				tx.Queue("lane_add", nil, []string{tenant}, []string{""}, []string{""})
				return nil
			}))
		}
		usher := func(knows engine.Migrations) (*Engine, error) {
			migrations = knows
			if err := Check(a, nil, false); err != nil {
				return nil, err
			}
			e, err := Open(a, nil, slog.New(slog.DiscardHandler))
			if err == nil {
				t.Cleanup(func() { e.Close() })
				writes(e, fmt.Sprint(len(knows)))
			}
			return e, err
		}
		newer := append(slices.Clone(ours), fmt.Sprintf("-- compatible: %d\nALTER TABLE {schema}.lane ADD COLUMN mood {int} NOT NULL DEFAULT 7;", compatible))
		older, err := usher(ours)
		need(t, err)
		need(t, second(usher(newer)))
		writes(older, "while the newer one runs")
		need(t, second(usher(newer)))
		var setup *SetupError
		if _, err := usher(ours); works != (err == nil) || !works && (!errors.As(err, &setup) ||
			!strings.Contains(err.Error(), "a newer usher made the tables (version 2, which needs an usher that knows version 2; this one knows 1)")) {
			t.Errorf("compatible with %d: the older one: %v", compatible, err)
		}
	}
}
