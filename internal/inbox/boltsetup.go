package inbox

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"usher/webhookgate"
)

// ErrInUse says that another process has the inbox's file open.
var ErrInUse = errors.New("in use: another usher has it open")

// openBolt opens, or makes, the file at path; what is to be delivered goes to c.
func openBolt(path string, size int, window time.Duration, log *slog.Logger, c *courier) (*boltStore, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:      time.Second,
		FreelistType: bbolt.FreelistMapType,
		// It is made anew from the pages at the next start; writing it out with each
		// transaction would cost more than the webhooks.
		NoFreelistSync: true,
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("the inbox %s is %w", path, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("the inbox %s can't be opened: %w", path, err)
	}
	tails, err := lru.New[webhookgate.Lane, *laneTail](size)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s := &boltStore{
		db: db, log: log, window: window, deliver: c.take, update: db.Update, tails: tails, pacer: pacer{progress: c.progress},
		signal: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{recordBucket, statusBucket, laneBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = db.View(s.history.load)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the inbox %s can't be used: %w", path, err), db.Close())
	}
	go s.write()
	return s, nil
}

// CheckFile says whether there is an inbox at path, or can be, and changes nothing.
func CheckFile(path string) (found string, err error) {
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
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: 100 * time.Millisecond, ReadOnly: true})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return path + " is in use: an usher has it open", nil
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return path + " is there", db.Close()
}
