package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

var errAdminOff = errors.New("USHER_ADMIN_LISTEN is off: there is no port to ask")

// healthcheck asks a running usher whether it is ready. It reads one setting and
// no more: a probe must not depend on the secrets being mounted.
func healthcheck(ctx context.Context, p Process) int {
	r := newReader(p.Environ)
	var a Admin
	r.section("", &a)
	if a.Listen == "off" {
		return p.failed(errAdminOff)
	}
	client, url := adminClient(a.Listen)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return p.failed(fmt.Errorf("USHER_ADMIN_LISTEN: %w", err))
	}
	resp, err := client.Do(req)
	if err != nil {
		return p.failed(notAsked(err))
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	fmt.Fprintln(p.Stdout, strings.TrimSpace(string(body)))
	if resp.StatusCode != http.StatusOK {
		return exitFailed
	}
	return exitOK
}

// adminClient returns what reaches an admin port that listens on addr from the
// same machine, and the address to use with it.
func adminClient(addr string) (*http.Client, string) {
	transport := &http.Transport{DisableKeepAlives: true}
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
		return &http.Client{Transport: transport}, "http://localhost"
	}
	if host, port, err := net.SplitHostPort(addr); err == nil {
		ip, err := netip.ParseAddr(host)
		switch {
		case host == "", err == nil && ip.IsUnspecified() && ip.Is4():
			addr = net.JoinHostPort("127.0.0.1", port)
		case err == nil && ip.IsUnspecified():
			addr = net.JoinHostPort("::1", port)
		}
	}
	return &http.Client{Transport: transport}, "http://" + addr
}
