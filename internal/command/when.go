package command

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

var errWhen = errors.New("write a time (01:00, or 2026-01-31T08:00), a day (2026-01-31), or how long ago (90m, 3d)")

// parseWhen parses a time as people type it: 01:00 is the last one o'clock. What has no zone is
// local time, that of now.
func parseWhen(s string, now time.Time) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z07:00"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, strings.Replace(s, " ", "T", 1), now.Location()); err == nil {
			return t, nil
		}
	}
	if last, ok := parseClock(s, now); ok {
		return last, nil
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

// parseClock returns the last time up to now at which a clock showed this: one in now's zone, unless it names another.
func parseClock(s string, now time.Time) (last time.Time, ok bool) {
	for _, layout := range []string{"15:04", "15:04:05", "15:04Z07:00", "15:04:05Z07:00"} {
		at, err := time.ParseInLocation(layout, s, now.Location())
		if err != nil {
			continue
		}
		year, month, day := now.In(at.Location()).Date()
		if last = time.Date(year, month, day, at.Hour(), at.Minute(), at.Second(), 0, at.Location()); last.After(now) {
			last = time.Date(year, month, day-1, at.Hour(), at.Minute(), at.Second(), 0, at.Location())
		}
		return last, true
	}
	return time.Time{}, false
}

// between returns the times of --since and --until, which may be empty. A clock's until is the first one
// after since: at half past one, '--since 01:00 --until 02:00' means today.
func between(since, until string, now time.Time) (from, to time.Time, err error) {
	if since != "" {
		if from, err = parseWhen(since, now); err != nil {
			return from, to, err
		}
	}
	if until == "" {
		return from, to, nil
	}
	to, err = parseWhen(until, now)
	if _, clock := parseClock(until, now); clock && since != "" && !to.After(from) {
		to = to.AddDate(0, 0, 1)
	}
	if err == nil && since != "" && !to.After(from) {
		err = errors.New("--until is not later than --since")
	}
	return from, to, err
}
