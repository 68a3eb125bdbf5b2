package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"usher/internal/inbox"
	"usher/internal/logs"
	"usher/internal/outbound"
	"usher/internal/receiver"
	"usher/internal/settings"
	"usher/internal/text"
)

// checkCommand is 'usher check': it tries the settings without opening a port, and prints one line for
// each thing that it tries.
func checkCommand(ctx context.Context, p *Process) error {
	s, err := settings.Read(p.Environ)
	if err != nil {
		return err
	}
	for _, name := range s.Unknown {
		fmt.Fprintf(p.Stdout, "note  unknown variable %s: usher ignores it\n", name)
	}
	for _, u := range s.Unused {
		fmt.Fprintf(p.Stdout, "note  %s is not used: %s\n", u.Name, u.Why)
	}
	c := &checker{out: p.Stdout}
	if s.OutboundOn() {
		if c.outbound, err = outbound.New(s, logs.New(p.Stderr, s.Admin.LogFormat, !s.Admin.NoColour, s.Admin.Level), nil); err != nil {
			return err
		}
	}
	fmt.Fprintln(p.Stdout, "ok    settings")
	if c.outbound != nil {
		for _, port := range c.outbound.Ports {
			c.port(ctx, port)
		}
	}
	if s.GateOn() {
		if ends := s.Webhook.TLSEnds; !ends.IsZero() && time.Now().After(ends) {
			c.fail("certificate of the gate: it has expired, on %s; put a new one into USHER_WEBHOOK_TLS_CERT_FILE and USHER_WEBHOOK_TLS_KEY_FILE", ends.UTC().Format(time.DateOnly))
		}
		for _, r := range s.Webhook.Receivers.All() {
			c.receiver(ctx, r)
		}
	}
	if s.GateOn() || s.EntitlementsOn() {
		c.inbox(&s.Webhook)
	}
	if c.failed {
		return exitCode(exitFailed)
	}
	return nil
}

type checker struct {
	out      io.Writer
	outbound *outbound.Outbound // nil if outbound is off
	failed   bool
}

func (c *checker) ok(format string, args ...any) {
	fmt.Fprintf(c.out, "ok    "+format+"\n", args...)
}

func (c *checker) fail(format string, args ...any) {
	c.failed = true
	fmt.Fprintf(c.out, "FAIL  %s\n", text.Visible(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")))
}

func (c *checker) port(ctx context.Context, p *outbound.Port) {
	token, err := p.Client.Fetch(ctx)
	if err != nil {
		c.fail("token for port %s: %v; %s", p.Name, err, c.outbound.Advise(err, &p.Port))
		return
	}
	c.ok("token for port %s: valid for %v, fingerprint %s", p.Name, time.Until(token.Expiry()).Round(time.Second), token)
	if err := c.outbound.Probe(ctx, token); err != nil {
		c.fail("graphql for port %s: %v", p.Name, err)
		return
	}
	c.ok("graphql for port %s: {__typename} was answered", p.Name)
}

// inbox checks that the inbox can be reached and written. It does not open a file that a running usher
// has open.
func (c *checker) inbox(w *settings.Webhook) {
	if w.InboxConfig.Address == nil {
		return
	}
	switch err := inbox.Check(w.InboxConfig.Address, w.InboxPassword.Getter()); {
	case errors.Is(err, inbox.ErrInUse):
		c.ok("inbox: a running usher has it open")
	case err != nil:
		c.fail("inbox: %v", settings.InboxError(err))
	default:
		c.ok("inbox: can be written")
	}
}

// receiver only opens a connection: a webhook would change something in the receiver.
func (c *checker) receiver(ctx context.Context, r *receiver.Receiver) {
	port := cmp.Or(r.URL.Port(), map[string]string{"http": "80", "https": "443"}[r.URL.Scheme])
	addr := net.JoinHostPort(r.URL.Hostname(), port)
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	dial := dialer.DialContext
	if r.URL.Scheme == "https" { // a certificate that usher does not trust would fail each delivery
		dial = (&tls.Dialer{NetDialer: dialer}).DialContext
	}
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		c.fail("receiver %s: %v; is it running? Its address is in %s", r.Name, err, r.Variable)
		return
	}
	conn.Close()
	c.ok("receiver %s: %s accepts connections", r.Name, addr)
}
