//go:build unix

package serve

import (
	"net"
	"os"
	"sync"
	"syscall"
)

// umask guards the process's umask: two listeners must not set it at once.
var umask sync.Mutex

// listenUnix binds a socket that its owner and group can use. The umask sets
// the mode from the first moment: with a chmod alone there would be a gap after the bind.
func listenUnix(path string) (net.Listener, error) {
	umask.Lock()
	defer umask.Unlock()
	old := syscall.Umask(0o117)
	l, err := net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o660); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
