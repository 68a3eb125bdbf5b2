//go:build unix

package serve

import (
	"net"
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
	defer syscall.Umask(syscall.Umask(0o117)) // 0777 without these bits is 0660
	return net.Listen("unix", path)
}
