package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/history"
	"usher/internal/inbox"
	"usher/internal/logs"
	"usher/internal/outbound"
	"usher/internal/receiver"
	"usher/internal/settings"
	"usher/tokens"
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
	c := &checker{out: p.Stdout}
	if s.OutboundOn() {
		s.Outbound.Log = logs.New(p.Stderr, s.Admin.LogFormat, !s.Admin.NoColour, s.Admin.Level)
		c.outbound = outbound.New(s.Outbound.Config)
	}
	fmt.Fprintln(p.Stdout, "ok    settings")
	if c.outbound != nil {
		c.ports(ctx)
	}
	answers := c.outbound != nil && len(c.outbound.Ports) > 0 && !c.failed
	if s.GateOn() {
		for _, r := range s.Webhook.Receivers.All() {
			c.receiver(ctx, r)
		}
	}
	if answers && len(s.Webhook.CatchUp) > 0 {
		c.webhookLog(ctx)
	}
	if answers && s.GateOn() {
		c.platforms(ctx, s)
	}
	if s.GateOn() || s.EntitlementsOn() {
		c.inbox(&s.Webhook, !s.GateOn())
	}
	if s.Admin.NotifyURL != nil {
		c.notifications(ctx, s)
	}
	if c.failed {
		return exitCode(exitFailed)
	}
	return nil
}

// notifications only opens a connection, to the proxy if there is one: a message would reach people.
// The address is a secret.
func (c *checker) notifications(ctx context.Context, s *settings.Settings) {
	to, err := url.Parse(s.Admin.NotifyURL.Get())
	if err != nil { // settings has checked it
		return
	}
	what := "the host"
	if via, err := s.Outbound.Proxy(to); err == nil && via != nil {
		what, to = "the proxy", via
	}
	if _, err := connect(ctx, to); err != nil {
		_, why := history.Why(err)
		c.fail("notifications: %v; the address is in USHER_NOTIFY_URL (not shown)", why)
		return
	}
	c.ok("notifications: %s accepts connections; nothing was posted", what)
}

// connect opens a connection, and closes it. With https it checks the certificate, too.
func connect(ctx context.Context, to *url.URL) (addr string, err error) {
	port := cmp.Or(to.Port(), map[string]string{"http": "80", "https": "443"}[to.Scheme], "1080")
	addr = net.JoinHostPort(to.Hostname(), port)
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	dial := dialer.DialContext
	if to.Scheme == "https" {
		dial = (&tls.Dialer{NetDialer: dialer}).DialContext
	}
	conn, err := dial(ctx, "tcp", addr)
	if err == nil {
		conn.Close()
	}
	return addr, err
}

// ports fetches a token for each port, and then calls the service with each.
func (c *checker) ports(ctx context.Context) {
	var clients []string
	byClient := make(map[string][]triedPort)
	for _, p := range c.outbound.Ports {
		token, err := p.Client.Fetch(ctx)
		if err != nil {
			c.fail("token for port %s: %v; %s", p.Name, err, c.outbound.Advise(err, p))
			continue
		}
		c.ok("token for port %s: valid for %v, fingerprint %s",
			p.Name, time.Until(token.Expiry()).Round(time.Second), token)
		if !slices.Contains(clients, p.ClientID) {
			clients = append(clients, p.ClientID)
		}
		byClient[p.ClientID] = append(byClient[p.ClientID], triedPort{p, token})
	}
	for _, id := range clients {
		c.client(ctx, byClient[id])
	}
}

// triedPort is a port that got a token.
type triedPort struct {
	*outbound.Port
	token *tokens.Token
}

// client calls the service with the token of each of these ports, which use the same API client. The
// first of these tokens is not the newest of its client then, so the call also shows whether a new token
// revokes those before it.
func (c *checker) client(ctx context.Context, ports []triedPort) {
	known, revoked := true, false
	if len(ports) == 1 {
		if _, err := ports[0].Client.Fetch(ctx); err != nil {
			known = false
			c.note("tokens for port %s: usher cannot tell whether a new token revokes the one before: %v",
				ports[0].Name, err)
		}
	}
	var names []string
	identities := make(map[*outbound.Identity]bool)
	for i, p := range ports {
		names = append(names, p.Name)
		identities[p.Identity] = true
		err := c.outbound.Probe(ctx, p.token)
		if outbound.Refused(err) {
			if token, failed := p.Client.Fetch(ctx); failed == nil && c.outbound.Probe(ctx, token) == nil {
				revoked, err = true, nil
			}
		}
		kept := ""
		if i == 0 && known && !revoked {
			kept = "; a second token did not revoke the first"
		}
		if err != nil {
			c.fail("graphql for port %s: %v", p.Name, err)
		} else {
			c.ok("graphql for port %s: {__typename} was answered%s", p.Name, kept)
		}
	}
	switch last := ports[len(ports)-1]; {
	case revoked && len(identities) > 1:
		c.fail("tokens for ports %s: they use the same API client, and a new token for one port revokes the "+
			"other's; give each port an API client of its own, for example with %s_CLIENT_ID",
			strings.Join(names, ", "), strings.TrimSuffix(last.Variables.Listen, "_LISTEN"))
	case revoked:
		c.note("tokens for port %s: each new token revokes the one before. "+
			"Only one usher at a time can use this API client: run one replica, and give every other usher "+
			"or program an API client of its own", names[0])
	}
}

// inbox checks that the inbox can be reached and written. It does not open a file that a running usher
// has open.
func (c *checker) inbox(w *settings.Webhook, readOnly bool) {
	if w.InboxConfig.Address == nil {
		return
	}
	switch err := inbox.Check(w.InboxConfig.Address, w.InboxConfig.Password, readOnly); {
	case errors.Is(err, inbox.ErrInUse):
		c.ok("inbox: a running usher has it open")
	case err != nil:
		c.fail("inbox: USHER_WEBHOOK_INBOX: %v", err)
	case readOnly:
		c.ok("inbox: can be read")
	default:
		c.ok("inbox: can be written")
	}
}

// receiver only opens a connection: a webhook would change something in the receiver.
func (c *checker) receiver(ctx context.Context, r *receiver.Receiver) {
	addr, err := connect(ctx, r.URL)
	if err != nil {
		c.fail("receiver %s: %v; is it running? Its address is in %s", r.Name, err, r.Variable)
		return
	}
	c.ok("receiver %s: %s accepts connections", r.Name, addr)
}
