package clock

import "time"

// Databases have times as microseconds since 1970.

// Never is a time that does not come.
const Never = int64(1) << 62

// Micros is a duration in microseconds.
func Micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

// Moment is a time of a database.
func Moment(micros int64) time.Time { return time.UnixMicro(micros).UTC() }
