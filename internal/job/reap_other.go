//go:build !linux

package job

import "os"

// notifyOfEnds does nothing: containers, in which usher can be process 1, are Linux.
func notifyOfEnds(chan<- os.Signal) {}

func reapOrphans(...int) {}
