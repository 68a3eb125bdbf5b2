package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"usher/internal/sandbox"
)

const sandboxUsage = `Usage: usher sandbox [--listen ADDR] [--receiver-listen ADDR]
                     [--webhooks-to URL]... [--every DURATION] [SECRETS]
       usher sandbox send TENANT [FEATURE[=QUANTITY]...] [--platform P]
                          [--times N] [--at URL]
       usher sandbox send --raw FILE [--times N] [--at URL]
       usher sandbox revoke [--at URL]
       usher sandbox fail token|graphql|receiver STATUS [--for 10s] [--at URL]
       usher sandbox fail off [--at URL]
       usher sandbox rehearse URL [--platform P] [SECRETS]

A billing service for your laptop or a CI job, in memory. It has a token
endpoint, a GraphQL API, webhooks, and a receiver of its own. Its API client is
demo, with the secret demo-secret. It prints what to set, and runs until you
press Ctrl-C.

  --listen ADDR           the billing service (default 127.0.0.1:9000)
  --receiver-listen ADDR  its receiver (default 127.0.0.1:9001); off for none
  --webhooks-to URL       where webhooks go: usher's gate, or your receiver
                          itself; several go to each (default: its receiver)
  --every 5s              send a change of one of its tenants every 5 s

The commands speak to a sandbox that runs, at --at URL (default
http://127.0.0.1:9000):

  send      send a webhook that lists exactly these features, and print the
            status and usher's decision. Exit code 0 only for 2xx. --raw FILE
            sends a file as it is (- for standard input)
  revoke    make every token that it issued invalid
  fail      let a part answer with a status, for a time or until 'fail off'

rehearse needs no sandbox. It plays against your receiver what the real world
will: copies, A, B, A, ten tenants at once, nulls, and more. Each needs a 2xx
within a second. Exit code 1 if one did not get it.

SECRETS prove who sends: --token T is sent as Authorization: Bearer, with
--hmac-secret S each webhook is signed in X-Signature, and with --hmac-scheme
standard in the Standard Webhooks headers.

  usher sandbox --webhooks-to http://127.0.0.1:3000/provisioning
  usher sandbox send acme users=25 sso
`

// sandboxOptions is what the arguments say.
type sandboxOptions struct {
	verb                   string
	args                   []string // that are no flags
	listen, receiverListen string
	webhooksTo             []string
	every, failFor         time.Duration
	token, secret, scheme  string
	at, platform, raw      string
	times                  uint64
}

var sandboxVerbs = map[string]func(*sandboxOptions, context.Context, Process) error{
	"": (*sandboxOptions).serve, "send": (*sandboxOptions).send, "revoke": (*sandboxOptions).revoke,
	"fail": (*sandboxOptions).fail, "rehearse": (*sandboxOptions).rehearse,
}

// errUsage is a slip in the arguments that shows only when a command looks at them.
type errUsage struct{ error }

// sandboxCommand is usher sandbox.
func sandboxCommand(ctx context.Context, p Process, args []string) int {
	o, err := parseSandbox(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(p.Stdout, sandboxUsage)
		return exitOK
	}
	if err == nil {
		err = sandboxVerbs[o.verb](o, ctx, p)
	} else {
		err = errUsage{err}
	}
	switch {
	case errors.As(err, new(errUsage)):
		fmt.Fprintf(p.Stderr, "usher sandbox: %s Run 'usher sandbox -h' for help.\n", sentence(err))
		return exitUsage
	case errors.Is(err, errAlreadySaid):
		return exitFailed
	}
	return p.ended(err)
}

func parseSandbox(args []string) (o *sandboxOptions, err error) {
	o = new(sandboxOptions)
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		o.verb, args = args[0], args[1:]
	}
	switch {
	case o.verb == "help":
		return nil, flag.ErrHelp
	case sandboxVerbs[o.verb] == nil:
		return nil, fmt.Errorf("unknown command %q: use send, revoke, fail or rehearse", o.verb)
	}
	if o.args, err = parseFlags(o.flags(), args); err != nil {
		return nil, err
	}
	if (o.verb == "" || o.verb == "revoke") && len(o.args) > 0 {
		return nil, fmt.Errorf("unexpected argument %q: this command takes only flags", o.args[0])
	}
	return o, nil
}

