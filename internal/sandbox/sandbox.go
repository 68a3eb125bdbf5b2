// Package sandbox is a small billing service and a webhook receiver, to try usher and receivers with. It is
// 'usher sandbox', 'usher demo' uses it, and so do the tests of other packages.
//
// [Billing] is the service that programs call: a token endpoint that signs real JWTs, and a GraphQL
// endpoint that checks them and has a part of the service's published schema. [Sender] sends the service's
// webhooks: it has a few tenants whose subscriptions change. [Receiver] is the customer's application, which
// reads what each tenant may use.
//
// The sandbox is strict. It refuses what the published interface says is refused. Where the interface does
// not say, the sandbox takes the stricter reading. So a program that works with the sandbox probably works
// with the real service. A [Fault] makes each part fail on demand.
//
// It shares no type with usher, which reads the service's answers with types of its own: a mistake in one of the two
// is not made in the other.
//
// Time comes from package time alone, so everything except [Open] works inside a testing/synctest bubble.
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
	"strings"
	"time"

	"usher/internal/guard"
	"usher/internal/text"
)

// Config configures a Sandbox.
type Config struct {
	Listen         string        // host:port of the billing service
	ReceiverListen string        // host:port of the receiver; "off" for none
	TokenLife      time.Duration // see [Client]
	Sender         *Sender       // sends its webhooks, to the sandbox's receiver if it has no URLs; nil for a new one
	LogEarlier     time.Duration // webhooks are so much older in its log than they are: a reader that leaves young ones alone need not wait
	Log            *log.Logger   // logs the webhooks that are sent and received; nil for no log
}

// Sandbox is what 'usher sandbox' serves: a billing service and a receiver. The port of the billing service
// also accepts commands over HTTP, so that a test in any language can send a webhook (/sandbox/send), ask whether a
// purchase may be made (/sandbox/checkout), revoke the tokens (/sandbox/revoke), or make a part fail (/sandbox/fail).
type Sandbox struct {
	*Billing
	Receiver         *Receiver // nil if ReceiverListen is off
	Sender           *Sender
	URL, ReceiverURL string

	log     *log.Logger
	servers []*http.Server
}

// The credentials of the API client that every sandbox has.
const (
	ClientID     = "demo"
	ClientSecret = "demo-secret"
)

// Open starts a sandbox. Its ports are open when Open returns.
func Open(c Config) (*Sandbox, error) {
	s := &Sandbox{
		Billing: NewBilling(Client{
			ID:        ClientID,
			Secret:    ClientSecret,
			Scopes:    []string{"standard:read", "standard:write", "billing:read", "product:read", "workflow:read"},
			TokenLife: c.TokenLife,
		}),
		Sender: cmp.Or(c.Sender, NewSender(uint64(time.Now().UnixNano()))),
		log:    c.Log,
	}
	s.Sender.log.earlier = c.LogEarlier
	s.book, s.Billing.log, s.Platforms = s.Sender.book, s.Sender.log, s.Sender.platforms
	var err error
	if s.URL, err = s.serve(c.Listen, s); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if c.ReceiverListen == "off" {
		return s, nil
	}
	s.Receiver = NewReceiver()
	s.Receiver.OnAnswer = func(d Delivery) { s.logf("receiver: %s: %d", d.Summary, d.Status) }
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

// Close ends the sandbox immediately.
func (s *Sandbox) Close() {
	for _, server := range s.servers {
		server.Close()
	}
}

// serve opens a port, and returns its URL for programs on this machine.
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

// Play sends a webhook of one of the sandbox's own tenants at these intervals, until ctx ends.
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

func (s *Sandbox) logSent(e SentWebhook) {
	for _, r := range e.Replies {
		attempts := ""
		if r.Attempts > 1 {
			attempts = fmt.Sprintf(" (attempt %d)", r.Attempts)
		}
		s.logf("webhook to %s: %s: %s%s", r.To, e.Summary, r, attempts)
	}
}

// logf logs a line. It makes control characters in it visible, because it may quote foreign text.
func (s *Sandbox) logf(format string, args ...any) {
	if s.log != nil {
		s.log.Print(text.Visible(fmt.Sprintf(format, args...)))
	}
}

// ServeHTTP answers as the billing service does, and runs the commands under /sandbox/.
func (s *Sandbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	command := map[string]func(*http.Request, []byte) answer{
		"/sandbox/send": s.send, "/sandbox/checkout": s.checkout, "/sandbox/revoke": s.revoke, "/sandbox/fail": s.fail,
	}[r.URL.EscapedPath()]
	if command == nil {
		s.Billing.ServeHTTP(w, r)
		return
	}
	body, refusal := readPost(w, r, maxCallBody)
	switch {
	case refusal != nil:
		refusal.write(w)
	case guard.FromBrowser(r.Header): // every web page can send requests to this port
		commandError(http.StatusForbidden, "the sandbox takes no commands from web pages").write(w)
	default:
		command(r, body).write(w)
	}
}

func commandError(status int, message string) answer {
	return jsonAnswer(status, map[string]string{"error": message})
}

// parseCommand decodes the body of a command strictly: a field with a typing error in its name must not go
// unnoticed.
func parseCommand(body []byte, command any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(command)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // its text names our Go types
		field := strings.TrimPrefix(wrong.Field, "State.") // embedded in SendCommand
		err = fmt.Errorf("it has a JSON %s in %q", wrong.Value, field)
	}
	if err != nil {
		return fmt.Errorf("the command cannot be read: %w", err)
	}
	return nil
}

