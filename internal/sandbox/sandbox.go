// Package sandbox is a small billing service and a webhook receiver, to try usher with. The demo and
// the tests of other packages use it.
//
// [Billing] is the service's side of a call: a token endpoint that signs real
// JWTs and a GraphQL endpoint that checks them. [Sender] is the service's side
// of a webhook: a small world of tenants whose subscriptions change. [Receiver]
// is the customer's application, which keeps what each tenant may use.
//
// The sandbox is strict. It refuses what the published interface says is refused. If the interface
// does not say, the sandbox takes the stricter reading. So what works with the sandbox has a good
// chance to work with the real service. A [Fault] makes each part fail on demand.
//
// Time comes from package time alone, so everything but Open works inside a testing/synctest bubble.
package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"usher/internal/guard"
	"usher/internal/text"
)

// Config is what a Sandbox is opened with.
type Config struct {
	Listen         string        // host:port of the billing service
	ReceiverListen string        // host:port of the receiver; "off" for none
	TokenLife      time.Duration // see [Client]
	Sender         *Sender       // of its webhooks; without an address: to the receiver. Nil: such a one
	Log            *log.Logger   // webhooks sent and received; nil for none
}

// Sandbox is what 'usher sandbox' serves: a billing service whose port also takes orders, and a
// receiver. The orders are HTTP, so that a test in any language can send a webhook (/sandbox/send),
// revoke the tokens (/sandbox/revoke), or make a part fail (/sandbox/fail).
type Sandbox struct {
	*Billing
	Receiver         *Receiver // nil: none
	Sender           *Sender
	URL, ReceiverURL string

	log     *log.Logger
	servers []*http.Server
}

// The API client that every sandbox knows.
const (
	ClientID     = "demo"
	ClientSecret = "demo-secret"
)

// Open starts a sandbox. When it returns, its ports are open.
func Open(c Config) (*Sandbox, error) {
	s := &Sandbox{
		Billing: NewBilling(Client{ID: ClientID, Secret: ClientSecret, Scopes: []string{"standard:read", "standard:write"}, TokenLife: c.TokenLife}),
		Sender:  cmp.Or(c.Sender, NewSender(uint64(time.Now().UnixNano()))),
		log:     c.Log,
	}
	var err error
	if s.URL, err = s.serve(c.Listen, s); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if c.ReceiverListen == "off" {
		return s, nil
	}
	s.Receiver = NewReceiver()
	s.Receiver.OnAnswer = func(d Delivery) { s.printf("receiver: %s: %d", d.What, d.Status) }
	if s.ReceiverURL, err = s.serve(c.ReceiverListen, s.Receiver); err != nil {
		s.Close()
		return nil, fmt.Errorf("--receiver-listen: %w", err)
	}
	s.ReceiverURL += "/provisioning"
	if len(s.Sender.URLs) == 0 {
		s.Sender.URLs = []string{s.ReceiverURL}
	}
	return s, nil
}

// Close ends the sandbox at once.
func (s *Sandbox) Close() {
	for _, server := range s.servers {
		server.Close()
	}
}

// serve opens a port, and returns where this machine reaches it.
func (s *Sandbox) serve(addr string, h http.Handler) (string, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	s.servers = append(s.servers, server)
	go func() { _ = server.Serve(l) }()
	at := l.Addr().(*net.TCPAddr)
	if at.IP.IsUnspecified() {
		at.IP = net.IPv4(127, 0, 0, 1)
	}
	return "http://" + at.String(), nil
}

// Play sends a webhook of the sandbox's small world at these intervals, until ctx ends.
func (s *Sandbox) Play(ctx context.Context, every time.Duration) {
	for tick := time.Tick(every); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		if e := s.Sender.Next(ctx); ctx.Err() == nil {
			s.logSent(e)
		}
	}
}

func (s *Sandbox) logSent(e Entry) {
	for _, r := range e.Replies {
		s.printf("webhook to %s: %s: %s", r.To, e.What, r)
	}
}

// printf logs what others may have written.
func (s *Sandbox) printf(format string, args ...any) {
	if s.log != nil {
		s.log.Print(text.Visible(fmt.Sprintf(format, args...)))
	}
}

// ServeHTTP answers as the billing service does, and takes orders.
func (s *Sandbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	order := map[string]func(*http.Request, []byte) answer{
		"/sandbox/send": s.send, "/sandbox/revoke": s.revoke, "/sandbox/fail": s.fail,
	}[r.URL.EscapedPath()]
	if order == nil {
		s.Billing.ServeHTTP(w, r)
		return
	}
	body, refusal := readPost(w, r, maxCallBody)
	switch {
	case refusal != nil:
		refusal.write(w)
	case guard.FromBrowser(r.Header): // any page could send to this port
		refuseOrder(http.StatusForbidden, "the sandbox takes no orders from web pages").write(w)
	default:
		order(r, body).write(w)
	}
}

