//go:build unix

package serve

import (
	"net"
	"os"
	"sync"
	"syscall"
)

// umask guards the umask of the process while listenUnix changes it.
var umask sync.Mutex

// listenUnix binds a socket that only its owner and group can use. It sets the umask, because with chmod
// alone everybody could connect between the bind and the chmod.
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
