package command

import (
	"testing"
	"time"
)

// Times as people type them.
func TestWhen(t *testing.T) {
	berlin := time.FixedZone("CET", 3600)
	now := time.Date(2026, 11, 17, 1, 30, 0, 0, berlin)
	for typed, want := range map[string]string{
		"2026-11-16T01:00":       "2026-11-16T01:00:00+01:00",
		"2026-11-16 01:00":       "2026-11-16T01:00:00+01:00",
		"2026-11-16T01:00:05":    "2026-11-16T01:00:05+01:00",
		"2026-11-16T01:00Z":      "2026-11-16T02:00:00+01:00",
		"2026-11-16T01:00+02:00": "2026-11-16T00:00:00+01:00",
		"2026-11-16T01:00:05.5Z": "2026-11-16T02:00:05.5+01:00",
		"2026-11-16":             "2026-11-16T00:00:00+01:00",
		"2h":                     "2026-11-16T23:30:00+01:00",
		"-90m":                   "2026-11-17T00:00:00+01:00",
		"3d":                     "2026-11-14T01:30:00+01:00",
		"yesterday":              "fails",
		"3":                      "fails",
		"2026-02-30":             "fails",
		"":                       "fails",
	} {
		at, err := parseWhen(typed, now)
		got := at.In(berlin).Format(time.RFC3339Nano)
		if err != nil {
			got = "fails"
		}
		if got != want {
			t.Errorf("%q: %s, want %s (%v)", typed, got, want, err)
		}
	}
}
