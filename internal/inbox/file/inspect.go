package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// whatToDo is what helps against a damaged file. usher neither repairs nor deletes one.
const whatToDo = "put a whole copy in its place, or move it away to begin with an empty one"

func errDamaged(what any) error {
	return fmt.Errorf("the file is damaged, or is not an inbox (%v): %s. usher has not changed it", what, whatToDo)
}

// inspect returns an error if an existing file is not of our format, or damaged. It changes nothing.
func inspect(path string, patience time.Duration) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() == 0 {
		return nil // it is made, or opening it says why not
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: patience, ReadOnly: true}) // which reads the headers alone
	if system := syscall.Errno(0); errors.As(err, &system) || errors.Is(err, bolterrors.ErrTimeout) {
		return err
	}
	if err != nil {
		return errDamaged(err)
	}
	file, err := os.Open(path)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	defer file.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > info.Size() {
			return errDamaged(fmt.Sprintf("cut short: it has %d of %d bytes", info.Size(), tx.Size()))
		}
		if err := checkPages(file, tx); err != nil {
			return errDamaged(err)
		}
		return checkBuckets(tx)
	})
	if err == nil {
		err = checkHeaders(file, int64(db.Info().PageSize))
	}
	return errors.Join(err, db.Close())
}

// checkBuckets returns an error unless all buckets are there, or none: then the file is new.
func checkBuckets(tx *bbolt.Tx) error {
	if first, _ := tx.Cursor().First(); first == nil {
		return nil
	}
	if meta := tx.Bucket(metaBucket); meta == nil || string(meta.Get(formatKey)) != string([]byte{format}) {
		return errFormat
	}
	for _, name := range buckets {
		if tx.Bucket(name) == nil {
			return errDamaged(fmt.Sprintf("it has no %q", name))
		}
	}
	return nil
}

// errHeader says that bbolt may have gone back by a transaction.
var errHeader = errors.New("one of the file's two headers is damaged: it may lack the last webhooks that came before usher ended")

// checkHeaders looks at the pages that say where everything is. bbolt writes them in turn, and if one is
// damaged it takes the other one without a word.
func checkHeaders(file *os.File, pageSize int64) error {
	const fields = 56 // bytes; what follows them is their sum
	for page := range int64(2) {
		b := make([]byte, fields+8)
		if _, err := file.ReadAt(b, page*pageSize+headSize); err != nil {
			return err
		}
		sum := fnv.New64a()
		sum.Write(b[:fields])
		if sum.Sum64() != binary.NativeEndian.Uint64(b[fields:]) {
			return errHeader
		}
	}
	return nil
}

// Check says whether there is an inbox at path, or can be, and changes nothing.
func Check(path string) (found string, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		// Whether it can be made is shown by making something else.
		probe, err := os.CreateTemp(filepath.Dir(path), ".usher-check-*")
		if err != nil {
			return "", err
		}
		return path + " will be made", errors.Join(probe.Close(), os.Remove(probe.Name()))
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	file.Close()
	switch err := inspect(path, 100*time.Millisecond); {
	case errors.Is(err, bolterrors.ErrTimeout):
		return path + " is in use: an usher has it open", nil
	case err != nil:
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return path + " is there", nil
}
