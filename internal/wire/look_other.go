//go:build !unix

package wire

import "time"

// instant says whether a look at the connection takes no time.
func (s *socket) instant() bool { return false }

// readNow reads what is there, and hardly waits: a read that does not wait at all is not
// to be had here.
func (s *socket) readNow(p []byte) (int, error) { return s.readWithin(p, time.Millisecond) }
