// Package kept keeps what tests make once, and many test binaries use: each package has one of its own, and
// "go test" runs them anew.
package kept

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Folder returns a folder with what fill has put into it, now or in an earlier run. It stays in the user's
// cache, as what Go has compiled does, or else among the temporary files; so of must have all that the
// content depends on, and nobody may write there.
func Folder(fill func(dir string) error, of ...any) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil { // HOME is not set
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "usher-tests")
	kept := filepath.Join(cache, fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%q", of)))[:32])
	if _, err := os.Stat(kept); err == nil {
		return kept, nil
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	made, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(made)
	if err := fill(made); err != nil {
		return "", err
	}
	// It is whole from its first moment on. Others may do the same at the same time: the first one counts.
	if err := os.Rename(made, kept); err != nil {
		if _, missing := os.Stat(kept); missing != nil {
			return "", err
		}
	}
	return kept, nil
}

// Copy copies a folder, and leaves each file to its owner.
func Copy(from, to string) error {
	if out, err := exec.Command("cp", "-R", "-p", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