// SendCommand is the body of /sandbox/send.
type SendCommand struct {
	State
	Lost bool `json:"lost,omitempty"` // the tenant changes, and its webhook is never sent
}

// send is POST /sandbox/send: a [SendCommand] or, with ?raw, any body as it is.
func (s *Sandbox) send(r *http.Request, body []byte) answer {
	what := "a body of your own"
	if !r.URL.Query().Has("raw") {
		var c SendCommand
		if err := parseState(body, &c, &c.State); err != nil {
			return commandError(http.StatusBadRequest, err.Error())
		}
		what, body = c.String(), c.Webhook()
		if c.Lost {
			s.Sender.lose(body)
			s.logf("webhook lost, nothing is sent: %s", what)
			return jsonAnswer(http.StatusOK, SendResult{Lost: true, Replies: []Reply{}})
		}
	}
	if len(s.Sender.URLs) == 0 {
		return commandError(http.StatusConflict, sendsNowhere)
	}
	e := s.Sender.change(context.WithoutCancel(r.Context()), what, body) // the service goes on, too, if the person who asked has left
	s.logSent(e)
	return jsonAnswer(http.StatusOK, SendResult{Status: e.Status, Decision: e.Decision, Replies: e.Replies})
}

const sendsNowhere = "the sandbox sends nowhere: start it with --webhooks-to URL"

// parseState decodes the body of a command that has a State.
func parseState(body []byte, command any, state *State) error {
	err := parseCommand(body, command)
	if err == nil && state.Tenant == "" {
		err = errors.New(`"tenant" is missing`)
	}
	return err
}

// checkout is POST /sandbox/checkout: it asks whether a purchase may be made, and says what the buyer would read.
func (s *Sandbox) checkout(r *http.Request, body []byte) answer {
	var state State
	if err := parseState(body, &state, &state); err != nil {
		return commandError(http.StatusBadRequest, err.Error())
	}
	if len(s.Sender.URLs) == 0 {
		return commandError(http.StatusConflict, sendsNowhere)
	}
	e := s.Sender.Ask(context.WithoutCancel(r.Context()), state)
	s.logSent(e)
	return jsonAnswer(http.StatusOK, CheckoutResult{e.Status, e.Decision, e.OK(), e.BuyerReads()})
}

// CheckoutResult is the answer to /sandbox/checkout.
type CheckoutResult struct {
	Status   int      `json:"status"`
	Decision string   `json:"decision"`
	Allowed  bool     `json:"allowed"`
	Reads    []string `json:"reads"` // what the buyer reads; null for an error that the service words
}

// BuyerReads returns what the buyer reads when a purchase is refused: the answer's JSON array of strings. It returns
// nil if the answer is something else, for which the service has a general sentence of its own.
func (r Reply) BuyerReads() (sentences []string) {
	if r.OK() {
		return []string{}
	}
	if json.Unmarshal([]byte(r.Answer), &sentences) != nil {
		return nil
	}
	return sentences
}

