package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"usher/internal/admin"
	"usher/internal/settings"
)

var errAdminOff = errors.New("USHER_ADMIN_LISTEN is off: there is no admin port")

// unready says what keeps usher from being ready.
func (u *usher) unready() []string {
	return slices.Concat(u.shutdownProblems(), u.inboxProblems(), u.entitlementsProblems(), u.tokenProblems())
}

// parts returns what /readyz/NAME reports on. Each part has a readiness of its own, so that
// a token endpoint that refuses does not take a gate out of its load balancer.
func (u *usher) parts() []admin.Part {
	o, g, e := u.settings.Parts()
	outbound := admin.Part{Name: o.Name, Off: o.Off}
	if u.outbound != nil {
		outbound.Unready = func() []string { return append(u.shutdownProblems(), u.tokenProblems()...) }
	}
	gate := admin.Part{Name: g.Name, Off: g.Off}
	if u.gate != nil {
		gate.Unready = func() []string { return append(u.shutdownProblems(), u.inboxProblems()...) }
	}
	answers := admin.Part{Name: e.Name, Off: e.Off}
	if u.answers != nil {
		// usher answers from memory also while it cannot reach the inbox's servers.
		answers.Unready = func() []string { return append(u.shutdownProblems(), u.entitlementsProblems()...) }
	}
	return []admin.Part{outbound, gate, answers}
}

func (u *usher) shutdownProblems() []string {
	if !u.stopping.Load() {
		return nil
	}
	return []string{"shutting down"}
}

func (u *usher) inboxProblems() []string {
	if u.inbox == nil {
		return nil
	}
	if err := u.inbox.Err(); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// tokenProblems says which ports never had a token. After the first one an outage of the
// billing service does not make usher unready: it must not take the customer's pod down.
func (u *usher) tokenProblems() []string {
	if u.outbound == nil {
		return nil
	}
	var problems []string
	for _, p := range u.outbound.ports {
		state := p.source.State()
		switch {
		case state.Had:
		case state.Err != nil:
			problems = append(problems, fmt.Sprintf("port %s has had no token yet: %v", p.Name, state.Err))
		default:
			problems = append(problems, fmt.Sprintf("port %s has had no token yet", p.Name))
		}
	}
	return problems
}

// healthcheck is usher healthcheck: it asks a running usher whether it is ready.
func healthcheck(ctx context.Context, p Process) int {
	addr := settings.AdminListen(p.Environ)
	if addr == "off" {
		return p.failed(errAdminOff)
	}
	client, base := adminClient(addr)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz", nil)
	if err != nil {
		return p.failed(fmt.Errorf("USHER_ADMIN_LISTEN: %w", err))
	}
	resp, err := client.Do(req)
	if err != nil {
		return p.failed(notAsked(addr, err))
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	fmt.Fprintln(p.Stdout, strings.TrimSpace(string(body)))
	if resp.StatusCode != http.StatusOK {
		return exitFailed
	}
	return exitOK
}

// adminClient returns a client for the admin port that listens on addr on this machine, and
// the address to use with it.
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

// notAsked says that no usher answered on the admin port.
func notAsked(listen string, err error) error {
	if request := new(url.Error); errors.As(err, &request) {
		err = request.Err // without the request, which nobody wrote
	}
	return fmt.Errorf("cannot reach usher at %s. Is it running? USHER_ADMIN_LISTEN says where: %w", listen, err)
}
