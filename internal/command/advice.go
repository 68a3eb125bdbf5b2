package command

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"usher/internal/settings"
	"usher/tokens"
)

// This file says what to do about the errors that a newcomer meets. What went wrong
// is said where it happens; here it is known which variable it is about.

// advise says what to do when no token could be had for a port, with the variables
// that are in force there.
func (o *outbound) advise(err error, p settings.Port) string {
	id, secret, scope := o.settings.IdentityVariables(&p)
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
	base := o.settings.Outbound.Base
	asked := "usher tried " + o.settings.Outbound.Endpoint("/oauth/token").Redacted()
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

// adviseCommand says what was meant by a command that there is not.
func adviseCommand(name string) string {
	meant := settings.Nearest(name, []string{"demo", "exec", "check", "healthcheck", "inbox", "entitlements", "version", "help"})
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
