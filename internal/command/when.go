package command

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

var errWhen = errors.New("write a time (01:00, or 2026-01-31T08:00), a day (2026-01-31), or how long ago (90m, 3d)")

// parseWhen parses a time as people type it: 01:00 is the last one o'clock. What has no zone is local time, that of now.
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
	if isClock(s) {
		return lastTime(s, now), nil
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

var clocks = []string{"15:04", "15:04:05"}

func isClock(s string) bool {
	return slices.ContainsFunc(clocks, func(layout string) bool { _, err := time.Parse(layout, s); return err == nil })
}

// lastTime returns the last time up to now at which a clock showed this.
func lastTime(clock string, now time.Time) time.Time {
	var at time.Time
	for _, layout := range clocks {
		if t, err := time.Parse(layout, clock); err == nil {
			at = t
		}
	}
	t := time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), at.Second(), 0, now.Location())
	if t.After(now) {
		t = time.Date(now.Year(), now.Month(), now.Day()-1, at.Hour(), at.Minute(), at.Second(), 0, now.Location())
	}
	return t
}

// between returns the times of --since and --until, which may be empty. A clock's until is the first one after since: at half past one,
// '--since 01:00 --until 02:00' means today.
func between(since, until string, now time.Time) (from, to time.Time, err error) {
	if since != "" {
		if from, err = parseWhen(since, now); err != nil {
			return from, to, err
		}
	}
	if until == "" {
		return from, to, nil
	}
	if to, err = parseWhen(until, now); err == nil && since != "" && isClock(until) && !to.After(from) {
		to = to.AddDate(0, 0, 1)
	}
	if err == nil && since != "" && !to.After(from) {
		err = errors.New("--until is not later than --since")
	}
	return from, to, err
}