func refuseOrder(status int, message string) answer {
	return jsonAnswer(status, map[string]string{"error": message})
}

// readOrder reads an order strictly: a name with a typing error in it must not go unnoticed.
func readOrder(body []byte, order any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(order); err != nil {
		return fmt.Errorf("the order cannot be read: %w", err)
	}
	return nil
}

// send is POST /sandbox/send: a [State] or, with ?raw, any body as it is.
func (s *Sandbox) send(r *http.Request, body []byte) answer {
	what := "a body of your own"
	if !r.URL.Query().Has("raw") {
		var state State
		if err := readOrder(body, &state); err != nil {
			return refuseOrder(http.StatusBadRequest, err.Error())
		}
		if state.Tenant == "" {
			return refuseOrder(http.StatusBadRequest, `"tenant" is missing`)
		}
		what, body = state.String(), state.Webhook()
	}
	if len(s.Sender.URLs) == 0 {
		return refuseOrder(http.StatusConflict, "the sandbox sends nowhere: start it with --webhooks-to URL")
	}
	e := s.Sender.send(r.Context(), what, body)
	s.logSent(e)
	return jsonAnswer(http.StatusOK, Sent{e.Status, e.Decision, e.Replies})
}

// Sent is the answer to /sandbox/send.
type Sent struct {
	Status   int     `json:"status"` // of the first reply that is not a success, otherwise of the first
	Decision string  `json:"decision"`
	Replies  []Reply `json:"replies"`
}

// revoke is POST /sandbox/revoke.
func (s *Sandbox) revoke(*http.Request, []byte) answer {
	n := s.Revoke()
	s.printf("tokens revoked: %d", n)
	return jsonAnswer(http.StatusOK, Revoked{n})
}

// Revoked is the answer to /sandbox/revoke.
type Revoked struct {
	Revoked int `json:"revoked"`
}

// Failure is the order of /sandbox/fail: a part answers with this status, for so many seconds or until
// there is another order. Status 0 ends that. The part "off" ends it for all of them.
type Failure struct {
	Part    string  `json:"part"`
	Status  int     `json:"status"`
	Seconds float64 `json:"seconds,omitempty"`
}

func (s *Sandbox) fail(_ *http.Request, body []byte) answer {
	var f Failure
	err := readOrder(body, &f)
	if err == nil {
		err = s.Fail(f)
	}
	if err != nil {
		return refuseOrder(http.StatusBadRequest, err.Error())
	}
	s.printf("failing: %s %d", f.Part, f.Status)
	return jsonAnswer(http.StatusOK, f)
}

// Fail makes a part of the sandbox fail. Where the published interface shows the body of an error, that
// is what the part answers.
func (s *Sandbox) Fail(f Failure) error {
	if f.Part == "off" {
		f = Failure{}
	}
	if f.Status != 0 && (f.Status < 200 || f.Status > 599) || f.Seconds < 0 {
		return fmt.Errorf("status %d for %g seconds is not possible: use a status from 200 to 599", f.Status, f.Seconds)
	}
	fault := Fault{Status: f.Status}
	if f.Seconds > 0 {
		fault.Until = time.Now().Add(time.Duration(f.Seconds * float64(time.Second)))
	}
	for _, a := range map[string][]answer{
		"token": {
			refuseToken(http.StatusBadRequest, "invalid_scope", "The requested scope is invalid, unknown, or malformed."),
			refuseToken(http.StatusUnauthorized, "invalid_client", "Client authentication failed."),
		},
		"graphql": {unauthorized("The access token expired")},
	}[f.Part] {
		if a.status == f.Status {
			fault.Body, fault.Header = string(a.body), a.header
		}
	}
	parts := map[string]func(Fault){"token": s.FailTokens, "graphql": s.FailGraphQL}
	if s.Receiver != nil {
		parts["receiver"] = s.Receiver.Behave
	}
	switch fail := parts[f.Part]; {
	case fail != nil:
		fail(fault)
	case f.Part == "":
		for _, fail := range parts {
			fail(fault)
		}
	case f.Part == "receiver":
		return errors.New("there is no receiver: --receiver-listen is off")
	default:
		return fmt.Errorf("unknown part %q: use token, graphql, receiver or off", f.Part)
	}
	return nil
}
