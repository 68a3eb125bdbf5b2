package testkit

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"usher/internal/testkit/kept"
)

// A folder is made once, also if many need it at once, and never half.
func TestStored(t *testing.T) {
	for _, home := range []string{"XDG_CACHE_HOME", "HOME", "LocalAppData"} {
		t.Setenv(home, t.TempDir())
	}
	failed := errors.New("no room")
	if _, err := kept.Folder(func(dir string) error {
		return errors.Join(os.WriteFile(filepath.Join(dir, "a"), nil, 0o600), failed)
	}, "of this"); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	var made atomic.Int32
	fill := func(dir string) error {
		made.Add(1)
		return os.WriteFile(filepath.Join(dir, "b"), nil, 0o600)
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			dir, err := kept.Folder(fill, "of this")
			files, _ := os.ReadDir(dir)
			if err != nil || len(files) != 1 || files[0].Name() != "b" {
				t.Errorf("%s has %v: %v", dir, files, err)
			}
		})
	}
	all.Wait()
	before := made.Load()
	first, _ := kept.Folder(fill, "of this")
	second, _ := kept.Folder(fill, "of", "this")
	if made.Load() != before+1 || first == second {
		t.Errorf("made %d times, in %s and %s", made.Load()-before, first, second)
	}
	if left, _ := os.ReadDir(filepath.Dir(first)); len(left) != 2 {
		t.Errorf("left behind: %v", left)
	}
}

// Where there is no user, and so no cache, it is among the temporary files.
func TestKeptWithoutACache(t *testing.T) {
	for _, home := range []string{"XDG_CACHE_HOME", "HOME", "LocalAppData"} {
		t.Setenv(home, "")
	}
	for _, temp := range []string{"TMPDIR", "TMP", "TEMP"} {
		t.Setenv(temp, t.TempDir())
	}
	first, err := kept.Folder(func(string) error { return nil })
	again, errAgain := kept.Folder(func(string) error { return errors.New("made twice") })
	if err != nil || errAgain != nil || first != again || !strings.HasPrefix(first, os.TempDir()) {
		t.Error(first, err, again, errAgain)
	}
}
