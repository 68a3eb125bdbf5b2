package command

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

var errWhen = errors.New("write a time (2026-01-31T08:00), a day (2026-01-31), or how long ago (90m, 3d)")

// parseWhen parses a time as people type it. What has no zone is local time, that of now.
func parseWhen(s string, now time.Time) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, strings.Replace(s, " ", "T", 1), now.Location()); err == nil {
			return t, nil
		}
	}
	s = strings.TrimPrefix(s, "-") // -2h would be a time in the future
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, -int(n)), nil
		}
	}
	if ago, err := time.ParseDuration(s); err == nil {
		return now.Add(-ago), nil
	}
	return time.Time{}, errWhen
}
