//go:build !unix

package wire

import "time"

// instant reports whether a look at the connection takes no time.
func (s *socket) instant() bool { return false }

// readNow reads what has arrived, and waits only a moment: this system has no read that does not
// wait at all.
func (s *socket) readNow(p []byte) (int, error) { return s.readWithin(p, time.Millisecond) }
