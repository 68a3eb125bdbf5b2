// Package filelock has locks between processes, each in a file of its own.
package filelock

import "errors"

// ErrInUse says that somebody else has the lock.
var ErrInUse = errors.New("another usher is using it")
