package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/testkit"
)

// port is what a good request to one of usher's ports is made of.
type port struct {
	name, addr, path, auth, body string
	outcome                      func(probe) string
	origin                       *witness
}

// witness notes what comes out of usher on one side: the requests, as net/http sees
// them, and every byte.
type witness struct {
	mu       sync.Mutex
	raw      bytes.Buffer
	requests []*http.Request
}

func (w *witness) tap(d testkit.Direction, p []byte) {
	if d == testkit.Up {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.raw.Write(p)
	}
}

func (w *witness) note(r *http.Request, _ []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = append(w.requests, r)
}

// take returns what came since the last time.
func (w *witness) take() (raw string, requests []*http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	raw, requests = w.raw.String(), w.requests
	w.raw.Reset()
	w.requests = nil
	return raw, requests
}

// ports starts an usher with every credential set, and witnesses on both sides.
func ports(t *testing.T) []*port {
	t.Helper()
	w := newWorld(t)
	service, receiver := new(witness), new(witness)
	w.billing.OnCall, w.toService.Tap = service.note, service.tap
	w.receiver.OnDelivery, w.toReceiver.Tap = receiver.note, receiver.tap
	environ := w.environ("USHER_KEY="+portKey, "USHER_WEBHOOK_TOKEN="+webhookToken, "USHER_ADMIN_TOKEN="+adminToken, "USHER_WEBHOOK_DEDUP_WINDOW=0")
	u := start(t, environ).ready(t)
	// Without an inbox the admin port reads no body, and there are no entitlements.
	other := start(t, append(environ, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"), "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_ENTITLEMENTS_KEY="+portKey)).ready(t)
	u.admin = other.admin
	service.take() // the token requests, which hold the client's secret
	return append(portsOf(u, service, receiver), &port{"entitlements", strings.TrimPrefix(other.URL(t, "entitlements"), "http://"), "/ofrep/v1/evaluate/flags",
		"X-Usher-Key: " + portKey, `{"context":{"targetingKey":"nobody"}}`, answeredByFlags, new(witness)})
}

// portsOf are the ports of an usher with these credentials, and who stands behind them.
func portsOf(u *usher, service, receiver *witness) []*port {
	return []*port{
		{"local", u.local, "/graphql", "X-Usher-Key: " + portKey, testkit.Query, func(p probe) string { return p.local }, service},
		{"gate", u.gate, "/webhooks", "X-Webhook-Token: " + webhookToken, testkit.Snapshot("acme", 5), func(p probe) string { return p.gate }, receiver},
		{"admin", u.admin, "/api/erase", "Authorization: Bearer " + adminToken, `{"tenant":"nobody"}`, answeredByErase, new(witness)},
	}
}

// answeredByErase is what the admin port answers: where it takes a request, that it does not know
// the tenant, of which no webhook comes.
func answeredByErase(p probe) string { return strings.ReplaceAll(p.admin, "200", "404") }

// answeredByFlags is what the entitlements port answers, which closes the connection where it does not read the body:
// with "/../x" behind its path it does, as that is a flag's key.
func answeredByFlags(p probe) string {
	if (p.admin == "404" || p.admin == "421") && strings.Contains(p.raw, "{body}") && !strings.Contains(p.raw, "/../") {
		return p.admin + " closed"
	}
	return p.admin
}

func (p *port) fill(raw string) string {
	return strings.NewReplacer(
		"{path}", p.path, "{host}", p.addr, "{auth}", p.auth, "{body}", p.body, "{own}", callersOwn,
		"{length}", fmt.Sprint(len(p.body)), "{length+100}", fmt.Sprint(len(p.body)+100),
		"{chunk}", fmt.Sprintf("%x\r\n%s\r\n", len(p.body), p.body),
	).Replace(raw)
}

// TestProbes sends each probe of the table to each port, on a connection of its own,
// and compares the answers and what reached the other side.
func TestProbes(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for _, p := range ports(t) {
		// Side by side: net/http waits half a second before it closes on a bad body.
		all.Go(func() {
			for _, g := range groups() {
				for _, pr := range g.probes {
					if p.outcome(pr) != "" {
						t.Run(p.name+"/"+pr.name, func(t *testing.T) { p.try(t, pr) })
					}
				}
			}
		})
	}
	all.Wait()
}

// try sends one probe to one port.
func (p *port) try(t *testing.T, pr probe) {
	want := p.outcome(pr)
	if got := exchange(t, p, p.fill(pr.raw)); got != want {
		t.Errorf("answered %s, want %s", got, want)
	}
	p.checkOrigin(t, pr, want)
}

// checkOrigin looks at what reached the service or the receiver because of a probe.
func (p *port) checkOrigin(t *testing.T, pr probe, outcome string) {
	t.Helper()
	raw, requests := p.origin.take()
	reach := pr.reach
	switch {
	case p.name == "admin" || p.name == "entitlements":
		reach = 0
	case p.name == "gate" && outcome == fine: // where the others refuse a Host
		reach = 1
	}
	if len(requests) != reach {
		t.Errorf("%d requests reached the other side, want %d", len(requests), reach)
	}
	if p.name == "gate" { // the receiver gets the token in one place
		raw = strings.ReplaceAll(raw, "Authorization: Bearer "+webhookToken+"\r\n", "")
	}
	for _, secret := range []string{portKey, webhookToken, adminToken, clientSecret, callersOwn} {
		if strings.Contains(raw, secret) {
			t.Errorf("%s leaves usher:\n%s", secret, raw)
		}
	}
	for _, r := range requests {
		if r.Header.Get("X-Smuggled") != "" {
			t.Errorf("the second request got through:\n%s", raw)
		}
		if auth := r.Header["Authorization"]; p.name == "local" && (len(auth) != 1 || !strings.HasPrefix(auth[0], "Bearer ey")) {
			t.Errorf("Authorization %q, want usher's token", auth)
		}
		if len(r.TransferEncoding) == 0 && r.ContentLength < int64(len(p.body)) {
			t.Errorf("it is not framed anew: length %d", r.ContentLength)
		}
		for _, name := range []string{"Upgrade", "Http2-Settings", "Te", "Trailer", "Proxy-Connection", "Keep-Alive", "Expect", "Transfer_encoding", "Content_length"} {
			if r.Header[name] != nil {
				t.Errorf("%s reached the other side", name)
			}
		}
	}
}

// exchange sends raw, and then, if the connection is still open, a request that asks
// for its end: so every answer there is can be read to the end, and counted. It
// returns the status codes of the answers to raw.
func exchange(t *testing.T, p *port, raw string) string {
	t.Helper()
	conn, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Minute)) // a bound for the test, not for usher
	go func() {
		// An error is fine: who is refused early can't send all of it.
		_, _ = io.WriteString(conn, raw)
		_, _ = io.WriteString(conn, "GET /the-end HTTP/1.1\r\nHost: "+p.addr+"\r\n"+p.auth+"\r\nConnection: close\r\n\r\n")
	}()
	var codes []string
	for r := bufio.NewReader(conn); ; {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !isReset(err) {
				t.Fatalf("after %v: %v", codes, err)
			}
			break
		}
		body, _ := io.ReadAll(resp.Body)
		switch {
		case resp.StatusCode == http.StatusContinue:
			continue
		case strings.Contains(string(body), callersOwn):
			t.Errorf("an answer shows a credential: %s", body)
		case !p.shaped(resp, body):
			t.Errorf("an answer in nobody's shape: %v %s", resp.Header, body)
		}
		codes = append(codes, fmt.Sprint(resp.StatusCode))
	}
	// The last answer is that to the request for the end, unless it was never read.
	if n := len(codes); n > 1 && codes[n-1] == "404" {
		return strings.Join(codes[:n-1], " ")
	}
	return strings.Join(codes, " ") + " closed"
}