// flags are those that a command takes.
func (o *sandboxOptions) flags() *flag.FlagSet {
	f := flag.NewFlagSet(o.verb, flag.ContinueOnError)
	f.SetOutput(io.Discard) // the error says it all
	if o.verb == "" {
		f.StringVar(&o.listen, "listen", "127.0.0.1:9000", "")
		f.StringVar(&o.receiverListen, "receiver-listen", "127.0.0.1:9001", "")
		f.DurationVar(&o.every, "every", 0, "")
		f.Func("webhooks-to", "", func(s string) error { o.webhooksTo = append(o.webhooksTo, s); return checkURL(s) })
	}
	if o.verb == "" || o.verb == "rehearse" {
		f.StringVar(&o.token, "token", "", "")
		f.StringVar(&o.secret, "hmac-secret", "", "")
		f.StringVar(&o.scheme, "hmac-scheme", "body", "")
	} else {
		f.StringVar(&o.at, "at", "http://127.0.0.1:9000", "")
	}
	if o.verb == "send" || o.verb == "rehearse" {
		f.StringVar(&o.platform, "platform", "", "")
	}
	switch o.verb {
	case "send":
		f.StringVar(&o.raw, "raw", "", "")
		f.Uint64Var(&o.times, "times", 1, "")
	case "fail":
		f.DurationVar(&o.failFor, "for", 0, "")
	}
	return f
}

func checkURL(s string) error {
	if u, err := url.Parse(s); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("write an address such as http://127.0.0.1:8090/webhooks")
	}
	return nil
}

// prove gives a sender what it proves itself with.
func (o *sandboxOptions) prove(s *sandbox.Sender) (err error) {
	if o.scheme != "body" && o.scheme != "standard" {
		return errUsage{fmt.Errorf("--hmac-scheme %q: write body or standard", o.scheme)}
	}
	if o.token != "" {
		s.Header = http.Header{"Authorization": {"Bearer " + o.token}}
	}
	if o.secret != "" {
		if s.Sign, err = sandbox.Signer(o.secret, o.scheme == "standard"); err != nil {
			return errUsage{fmt.Errorf("--hmac-secret %w", err)}
		}
	} else if o.scheme == "standard" {
		return errUsage{errors.New("--hmac-scheme standard needs --hmac-secret")}
	}
	return nil
}

