package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// What the file holds. Each record has a status: if one of them is not there, the file is damaged.
var (
	recordBucket   = []byte("records")   // id → record
	statusBucket   = []byte("status")    // id → status
	laneBucket     = []byte("lanes")     // lane → memory
	snapshotBucket = []byte("snapshots") // lane → a snapshot that is gone from the records; see query.go
	metaBucket     = []byte("meta")
	formatKey      = []byte("format") // in meta
	pausedKey      = []byte("paused") // in meta: what is held back by hand

	buckets = [][]byte{recordBucket, statusBucket, laneBucket, snapshotBucket, metaBucket}
)

// format is the version of how the buckets belong together; record.Format that of what is in them.
const format byte = 4

// ErrInUse says that another process has the inbox's file open.
var ErrInUse = errors.New("in use: another usher has it open")

// errFormat says that another version has written the file.
var errFormat = errors.New("written by another version of usher, in a format that this one can't read:" +
	" let that version deliver what waits, then move it away")

// Open opens, or makes, the file. What is to be delivered goes to c.
func Open(cfg Config, c *courier.Courier) (*Store, error) {
	db, err := openFile(cfg)
	if err != nil {
		return nil, err
	}
	s := &Store{
		cfg: cfg, db: db, courier: c, unwritten: make(map[uint64]*op),
		signal: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	s.update = func(f func(*bbolt.Tx) error) error { return transact(db, f) }
	if cfg.Update != nil {
		s.update = func(f func(*bbolt.Tx) error) error { return cfg.Update(db, f) }
	}
	s.term = &term{Store: s}
	var unfinished []*record.Record
	err = s.view(func(tx *bbolt.Tx) error {
		s.loadPauses(tx)
		var lanes map[webhookgate.Lane]ends
		if unfinished, lanes, err = s.load(tx); err != nil {
			return err
		}
		return s.tellSnapshots(tx, lanes)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the inbox %s can't be read: %w", cfg.Path, err), db.Close())
	}
	c.Begin(s.term, unfinished)
	go s.write()
	return s, nil
}

// ends are, of a lane, the last webhook that came, and the first that waits, but for those sent again by hand.
type ends struct{ newest, waiting uint64 }

// load counts all records, and returns those that wait or are parked, without their content. Damaged
// ones are parked. A file whose parts are of several moments, such as a copy that was made while usher
// wrote, may have all of them whole: it would bring old snapshots back.
func (s *Store) load(tx *bbolt.Tx) (unfinished []*record.Record, lanes map[webhookgate.Lane]ends, err error) {
	records, status := tx.Bucket(recordBucket), tx.Bucket(statusBucket)
	lanes = make(map[webhookgate.Lane]ends)
	err = records.ForEach(func(k, v []byte) error {
		b, size := status.Get(k), int64(len(v))
		r, finished := read(record.KeyID(k), v, b, false), record.Finished(b)
		e, damaged := lanes[r.Webhook.Lane], r.Status.Why == record.ErrDamaged.Error()
		switch {
		case damaged && !finished:
			s.cfg.Log.Error("webhook damaged, parked", "id", r.ID, "webhook", r.Webhook.ID)
		case !damaged && r.Status.Tries > 0 && e.waiting != 0: // not in its turn
			return errDamaged(fmt.Sprintf("webhook %d waits, though %d of its tenant, which came later, was tried", e.waiting, r.ID))
		case r.Status.State == record.Waiting && r.Status.Again.IsZero() && e.waiting == 0:
			e.waiting = r.ID
		}
		if !damaged {
			e.newest = r.ID
			lanes[r.Webhook.Lane] = e
		}
		if finished {
			s.history.add(size)
			return nil
		}
		s.used.Add(size)
		unfinished = append(unfinished, r)
		return nil
	})
	s.history.added = 0
	return unfinished, lanes, errors.Join(err, status.ForEach(func(k, _ []byte) error {
		if records.Get(k) == nil {
			s.cfg.Log.Error("webhook lost: the file is damaged, and has only its status", "id", record.KeyID(k))
		}
		return nil
	}))
}

// openFile opens the file at the path, of our format, and not much larger than it has to be.
func openFile(cfg Config) (*bbolt.DB, error) {
	err := inspect(cfg.Path, time.Second)
	if errors.Is(err, errHeader) {
		cfg.Log.Error("inbox damaged", "path", cfg.Path, "err", err)
		err = nil
	}
	var db *bbolt.DB
	if err == nil {
		db, err = openBolt(cfg.Path)
	}
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("the inbox %s is %w", cfg.Path, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("the inbox %s can't be opened: %w", cfg.Path, err)
	}
	if err := prepare(db); err != nil {
		return nil, errors.Join(fmt.Errorf("the inbox %s can't be used: %w", cfg.Path, err), db.Close())
	}
	return compact(cfg, db)
}

func openBolt(path string) (*bbolt.DB, error) {
	return bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:      time.Second,
		FreelistType: bbolt.FreelistMapType,
		// It is made anew from the pages at the next start; writing it out with each
		// transaction would cost more than the webhooks.
		NoFreelistSync: true,
	})
}

// prepare makes the buckets of a new file. It writes nothing into a file that has them: what is there
// must be delivered also after a start on a disk that is full.
func prepare(db *bbolt.DB) error {
	isNew := false
	err := db.View(func(tx *bbolt.Tx) error { isNew = tx.Bucket(metaBucket) == nil; return nil })
	if err != nil || !isNew {
		return err
	}
	return db.Update(func(tx *bbolt.Tx) error {
		for _, name := range buckets {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return tx.Bucket(metaBucket).Put(formatKey, []byte{format})
	})
}

// compactFrom is how large a file must be to be made smaller.
var compactFrom int64 = 64 << 20

// compact makes a file anew of which most is empty, as after an outage. bbolt uses freed
// pages again, but never gives them back. A crash leaves either file whole at the path.
func compact(cfg Config, db *bbolt.DB) (*bbolt.DB, error) {
	path := cfg.Path
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // and not the link is replaced
	}
	beside := path + ".compact"
	os.Remove(beside) // of a crash
	info, err := os.Stat(path)
	free := int64(db.Stats().FreePageN) * int64(db.Info().PageSize)
	if err != nil || info.Size() < compactFrom || free < info.Size()/2 {
		return db, nil
	}
	smaller, err := copyTo(beside, db)
	if err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil { // there may be no room for it
		cfg.Log.Warn("inbox not compacted", "err", err)
		if smaller != nil {
			smaller.Close()
		}
		os.Remove(beside)
		return db, nil
	}
	err = errors.Join(syncDir(filepath.Dir(path)), db.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the inbox %s can't be compacted: %w", cfg.Path, err), smaller.Close())
	}
	cfg.Log.Info("inbox compacted", "from_bytes", info.Size(), "to_bytes", info.Size()-free)
	return smaller, nil
}

// copyTo copies db into a new file, which is open, and so locked, from its beginning.
func copyTo(path string, db *bbolt.DB) (*bbolt.DB, error) {
	smaller, err := openBolt(path)
	if err != nil {
		return nil, err
	}
	smaller.NoSync = true
	err = bbolt.Compact(smaller, db, 16<<20)
	smaller.NoSync = false
	return smaller, errors.Join(err, smaller.Sync())
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
