package inbox

import (
	"errors"

	"usher/webhookgate"
)

// Store is what must survive the process. Its methods may be called concurrently.
type Store interface {
	// Append makes w durable, unless it is a copy of its lane's tail: then it
	// returns the tail's webhook-id, and the tail is durable. The record is handed to
	// the func that the store was opened with, before Append returns and in the
	// order in which the store took things in. After an error w is not there, and
	// will not be after a restart as far as the store can tell.
	Append(w *webhookgate.Webhook) (duplicateOf string, err error)

	// Update notes how a record stands now. It must not block: it only takes the note
	// down, and what of it is lost in a crash is a delivery that will be made again.
	// A record that is parked leaves its lane without a memory.
	Update(r *record)

	// Again puts a record back to wait, ahead of what its lane has waiting, and sees
	// to it that the lane's memory does not claim what may no longer hold. Without
	// force it is refused, with errOvertaken, when it is not its lane's last. Like
	// one that is appended it is handed over, in order, and durable on return.
	Again(r *record, force bool) error

	// Unfinished returns the records that wait or are parked, in the order of their
	// ids, without their content.
	Unfinished() ([]*record, error)

	// Read returns a record; ErrNotFound, or an error that says ErrDamaged.
	Read(id uint64) (*record, error)

	// List returns entries, newest first.
	List(Filter) ([]Entry, error)

	// Show returns a record with its content, and that of its tenant's before it.
	Show(id uint64) (*Item, error)

	// Newest returns the entry of a lane that came last; ok is false when there is
	// none.
	Newest(lane webhookgate.Lane) (_ Entry, ok bool, err error)

	// Forget drops the memory of a tenant's lanes and says of how many.
	Forget(tenant string) (int, error)

	// Err says why the store takes nothing in any more; nil while it does.
	Err() error

	// Close writes what Update noted and closes the store.
	Close() error
}

// ErrDamaged says that a record's checksum does not fit its bytes.
var ErrDamaged = errors.New("the record is damaged: its checksum does not fit")