// serve runs a sandbox until a signal comes.
func (o *sandboxOptions) serve(ctx context.Context, p Process) error {
	if err := o.prove(new(sandbox.Sender)); err != nil { // before any port is open
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := sandbox.Open(sandbox.Config{Listen: o.listen, ReceiverListen: o.receiverListen, Log: log.New(p.Stderr, "", log.Ltime)})
	if err != nil {
		return err
	}
	defer s.Close()
	if len(o.webhooksTo) > 0 {
		s.Sender.URLs = o.webhooksTo
	}
	if err := o.prove(s.Sender); err != nil {
		return err
	}
	fmt.Fprint(p.Stdout, whatToSet(s))
	if o.every > 0 {
		s.Play(ctx, o.every)
	}
	<-ctx.Done()
	return nil
}

// whatToSet has lines for a shell to copy, or a file for it to read.
func whatToSet(s *sandbox.Sandbox) string {
	var b strings.Builder
	fmt.Fprintf(&b, "export USHER_BASE_URL=%s\n", s.URL)
	if !strings.HasPrefix(s.URL, "http://127.") && !strings.HasPrefix(s.URL, "http://[::1]:") {
		b.WriteString("export USHER_ALLOW_PLAIN_HTTP=true\n")
	}
	fmt.Fprintf(&b, "export USHER_CLIENT_ID=%s\nexport USHER_CLIENT_SECRET=%s\n", sandbox.ClientID, sandbox.ClientSecret)
	if s.Receiver != nil {
		fmt.Fprintf(&b, "export USHER_WEBHOOK_FORWARD_URL=%s\n", s.ReceiverURL)
	}
	at := ""
	if s.URL != "http://127.0.0.1:9000" {
		at = " --at " + s.URL
	}
	for _, to := range s.Sender.URLs {
		if u, err := url.Parse(to); err == nil {
			fmt.Fprintf(&b, "# Webhooks go to %s://%s\n", u.Scheme, u.Host) // the path may be a secret
		}
	}
	fmt.Fprintf(&b, "# Send a webhook: usher sandbox send acme users=25 sso%s\n", at)
	return b.String()
}

// send asks a running sandbox to send a webhook.
func (o *sandboxOptions) send(ctx context.Context, p Process) error {
	target, body, err := o.order(p)
	if err != nil {
		return err
	}
	all := true
	for range o.times {
		var sent sandbox.Sent
		if err := o.ask(ctx, target, body, &sent); err != nil {
			return err
		}
		for _, r := range sent.Replies {
			line := r.String()
			if len(sent.Replies) > 1 {
				line = r.To + ": " + line
			}
			fmt.Fprintln(p.Stdout, visible(line))
			if !r.OK() && r.Status != 0 && strings.TrimSpace(r.Answer) != "" {
				fmt.Fprintln(p.Stderr, visible(strings.TrimSpace(r.Answer)))
			}
			all = all && r.OK()
		}
	}
	if !all {
		return errAlreadySaid
	}
	return nil
}

// order is what /sandbox/send gets.
func (o *sandboxOptions) order(p Process) (target string, body []byte, err error) {
	switch {
	case o.raw != "" && (len(o.args) > 0 || o.platform != ""):
		return "", nil, errUsage{errors.New("--raw sends a file as it is: name no tenant, feature or platform")}
	case o.raw == "-":
		body, err = io.ReadAll(p.Stdin)
		return "/sandbox/send?raw", body, err
	case o.raw != "":
		body, err = os.ReadFile(o.raw)
		return "/sandbox/send?raw", body, err
	case len(o.args) == 0:
		return "", nil, errUsage{errors.New("send takes a tenant, and its features: send acme users=25 sso")}
	}
	state := sandbox.State{Tenant: o.args[0], Platform: o.platform, Features: make(map[string]*int)}
	for _, word := range o.args[1:] {
		code, quantity, limited := strings.Cut(word, "=")
		_, twice := state.Features[code]
		n, err := strconv.Atoi(quantity)
		if code == "" || twice || limited && err != nil {
			return "", nil, errUsage{fmt.Errorf("feature %q: write a code, or a code and a number such as users=25, and each code once", word)}
		}
		if state.Features[code] = nil; limited {
			state.Features[code] = &n
		}
	}
	body, err = json.Marshal(state)
	return "/sandbox/send", body, err
}

func (o *sandboxOptions) revoke(ctx context.Context, p Process) error {
	var answer sandbox.Revoked
	if err := o.ask(ctx, "/sandbox/revoke", nil, &answer); err != nil {
		return err
	}
	fmt.Fprintf(p.Stdout, "tokens revoked: %d\n", answer.Revoked)
	return nil
}

func (o *sandboxOptions) fail(ctx context.Context, _ Process) error {
	failure := sandbox.Failure{Part: "off"}
	if len(o.args) != 1 || o.args[0] != "off" {
		status, err := strconv.Atoi(strings.Join(o.args[min(1, len(o.args)):], " "))
		if err != nil {
			return errUsage{errors.New("fail takes a part and a status, or off: fail token 503")}
		}
		failure = sandbox.Failure{Part: o.args[0], Status: status, Seconds: o.failFor.Seconds()}
	}
	body, err := json.Marshal(failure)
	if err != nil {
		return err
	}
	return o.ask(ctx, "/sandbox/fail", body, &failure)
}

// ask gives an order to the running sandbox.
func (o *sandboxOptions) ask(ctx context.Context, target string, body []byte, result any) error {
	if err := checkURL(o.at); err != nil {
		return errUsage{fmt.Errorf("--at: %w", err)}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(o.at, "/")+target, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if request := new(url.Error); errors.As(err, &request) {
			err = request.Err // without the address, which the message has
		}
		return fmt.Errorf("cannot reach a sandbox at %s. Start one with 'usher sandbox', or say with --at where it is: %w", o.at, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var refused struct{ Error string }
	switch {
	case resp.StatusCode == http.StatusOK:
		return json.Unmarshal(raw, result)
	case json.Unmarshal(raw, &refused) == nil && refused.Error != "":
		return errors.New(visible(refused.Error))
	}
	return fmt.Errorf("%s answered %d: is that a sandbox?", o.at, resp.StatusCode)
}

// rehearse plays against a receiver what the real world will.
func (o *sandboxOptions) rehearse(ctx context.Context, p Process) error {
	if len(o.args) != 1 || checkURL(o.args[0]) != nil {
		return errUsage{errors.New("rehearse takes the address of your receiver, such as http://127.0.0.1:3000/provisioning")}
	}
	sender := sandbox.NewSender(o.args[0], 0)
	if err := o.prove(sender); err != nil {
		return err
	}
	held, played, unknown := 0, 0, 0
	sandbox.Rehearse(ctx, sender, o.platform, func(h sandbox.Held) {
		if strings.HasPrefix(h.How, "401") || strings.HasPrefix(h.How, "403") {
			unknown++
		}
		word := "FAILED"
		if played++; h.OK {
			word = "held"
			held++
		}
		fmt.Fprintf(p.Stdout, "%-6s  %-40s  %s\n", word, h.What, visible(h.How))
	})
	fmt.Fprintf(p.Stdout, "\n%d of %d held.\n", held, played)
	if held == 0 && unknown == played {
		fmt.Fprintln(p.Stderr, "Your receiver rejected every webhook with 401 or 403: set --token, or --hmac-secret and --hmac-scheme. See 'usher sandbox -h'.")
	}
	if held < played || ctx.Err() != nil {
		return errAlreadySaid
	}
	return nil
}
