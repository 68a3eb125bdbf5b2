//go:build unix && !linux

package inbox

import (
	"errors"
	"testing"
)

func smallDisk(t *testing.T, _ string) string {
	t.Skip("no file system of its own")
	return ""
}

func enlargeDisk(string, string) error { return errors.ErrUnsupported }