// SendResult is the answer to /sandbox/send.
type SendResult struct {
	Status   int     `json:"status"` // that of the first reply that is not a success, or else of the first reply
	Decision string  `json:"decision"`
	Replies  []Reply `json:"replies"`
	Lost     bool    `json:"lost,omitempty"` // nothing was sent
}

// revoke is POST /sandbox/revoke.
func (s *Sandbox) revoke(*http.Request, []byte) answer {
	n := s.Revoke()
	s.logf("tokens revoked: %d", n)
	return jsonAnswer(http.StatusOK, Revoked{n})
}

// Revoked is the answer to /sandbox/revoke.
type Revoked struct {
	Revoked int `json:"revoked"`
}

// Failure is the body of /sandbox/fail. It makes a part answer with Status, for Seconds or, without them,
// until the next command for that part. Status 0 ends the failure; the part "off" ends all failures.
type Failure struct {
	Part    string  `json:"part"`
	Status  int     `json:"status"`
	Seconds float64 `json:"seconds,omitempty"`
}

func (s *Sandbox) fail(_ *http.Request, body []byte) answer {
	var f Failure
	err := parseCommand(body, &f)
	if err == nil {
		err = s.Fail(f)
	}
	if err != nil {
		return commandError(http.StatusBadRequest, err.Error())
	}
	s.logf("failing: %s %d", f.Part, f.Status)
	return jsonAnswer(http.StatusOK, f)
}

// documented are the answers to failures whose body the service's maker shows.
var documented = map[string][]answer{
	"token": {
		refuseToken(http.StatusBadRequest, "invalid_scope", "The requested scope is invalid, unknown, or malformed."),
		refuseToken(http.StatusUnauthorized, "invalid_client", "Client authentication failed."),
		refuseToken(http.StatusForbidden, "unauthorized_client", "The client is not authorized to perform this request."),
	},
	"graphql": {unauthorized("The access token expired"), crash, beside},
	"log":     {unauthorized("The access token expired"), crash, inside},
}

// Two ways to fail with a 200: an error beside the data, and inside it, if a scope is missing.
var (
	beside = jsonAnswer(http.StatusOK, map[string]any{
		"data": map[string]any{}, "errors": []map[string]string{{"message": "made by usher sandbox"}},
	})
	inside = jsonAnswer(http.StatusOK, map[string]any{
		"data": map[string]refusal{"webhookEvents": {[]string{missingScope{"workflow:read", "webhookEvents"}.Error()}}},
	})
)

// crash is a 500, which is JSON, too.
var crash = jsonAnswer(http.StatusInternalServerError, map[string]any{
	"status": 500, "error": "Internal Server Error", "exception": "#<RuntimeError: made by usher sandbox>",
})

// Fail makes a part of the sandbox fail, with the documented answer if there is one for the status.
func (s *Sandbox) Fail(f Failure) error {
	parts := map[string]func(Fault){"token": s.FailTokens, "graphql": s.FailGraphQL, "log": func(f Fault) { s.Billing.faults.set(logPart, f) }}
	if s.Receiver != nil {
		parts["receiver"] = s.Receiver.Fail
	}
	if f.Part == "off" {
		for _, fail := range parts {
			fail(Fault{})
		}
		return nil
	}
	fail := parts[f.Part]
	switch {
	case fail == nil && f.Part == "receiver":
		return errors.New("there is no receiver: --receiver-listen is off")
	case fail == nil:
		return fmt.Errorf("unknown part %q: use token, graphql, log, receiver or off", f.Part)
	case f.Status != 0 && (f.Status < 200 || f.Status > 599) || f.Seconds < 0:
		return fmt.Errorf("status %d for %g seconds is not possible: use a status from 200 to 599, "+
			"and a time that is not negative", f.Status, f.Seconds)
	}
	fault := Fault{Status: f.Status}
	if f.Seconds > 0 {
		// At most 31 years: a larger number could overflow a Duration, and end the failure at once.
		seconds := min(f.Seconds, 1e9)
		fault.Until = time.Now().Add(time.Duration(seconds * float64(time.Second)))
	}
	for _, a := range documented[f.Part] {
		if a.status == f.Status {
			fault.Body, fault.Header = string(a.body), a.header
		}
	}
	fail(fault)
	return nil
}
