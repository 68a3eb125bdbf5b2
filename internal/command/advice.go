package command

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"

	"usher/internal/inbox"
	"usher/tokens"
)

// This file says what to do about the errors that a newcomer meets. What went wrong
// is said where it happens; here it is known which variable it is about.

// advise says what to do when no token could be had for a port, with the variables
// that are in force there.
func (o *outbound) advise(err error, p Port) string {
	id, secret, scope := o.settings.namesOf(p)
	switch {
	case !tokens.Rejected(err):
		return o.adviseAddress(err)
	case strings.Contains(err.Error(), "invalid_scope"):
		return fmt.Sprintf("check %s: only scopes that are assigned to the API client can be asked for", scope)
	default:
		return fmt.Sprintf("check %s and %s", id, secret)
	}
}

// adviseAddress says what to do when the service does not answer as it should.
func (o *outbound) adviseAddress(err error) string {
	base := o.settings.Outbound.base
	asked := "asked was " + endpoint(base, "/oauth/token").Redacted()
	var (
		stranger x509.UnknownAuthorityError
		notTLS   tls.RecordHeaderError
		network  *net.OpError
	)
	unreached := errors.As(err, &network)
	switch {
	case unreached && network.Op == "proxyconnect":
		return "check HTTPS_PROXY, or name the service in NO_PROXY if it is reached without"
	case errors.As(err, &stranger):
		return "USHER_CA_FILE can name a file with the certificates of a CA of your own, or of a proxy that opens TLS"
	case errors.As(err, &notTLS):
		return asked + ", and nobody speaks https there: check USHER_BASE_URL"
	case strings.HasSuffix(base.Path, "/graphql"), strings.HasSuffix(base.Path, "/oauth/token"):
		return asked + ": leave out what follows the base address in USHER_BASE_URL (/graphql, /oauth/token), usher adds that itself"
	case base.Scheme == "http" && !unreached:
		return asked + ": check USHER_BASE_URL; should it start with https?"
	}
	return asked + ": check USHER_BASE_URL"
}

// adviseListener says what to do when a variable's address can't be listened on.
func adviseListener(variable string, err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("; something listens there already, perhaps another usher: end it, or set %s to another address", variable)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "; this machine has no such address: take one of its own, 127.0.0.1, or 0.0.0.0 for all of them"
	case errors.Is(err, fs.ErrNotExist):
		return "; the socket's folder must be there"
	case errors.Is(err, fs.ErrPermission):
		return adviseUser(err) + ": it needs a port above 1023, or a folder that it may write in"
	}
	return ""
}

// adviseUser says whose rights are not enough, where that is what is wrong: in a
// container, or under systemd, it is not the user who tries to find out.
func adviseUser(err error) string {
	if !errors.Is(err, fs.ErrPermission) || os.Geteuid() < 0 {
		return ""
	}
	return fmt.Sprintf("; usher runs as user %d", os.Geteuid())
}

// adviseInbox says what to do when the inbox can't be opened.
func adviseInbox(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("USHER_WEBHOOK_INBOX: %w; its folder must be there", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("USHER_WEBHOOK_INBOX: %w%s, who must be allowed to write in its folder", err, adviseUser(err))
	}
	if errors.Is(err, inbox.ErrInUse) {
		return fmt.Errorf("USHER_WEBHOOK_INBOX: %w; end that one, or name another file", err)
	}
	return fmt.Errorf("USHER_WEBHOOK_INBOX: %w", err)
}

// adviseCommand says what was meant by a command that there is not.
func adviseCommand(name string) string {
	meant := nearest(name, []string{"demo", "exec", "check", "healthcheck", "inbox", "entitlements", "version", "help"})
	switch {
	case meant != "":
		return ": did you mean " + meant + "?"
	case strings.ContainsAny(name, `/\`):
		return fmt.Sprintf(": to run a program, write usher exec -- %s", name)
	}
	return ""
}

// notAsked says that no usher answered on the admin port.
func notAsked(err error) error {
	return fmt.Errorf("no usher could be asked; is one running? (USHER_ADMIN_LISTEN says where): %w", err)
}
