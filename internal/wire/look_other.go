//go:build !unix

package wire

import "time"

// readNow reads what has arrived, and waits only a moment: this system has no read that does not
// wait at all.
func (s *socket) readNow(p []byte) (int, error) { return s.readWithin(p, time.Millisecond) }
