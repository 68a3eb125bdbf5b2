package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const installUsage = `Usage: usher install FILE

Copies usher's own program to FILE, and makes it executable. usher's image has
no shell and no cp: with this, an init container puts usher into a volume for a
container that has what 'usher exec' or 'usher reconcile' runs.

  usher install /shared/usher
`

// installCommand is 'usher install'.
func installCommand(_ context.Context, p *Process, args []string) error {
	if len(args) != 1 || args[0] == "" || strings.HasPrefix(args[0], "-") {
		return usageErrorf("takes one file: usher install /shared/usher")
	}
	self, err := os.Executable()
	if err != nil && p.Self == "" {
		return err
	}
	from, err := os.Open(cmp.Or(p.Self, self))
	if err != nil {
		return err
	}
	defer from.Close()
	switch info, err := os.Lstat(args[0]); {
	case err != nil: // most often there is nothing yet
	case info.IsDir():
		return fmt.Errorf("%s is a folder: name the file, such as %s", args[0], filepath.Join(args[0], "usher"))
	case !info.Mode().IsRegular(): // a device would be gone
		return fmt.Errorf("%s is not a regular file: remove it first, or name another", args[0])
	}
	// In one step: a program that runs cannot be overwritten, and a half of one must not be started.
	to, err := os.CreateTemp(filepath.Dir(args[0]), ".usher-*")
	if err != nil {
		return err
	}
	defer os.Remove(to.Name())
	_, err = io.Copy(to, from)
	err = cmp.Or(err, to.Chmod(0o755), to.Close())
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", args[0], err)
	}
	return os.Rename(to.Name(), args[0])
}
