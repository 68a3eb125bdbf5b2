package file

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// Nothing that bbolt writes is taken for damaged, whatever comes and goes: usher would not start.
func TestPagesThatBboltWrites(t *testing.T) {
	for _, size := range []int{10, 300, 9000} { // of values
		path := filepath.Join(t.TempDir(), "x.db")
		db, err := openBolt(path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		db.NoSync = true
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for n := range 200 {
			err := db.Update(func(tx *bbolt.Tx) error {
				return errors.Join(comeAndGo(tx, "few", 50, size), comeAndGo(tx, "some", 1000, size), comeAndGo(tx, "many", 200_000, size))
			})
			if err == nil {
				err = db.View(func(tx *bbolt.Tx) error { return checkPages(file, tx) })
			}
			if err != nil {
				t.Fatalf("values of %d, transaction %d: %v", size, n, err)
			}
		}
	}
}

// comeAndGo puts keys in and deletes some, now and then many.
func comeAndGo(tx *bbolt.Tx, bucket string, keys, size int) error {
	b, err := tx.CreateBucketIfNotExists([]byte(bucket))
	if err != nil {
		return err
	}
	b.FillPercent = 0.5 + 0.4*float64(rand.IntN(2))
	key := func() []byte { return fmt.Appendf(nil, "%07d", rand.IntN(keys)) }
	for range rand.IntN(60) {
		err = errors.Join(err, b.Put(key(), bytes.Repeat([]byte("v"), rand.IntN(size))))
	}
	gone := rand.IntN(30)
	if rand.IntN(15) == 0 {
		gone = 500
	}
	var victims [][]byte
	c := b.Cursor()
	for k, _ := c.Seek(key()); k != nil && len(victims) < gone; k, _ = c.Next() {
		victims = append(victims, bytes.Clone(k))
	}
	for _, k := range victims {
		err = errors.Join(err, b.Delete(k))
	}
	return err
}
