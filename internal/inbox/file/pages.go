package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"go.etcd.io/bbolt"
)

// bbolt believes what its pages say. It maps the file into memory, and follows a page that is damaged
// to wherever that leads: the process ends, or reads something else. So all pages are looked at before
// bbolt does, through reads that can fail. What is damaged later, while usher runs, is a panic, which ends in guard.

// guard has f read, or write, the file. If bbolt can't go on, the inbox is broken, and usher is not.
func (s *Store) guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // also for what the disk can't read
	defer func() {
		if p := recover(); p != nil {
			err = s.fail(fmt.Errorf("the inbox's file is damaged (%v): stop usher, and %s", p, whatToDo), "stack", string(debug.Stack()))
		}
	}()
	return f()
}

// view is a transaction that reads.
func (s *Store) view(f func(*bbolt.Tx) error) error {
	return s.guard(func() error { return s.db.View(f) })
}

// transact is a transaction that writes. bbolt's own Update looks at all pages again after a panic, and so ends the
// process.
func transact(db *bbolt.DB, f func(*bbolt.Tx) error) error {
	tx, err := db.Begin(true)
	if err != nil {
		return err
	}
	defer tx.Rollback() // which does nothing after Commit
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// tree is the pages of a file. Its numbers are as this machine writes them.
type tree struct {
	file     io.ReaderAt
	pageSize int
	used     []bool   // by the page's id
	spare    [][]byte // pages, to read others into
}

const (
	headSize    = 16 // id, kind, number of elements, number of pages that it goes on over
	elementSize = 16 // of a branch: position, size of key, page; of a leaf: kind, position, sizes of key and value
	branchKind  = 1
	leafKind    = 2
	bucketKind  = 1 // of an element: its value is the root's id, a sequence, and where there is no root, a page
)

// checkPages returns an error if there is anything in the pages that tx can reach which bbolt can't have written.
func checkPages(file io.ReaderAt, tx *bbolt.Tx) error {
	t := &tree{file: file, pageSize: tx.DB().Info().PageSize}
	t.used = make([]bool, tx.Size()/int64(t.pageSize))
	return t.page(uint64(tx.Cursor().Bucket().RootPage()), nil, nil, true)
}

// page checks a page and all below it. Its first key is from, and, where there is a to, all are
// less than that.
func (t *tree) page(id uint64, from, to []byte, root bool) error {
	if id < 2 || id >= uint64(len(t.used)) {
		return fmt.Errorf("something points to page %d", id)
	}
	b := t.room()
	defer func() { t.spare = append(t.spare, b[:t.pageSize]) }()
	if _, err := t.file.ReadAt(b, int64(id)*int64(t.pageSize)); err != nil {
		return err
	}
	more := uint64(binary.NativeEndian.Uint32(b[12:]))
	if binary.NativeEndian.Uint64(b) != id || id+more >= uint64(len(t.used)) {
		return fmt.Errorf("page %d is another one", id)
	}
	for n := id; n <= id+more; n++ {
		if t.used[n] {
			return fmt.Errorf("page %d is used twice", n)
		}
		t.used[n] = true
	}
	if more > 0 {
		b = append(b, make([]byte, int(more)*t.pageSize)...)
		if _, err := t.file.ReadAt(b[t.pageSize:], int64(id+1)*int64(t.pageSize)); err != nil {
			return err
		}
	}
	if err := t.elements(b, from, to, root); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// room is for a page.
func (t *tree) room() []byte {
	n := len(t.spare)
	if n == 0 {
		return make([]byte, t.pageSize)
	}
	b := t.spare[n-1]
	t.spare = t.spare[:n-1]
	return b
}

var errElements = errors.New("its elements don't fit")

// elements checks what is on a page. Their keys and values follow each other without a gap.
func (t *tree) elements(b, from, to []byte, root bool) error {
	if len(b) < headSize {
		return errElements
	}
	kind, count := binary.NativeEndian.Uint16(b[8:]), int(binary.NativeEndian.Uint16(b[10:]))
	end := headSize + count*elementSize
	switch {
	case kind != branchKind && kind != leafKind, end > len(b):
		return errElements
	case count == 0 && (!root || kind != leafKind || len(bytes.Trim(b[end:], "\x00")) > 0):
		return errElements // only a bucket without anything in it has a page without anything on it
	}
	var last []byte
	var keys [][]byte // of a branch
	for n := range count {
		at := headSize + n*elementSize
		f := func(n int) uint64 { return uint64(binary.NativeEndian.Uint32(b[at+4*n:])) }
		position, size, more := f(0), f(1), uint64(0)
		if kind == leafKind {
			position, size, more = f(1), f(2), f(3)
		}
		if uint64(at)+position != uint64(end) || size == 0 || size+more > uint64(len(b)-end) {
			return errElements
		}
		key, value := b[end:end+int(size)], b[end+int(size):end+int(size+more)]
		end += int(size + more)
		if n == 0 && from != nil && !bytes.Equal(key, from) || bytes.Compare(key, last) <= 0 || to != nil && bytes.Compare(key, to) >= 0 {
			return errors.New("its keys are out of order")
		}
		last = key
		switch {
		case kind == branchKind:
			keys = append(keys, key)
		case f(0) == bucketKind:
			if err := t.bucket(value); err != nil {
				return err
			}
		case f(0) != 0:
			return errElements
		}
	}
	keys = append(keys, to)
	for n, from := range keys[:len(keys)-1] {
		child := binary.NativeEndian.Uint64(b[headSize+n*elementSize+8:])
		if err := t.page(child, from, keys[n+1], false); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) bucket(b []byte) error {
	if len(b) < 16 {
		return errElements
	}
	if id := binary.NativeEndian.Uint64(b); id != 0 {
		return t.page(id, nil, nil, true)
	}
	return t.elements(b[16:], nil, nil, true)
}
