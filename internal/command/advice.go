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
		return fmt.Sprintf("check %s: usher can request only the scopes assigned to the API client", scope)
	default:
		return fmt.Sprintf("check %s and %s", id, secret)
	}
}

// adviseAddress says what to do when the service does not answer as it should.
func (o *outbound) adviseAddress(err error) string {
	base := o.settings.Outbound.base
	asked := "usher tried " + endpoint(base, "/oauth/token").Redacted()
	var (
		stranger x509.UnknownAuthorityError
		notTLS   tls.RecordHeaderError
		network  *net.OpError
	)
	unreached := errors.As(err, &network)
	switch {
	case unreached && network.Op == "proxyconnect":
		return "check HTTPS_PROXY, or add the service to NO_PROXY if it needs no proxy"
	case errors.As(err, &stranger):
		return "if the certificate comes from your own CA, or from a proxy that inspects TLS, set USHER_CA_FILE to a file with the CA's certificates"
	case errors.As(err, &notTLS):
		return asked + ", and the server there does not use https: check USHER_BASE_URL"
	case strings.HasSuffix(base.Path, "/graphql"), strings.HasSuffix(base.Path, "/oauth/token"):
		return asked + ": remove /graphql or /oauth/token from USHER_BASE_URL, usher adds them itself"
	case base.Scheme == "http" && !unreached:
		return asked + ": check USHER_BASE_URL; should it start with https?"
	}
	return asked + ": check USHER_BASE_URL"
}

// adviseListener says what to do when a variable's address can't be listened on.
func adviseListener(variable string, err error) string {
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
		return fmt.Errorf("USHER_WEBHOOK_INBOX: %w; create its folder first", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("USHER_WEBHOOK_INBOX: %w%s, which needs write access to its folder", err, adviseUser(err))
	}
	if errors.Is(err, inbox.ErrInUse) {
		return fmt.Errorf("USHER_WEBHOOK_INBOX: %w; stop the other usher, or use another file", err)
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
	return fmt.Errorf("cannot reach usher. Is it running? (USHER_ADMIN_LISTEN says where): %w", err)
}
