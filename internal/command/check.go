package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"usher/internal/inbox"
	"usher/internal/settings"
	"usher/tokens"
)

// check is usher check: it tries the settings without opening a port, and prints one line
// for each thing that it tries.
func check(ctx context.Context, p Process) int {
	s, ok := p.settings(p.Environ)
	if !ok {
		return exitUsage
	}
	for _, name := range s.Unknown {
		fmt.Fprintf(p.Stdout, "note  %s is not known and not used\n", name)
	}
	for _, u := range s.Unused {
		fmt.Fprintf(p.Stdout, "note  %s is not used: %s\n", u.Name, u.Why)
	}
	c := &checker{out: p.Stdout, tokens: make(map[*identity]*tokens.Token)}
	if s.OutboundOn() {
		var err error
		if c.outbound, err = newOutbound(s, newLog(p.Stderr, &s.Admin), nil); err != nil {
			return p.failed(err)
		}
	}
	fmt.Fprintln(p.Stdout, "ok    settings")
	if c.outbound != nil {
		for _, port := range c.outbound.ports {
			c.port(ctx, port)
		}
	}
	if s.GateOn() {
		for _, receiver := range s.Webhook.Receivers {
			c.receiver(ctx, receiver)
		}
	}
	if s.GateOn() || s.EntitlementsOn() {
		c.inbox(ctx, &s.Webhook)
	}
	if c.failed {
		return exitFailed
	}
	return exitOK
}

type checker struct {
	out      io.Writer
	outbound *outbound                   // nil: off
	tokens   map[*identity]*tokens.Token // usher asks once for each
	failed   bool
}

func (c *checker) ok(format string, args ...any) {
	fmt.Fprintf(c.out, "ok    "+format+"\n", args...)
}

func (c *checker) fail(format string, args ...any) {
	c.failed = true
	fmt.Fprintf(c.out, "FAIL  "+format+"\n", args...)
}

func (c *checker) port(ctx context.Context, p *localPort) {
	token := c.tokens[p.identity]
	if token == nil {
		var err error
		if token, err = p.client.Fetch(ctx); err != nil {
			c.fail("token for port %s: %v; %s", p.Name, err, c.outbound.advise(err, &p.Port))
			return
		}
		c.tokens[p.identity] = token
	}
	c.ok("token for port %s: valid for %v, fingerprint %s", p.Name, time.Until(token.Expiry()).Round(time.Second), token)
	if err := c.typename(ctx, token); err != nil {
		c.fail("graphql for port %s: %s: %v", p.Name, c.outbound.target.Redacted(), err)
		return
	}
	c.ok("graphql for port %s: {__typename} was answered", p.Name)
}

func (c *checker) typename(ctx context.Context, token *tokens.Token) error {
	ctx, cancel := context.WithTimeout(ctx, c.outbound.settings.Outbound.UpstreamTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.outbound.target.String(), strings.NewReader(`{"query":"{__typename}"}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", userAgent())
	req.Header["Authorization"] = token.Header()
	resp, err := c.outbound.upstream.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%w; the same address did answer with a token, so try again, or increase USHER_UPSTREAM_TIMEOUT", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("the answer ended too early: %w; try again", err)
	}
	return judge(resp.StatusCode, body, token)
}

// judge says what is wrong with an answer of the API, and what to do about it.
func judge(status int, body []byte, token *tokens.Token) error {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fmt.Errorf("answered %d; the service rejects the token that it has just issued: does another program use this API client, and is the client allowed to use the API?", status)
	case status >= 500:
		return fmt.Errorf("answered %d; this is an error of the service, try again later", status)
	case status != http.StatusOK:
		return fmt.Errorf("answered %d; is USHER_BASE_URL right?", status)
	case !json.Valid(body):
		return errors.New("the answer is not JSON; is USHER_BASE_URL right?")
	}
	var answer struct {
		Data   json.RawMessage
		Errors []json.RawMessage
	}
	_ = json.Unmarshal(body, &answer) // any JSON will do: check only asks for an answer
	if len(answer.Errors) == 0 || len(answer.Data) > 0 && string(answer.Data) != "null" {
		return nil
	}
	var first struct{ Message string }
	if json.Unmarshal(answer.Errors[0], &first) == nil && first.Message != "" {
		secret := strings.TrimPrefix(token.Header()[0], "Bearer ")
		first.Message = ": " + visible(strings.ReplaceAll(first.Message, secret, "[redacted]"))
	}
	return fmt.Errorf("answered with an error%s; is this API client allowed to use the API with these scopes?", first.Message)
}

func (c *checker) inbox(ctx context.Context, w *settings.Webhook) {
	switch {
	case w.NATS != nil:
		c.sharedInbox(ctx, w.NATS)
	case w.Inbox != "":
		c.fileInbox(strings.TrimPrefix(w.Inbox, "file:"))
	}
}

// receiver only connects: a webhook would change something.
func (c *checker) receiver(ctx context.Context, r settings.Receiver) {
	u := r.URL
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	addr := net.JoinHostPort(u.Hostname(), port)
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		c.fail("receiver %s: %v; is it running? %s says where", r.Name, err, r.Variable())
		return
	}
	conn.Close()
	c.ok("receiver %s: %s accepts connections", r.Name, addr)
}

// fileInbox changes nothing. usher creates a missing inbox when it starts.
func (c *checker) fileInbox(path string) {
	found, err := inbox.CheckFile(path)
	if err != nil {
		c.fail("inbox: %v", settings.InboxError(err))
		return
	}
	c.ok("inbox: %s", found)
}

// sharedInbox changes nothing. usher creates a missing stream when it starts.
func (c *checker) sharedInbox(ctx context.Context, n *inbox.NATS) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	found, err := n.Check(ctx)
	if err != nil {
		c.fail("inbox: %v; check USHER_WEBHOOK_INBOX and the settings that begin with it", err)
		return
	}
	c.ok("inbox: %s", found)
}
