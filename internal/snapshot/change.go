package snapshot

import (
	"errors"
	"sync"
)

// A Change is a tenant as usher knows it now, for programs that keep a copy.
type Change struct{ Stored }

// Changes are a page of them. Callers that wait for the same may share one.
type Changes struct {
	All    []Change
	Cursor string // goes on behind this page
	More   bool   // there is more at once

	once    sync.Once
	encoded []byte
}

// Encoded returns what encode makes of the page. It is called once, however many callers share the page.
func (c *Changes) Encoded(encode func(*Changes) []byte) []byte {
	c.once.Do(func() { c.encoded = encode(c) })
	return c.encoded
}

var (
	// ErrCursorUnknown says that this inbox cannot go on from a cursor: it is another inbox's, or what it was
	// given for is lost, or too old.
	ErrCursorUnknown = errors.New("this inbox cannot go on from this cursor")
	// ErrNoCursor says that no usher made this cursor.
	ErrNoCursor = errors.New("this is not a cursor")
	// ErrTooManyWait says that too many callers wait for changes.
	ErrTooManyWait = errors.New("too many callers wait for changes")
)
