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
		check(t, err)
		writes := func(e *Engine, tenant string) {
			t.Helper()
			check(t, e.Write(func(tx engine.Tx) error {
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
		const mood = "-- compatible: %d\nALTER TABLE {schema}.lane ADD COLUMN mood {int} NOT NULL DEFAULT 7;"
		newer := append(slices.Clone(ours), fmt.Sprintf(mood, compatible))
		older, err := usher(ours)
		check(t, err)
		check(t, second(usher(newer)))
		writes(older, "while the newer one runs")
		check(t, second(usher(newer)))
		var setup *SetupError
		const says = "a newer usher made the tables " +
			"(version 2, which needs an usher that knows version 2; this one knows 1)"
		_, err = usher(ours)
		if works != (err == nil) || !works && (!errors.As(err, &setup) || !strings.Contains(err.Error(), says)) {
			t.Errorf("compatible with %d: the older one: %v", compatible, err)
		}
	}
}