// shaped says whether an answer is of the kind that the port always gives, or net/http's
// own plain one to a head that no handler has seen: those have no Date.
func (p *port) shaped(resp *http.Response, body []byte) bool {
	switch {
	case resp.Header.Get("Date") == "" && resp.Close && resp.Header.Get("Content-Type") == "text/plain; charset=utf-8":
		return len(body) < 100 && !strings.Contains(string(body), "{")
	case resp.StatusCode == http.StatusExpectationFailed: // net/http's own, without a body
		return len(body) == 0
	case p.name == "local":
		var r struct {
			Data   any
			Errors []struct{ Extensions struct{ Code string } }
		}
		return json.Unmarshal(body, &r) == nil && (r.Data != nil || len(r.Errors) == 1 && r.Errors[0].Extensions.Code != "")
	case p.name == "gate":
		var r struct{ Decision string }
		return json.Unmarshal(body, &r) == nil && r.Decision != "" && r.Decision == resp.Header.Get("Usher-Decision")
	default:
		return true
	}
}

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && !op.Timeout()
}

type group struct {
	title  string
	probes []probe
}

func groups() []group {
	return []group{
		{"Good requests, to compare with", controls()},
		{"Lengths and chunks", framingProbes()},
		{"Heads", headProbes()},
		{"Paths and credentials", credentialProbes()},
	}
}
