// Package engine says what the inbox needs of a database: transactions of named statements, and what their failures
// mean. It has the tables and the statements that all databases share; packages sqlite and postgres have the rest. It
// knows nothing about webhooks.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// MaxNumber is the largest number that a webhook can have. Many readers of JSON know no larger integers.
const MaxNumber = int64(1)<<53 - 1

// MaxReaders is how many calls of Engine.Read run at once: each has a connection to the database, and the others wait
// for one.
const MaxReaders = 4

// An Engine runs transactions on a database that has the tables of 001.sql.
type Engine interface {
	// Write runs fn in a transaction that may write, and commits it. It is never called concurrently. Statements that fn
	// has queued and not sent are sent together with the commit. fn may run several times; only the last run counts.
	//
	// After a *StatementError the database works, but refused a statement of fn. ErrDoubt says that nobody knows
	// whether the transaction was committed. After any other error it was not.
	Write(fn func(Tx) error) error
	// Read runs fn, once at most, on one consistent state of the database.
	Read(ctx context.Context, fn func(Tx) error) error
	// Backup returns a copy of the database as it is at one moment, and its size: an inbox of its own, which begins paused.
	// Others read and write meanwhile. errors.ErrUnsupported: the database has its own tools for that.
	Backup(ctx context.Context) (copied io.ReadCloser, size int64, err error)
	// Shared says whether other processes write to the same database. If so, leases end by themselves.
	Shared() bool
	// Full says that there is so little room that only outcomes should be written; nil: there is enough.
	Full() *FullError
	// Maintain is called by the writer when it has nothing else to do, at most once a second.
	Maintain()
	Close() error
}

// A Tx collects statements and sends them in one round trip. A statement is called by its name in statements.sql, of
// this package or of the engine. Arguments that are slices (but not []byte) are the columns of its {rows}, and have the
// same length.
type Tx interface {
	// Queue adds a statement. Send calls each for every row of the answer; nil: the statement returns no rows.
	Queue(name string, each func(Row) error, args ...any)
	// Scrub says that this transaction deletes content that must be gone for good.
	Scrub()
	// Now adds a reading of the database's clock, in microseconds since 1970.
	Now(at *int64)
	// Send runs the statements that were queued.
	Send() error
}

// List is a list of names, as the argument of {list}.
func List(names []string) string {
	text, _ := json.Marshal(names)
	return string(text)
}

// A Row is one row of an answer. If values are not of their column's type, because the file is damaged or somebody has
// written them by hand, Scan leaves them zero, reads all others, and returns ErrRow.
type Row interface{ Scan(into ...any) error }

// ErrRow says that a row cannot be read. It belongs to its row: a statement whose each returns it goes on with the next.
var ErrRow = errors.New("a row of the inbox cannot be read")

// ErrDoubt says that nobody knows whether a transaction was committed.
var ErrDoubt = errors.New("the connection to the database broke while it confirmed a transaction: " +
	"nobody knows whether it was done")

// A StatementError says that the database works, but refused a statement because of its values. So one operation of a
// batch is to blame, and the others can succeed without it.
type StatementError struct{ Err error }

func (e *StatementError) Error() string { return e.Err.Error() }
func (e *StatementError) Unwrap() error { return e.Err }

// ErrLocked says that a transaction has waited in vain for what another client has locked.
var ErrLocked = errors.New("another client has locked rows or a table of the inbox for long")

// ErrReadOnly says that the database may only be read.
var ErrReadOnly = errors.New("it is read-only")

// A FullError says that a disk is full.
type FullError struct {
	Of         string    // whose disk it is
	Since      time.Time // when usher noticed it
	Free, Size int64     // in bytes; a size of zero: not known
	Err        error     // what the database said; may be nil
}

func (e *FullError) Error() string {
	if e.Size == 0 {
		return "the disk of " + e.Of + " is full"
	}
	const mib = 1 << 20
	free, size := float64(e.Free)/mib, float64(e.Size)/mib
	return fmt.Sprintf("the disk of %s is too full: only %.1f of %.0f MiB are free", e.Of, free, size)
}

func (e *FullError) Unwrap() error { return e.Err }

// An AwayError says that the database cannot be reached, or does not answer: what was asked for is not done, and may
// be later.
type AwayError struct{ Err error }

func (e *AwayError) Error() string { return e.Err.Error() }
func (e *AwayError) Unwrap() error { return e.Err }

// A BrokenError says that nothing will be written any more until usher is restarted.
type BrokenError struct {
	Err  error
	Gone bool // a file was moved or removed, and what it holds is only in the open one
}

func (e *BrokenError) Error() string { return e.Err.Error() }
func (e *BrokenError) Unwrap() error { return e.Err }
