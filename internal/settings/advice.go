package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"usher/internal/inbox"
)

// What to do when a setting turns out to be wrong only once usher uses it.

// ListenAdvice says what to do when usher cannot listen on the address of a variable.
func ListenAdvice(variable string, err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("; another program uses this address, perhaps another usher: stop it, or set %s to another address", variable)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "; this machine does not have that address: use one that it has, 127.0.0.1, or 0.0.0.0 for all"
	case errors.Is(err, fs.ErrNotExist):
		return "; create the socket's folder first"
	case errors.Is(err, fs.ErrPermission):
		return adviseUser(err) + ": use a port above 1023, or a folder that this user can write to"
	}
	return ""
}

// adviseUser says who needs more rights, if that is what is wrong: in a container, or under
// systemd, it is not the user who tries to find out.
func adviseUser(err error) string {
	if !errors.Is(err, fs.ErrPermission) || os.Geteuid() < 0 {
		return ""
	}
	return fmt.Sprintf("; usher runs as user %d", os.Geteuid())
}

// InboxError says what to do when usher cannot open the inbox.
func InboxError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("USHER_WEBHOOK_INBOX: %w; create its folder first", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("USHER_WEBHOOK_INBOX: %w%s, which needs write access to its folder", err, adviseUser(err))
	case errors.Is(err, inbox.ErrInUse):
		return fmt.Errorf("USHER_WEBHOOK_INBOX: %w; stop the other usher, or use another file", err)
	}
	return fmt.Errorf("USHER_WEBHOOK_INBOX: %w", err)
}
