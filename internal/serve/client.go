package serve

import (
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"

	"usher/internal/secret"
)

// Client calls a port of an usher on this machine.
type Client struct {
	http.Client
	Header http.Header // sent with each request
}

// LocalURL is the URL of every port for its Client, which knows where to connect. So the Host header is
// localhost, which usher always accepts, even if the port listens on 0.0.0.0 or on a unix socket.
const LocalURL = "http://localhost"

// NewClient returns a client for the port at address, which is host:port, http://host:port or unix:/path. The
// client sends the first of tokens, which may be empty.
func NewClient(address, tokens string) *Client {
	network, address := "tcp", strings.TrimPrefix(address, "http://")
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	c := &Client{Header: make(http.Header)}
	c.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	if list, err := secret.Tokens(tokens); err == nil {
		c.Header.Set("Authorization", "Bearer "+list[0].Value)
	}
	return c
}

// Call sends a request and returns the answer, whatever its status is.
func (c *Client) Call(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, LocalURL+path, body)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, c.Header)
	return c.Do(req)
}
