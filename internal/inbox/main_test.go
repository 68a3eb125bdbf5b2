package inbox

import (
	"flag"
	"os"
	"runtime/debug"
	"strings"
	"testing"
)

// TestMain lets more tests run at once than there are cores, because most of them wait. It keeps the tests' files in memory
// if that is possible: no test here can show a missing sync, and thousands of syncs take most of the time on a slow disk.
func TestMain(m *testing.M) { os.Exit(inMemory(m)) }

func inMemory(m *testing.M) int {
	flag.Parse()
	if wanted := flag.Lookup("test.parallel"); wanted.Value.String() == wanted.DefValue {
		wanted.Value.Set("16")
	}
	debug.SetGCPercent(400) // the heap is so small that else half of the time goes into looking through it
	const memory = "/dev/shm"
	if !strings.HasPrefix(os.TempDir(), memory) {
		if dir, err := os.MkdirTemp(memory, "usher-"); err == nil && os.Chmod(dir, 0o711) == nil { // PostgreSQL runs as another user
			defer os.RemoveAll(dir)
			os.Setenv("TMPDIR", dir)
		}
	}
	return m.Run()
}
