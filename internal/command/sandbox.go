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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"usher/internal/sandbox"
	"usher/internal/text"
)

const sandboxUsage = `Usage: usher sandbox [--listen ADDR] [--receiver-listen ADDR]
                     [--webhooks-to URL]... [--every DURATION]
                     [--signing-key KEY] [--token TOKEN]
       usher sandbox send TENANT [FEATURE[=QUANTITY]...] [--platform P]
                          [--times N] [--lost] [--at URL]
       usher sandbox send --raw FILE [--times N] [--at URL]
       usher sandbox checkout TENANT [FEATURE[=QUANTITY]...] [--at URL]
       usher sandbox revoke [--at URL]
       usher sandbox fail token|graphql|log|receiver STATUS [--for 10s]
                          [--at URL]
       usher sandbox fail off [--at URL]
       usher sandbox rehearse URL [--platform P] [--signing-key KEY]
                          [--token TOKEN]

The billing service on your laptop or in a CI job, in memory. It has a token
endpoint, a part of the service's GraphQL API, webhooks with a webhook log, and
a receiver of its own. Its API client is demo, with the secret demo-secret. It
prints what to set, and runs until you press Ctrl-C. As the service does, it
waits 5 s for the answer to a webhook, tries twice, and then drops it.

  --listen ADDR           the billing service (default 127.0.0.1:9000)
  --receiver-listen ADDR  its receiver (default 127.0.0.1:9001); off for none
  --webhooks-to URL       where webhooks go: usher's gate, or your receiver
                          itself; several go to each (default: its receiver)
  --every 5s              send a change of one of its tenants every 5 s
  --signing-key KEY       sign each webhook in X-Bunny-Signature. With a key
                          that begins with whsec_, sign as usher signs for your
                          receiver: with the Standard Webhooks headers
  --token TOKEN           send it as Authorization: Bearer

These commands call a running sandbox, at --at URL (default
http://127.0.0.1:9000):

  send      send a webhook that lists exactly these features, and print the
            status and usher's decision. Exit code 0 only for 2xx. --raw FILE
            sends a file as it is (- for standard input). --lost changes the
            tenant, but never sends the webhook: only the webhook log has it.
            The tenant provisioning-test is what the test button sends
  checkout  ask whether the tenant may buy these features, and print what the
            buyer reads. Exit code 0 if the purchase is allowed
  revoke    revoke every token that it has issued
  fail      make a part answer with a status, for a time or until 'fail off'.
            log is the part of GraphQL that reads the webhook log

rehearse needs no sandbox. It sends your receiver what it has to expect in
production: copies, a change and back (A, B, A), ten tenants at once, nulls, a
checkout and more. The receiver has to answer each with 2xx within a second,
and a forged one with 401 if you give it the signing key. If it does not, the
exit code is 1.

  usher sandbox --webhooks-to http://127.0.0.1:3000/provisioning
  usher sandbox send acme users=25 sso
`

// sandboxCall is one run of 'usher sandbox': its arguments.
type sandboxCall struct {
	*Process
	config  sandbox.Config
	sender  *sandbox.Sender
	state   sandbox.SendCommand // what to send
	failure sandbox.Failure
	every   time.Duration // between webhooks; 0 for none
	failFor time.Duration // 0: until the next failure

	at, raw string
	times   uint64
}

// sandboxCommand is 'usher sandbox'.
func sandboxCommand(ctx context.Context, p *Process, args []string) error {
	const secrets = " token signing-key"
	s := &sandboxCall{Process: p, sender: sandbox.NewSender(uint64(time.Now().UnixNano()))}
	sub, err := parseSubcommand([]subcommand{
		{"", "listen receiver-listen every webhooks-to" + secrets,
			"",
			s.setConfig, s.serve},
		{"send", "at platform raw times lost",
			"a tenant, and its features: send acme users=25 sso",
			s.setState, s.send},
		{"checkout", "at",
			"a tenant, and what it wants to buy: checkout acme users=25 sso",
			s.setState, s.checkout},
		{"revoke", "at",
			"",
			nil, s.revoke},
		{"fail", "at for",
			"a part and a status, or off: fail token 503",
			s.setFailure, s.fail},
		{"rehearse", "platform" + secrets,
			"the address of your receiver, such as http://127.0.0.1:3000/provisioning",
			s.setReceiver, s.rehearse},
	}, s.flags(), args)
	if err != nil {
		return err
	}
	return sub.run(ctx)
}

func (s *sandboxCall) flags() *flag.FlagSet {
	f := new(flag.FlagSet)
	f.StringVar(&s.config.Listen, "listen", "127.0.0.1:9000", "")
	f.StringVar(&s.config.ReceiverListen, "receiver-listen", "127.0.0.1:9001", "")
	f.DurationVar(&s.every, "every", 0, "")
	f.Func("webhooks-to", "", func(to string) error { s.sender.URLs = append(s.sender.URLs, to); return checkURL(to) })
	f.StringVar(&s.sender.Token, "token", "", "")
	f.StringVar(&s.sender.SigningKey, "signing-key", "", "")
	f.StringVar(&s.at, "at", "http://127.0.0.1:9000", "")
	f.StringVar(&s.state.Platform, "platform", "", "")
	f.StringVar(&s.raw, "raw", "", "")
	f.Uint64Var(&s.times, "times", 1, "")
	f.BoolVar(&s.state.Lost, "lost", false, "")
	f.DurationVar(&s.failFor, "for", 0, "")
	return f
}

func checkURL(s string) error {
	if u, err := url.Parse(s); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("write an address such as http://127.0.0.1:8090/webhooks")
	}
	return nil
}

func (s *sandboxCall) setConfig([]string) error {
	if s.every > 0 && s.config.ReceiverListen == "off" && len(s.sender.URLs) == 0 {
		return errors.New("--every needs --webhooks-to if there is no receiver")
	}
	return s.checkKey()
}

func (s *sandboxCall) checkKey() error {
	if err := sandbox.CheckSigningKey(s.sender.SigningKey); err != nil {
		return fmt.Errorf("--signing-key %w", err)
	}
	return nil
}

// serve runs a sandbox until a signal stops it.
func (s *sandboxCall) serve(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	s.config.Sender, s.config.Log = s.sender, log.New(s.Stderr, "", log.Ltime)
	box, err := sandbox.Open(s.config)
	if err != nil {
		return err // which begins with the option
	}
	defer box.Close()
	fmt.Fprint(s.Stdout, exportLines(box, s.program()))
	if s.every > 0 {
		box.Play(ctx, s.every)
	}
	<-ctx.Done()
	return nil
}

// exportLines returns the settings for an usher that uses the sandbox, as lines that a shell can read. The
// last one calls this program.
func exportLines(s *sandbox.Sandbox, program string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "export USHER_BASE_URL=%s\n", text.Quote(s.URL))
	if !strings.HasPrefix(s.URL, "http://127.") && !strings.HasPrefix(s.URL, "http://[::1]:") {
		b.WriteString("export USHER_ALLOW_PLAIN_HTTP=true\n")
	}
	fmt.Fprintf(&b, "export USHER_CLIENT_ID=%s\nexport USHER_CLIENT_SECRET=%s\n",
		sandbox.ClientID, sandbox.ClientSecret)
	forward := s.ReceiverURL
	to := s.Sender.URLs
	direct := len(to) > 0 && to[0] != s.ReceiverURL && !slices.ContainsFunc(to, mayBeGate)
	if direct {
		forward = to[0]
	}
	if forward != "" {
		fmt.Fprintf(&b, "export USHER_WEBHOOK_FORWARD_URL=%s\n", text.Quote(forward))
	}
	if key := s.Sender.SigningKey; key != "" && !strings.HasPrefix(key, "whsec_") { // that one is for a receiver
		fmt.Fprintf(&b, "export USHER_WEBHOOK_SIGNING_KEY=%s\n", text.Quote(key))
	}
	if s.Sender.Token != "" {
		fmt.Fprintf(&b, "export USHER_WEBHOOK_TOKEN=%s\n", text.Quote(s.Sender.Token))
	}
	if direct {
		b.WriteString("# Webhooks go to that receiver itself. To put usher between them, start the sandbox\n" +
			"# with --webhooks-to http://127.0.0.1:8090/webhooks\n")
	}
	at := ""
	if s.URL != "http://127.0.0.1:9000" {
		at = " --at " + text.Quote(s.URL)
	}
	fmt.Fprintf(&b, "# Send a webhook: %s sandbox send acme users=25 sso%s\n", program, at)
	return b.String()
}

// mayBeGate reports whether an address seems to be that of an usher: it has the gate's usual path or port. The settings
// of an usher must not make it forward webhooks to itself.
func mayBeGate(address string) bool {
	u, err := url.Parse(address)
	return err != nil || u.Port() == "8090" || u.Path == "/webhooks" || strings.HasPrefix(u.Path, "/webhooks/")
}

// setState sets the tenant and its features.
func (s *sandboxCall) setState(args []string) error {
	switch {
	case s.times == 0:
		return errors.New("--times: write a number above 0")
	case s.raw != "" && (len(args) > 0 || s.state.Platform != "" || s.state.Lost):
		return errors.New("--raw sends a file as it is: name no tenant, feature or platform, and leave out --lost")
	case s.raw != "":
		return nil
	case len(args) == 0:
		return errWrongArgs
	}
	s.state.Tenant, s.state.Features = args[0], make(map[string]*int)
	for _, arg := range args[1:] {
		code, quantity, limited := strings.Cut(arg, "=")
		_, twice := s.state.Features[code]
		n, err := strconv.Atoi(quantity)
		if code == "" || twice || limited && err != nil {
			return fmt.Errorf("feature %q: write a code, or a code and a number such as "+
				"users=25, and each code once", arg)
		}
		if s.state.Features[code] = nil; limited {
			s.state.Features[code] = &n
		}
	}
	return nil
}

// send asks a running sandbox to send a webhook.
func (s *sandboxCall) send(ctx context.Context) error {
	var (
		target      = "/sandbox/send?raw"
		content     any
		err, failed error
	)
	switch s.raw {
	case "":
		target, content = "/sandbox/send", s.state
	case "-":
		content, err = io.ReadAll(s.Stdin)
	default:
		content, err = os.ReadFile(s.raw)
	}
	if err != nil {
		return err
	}
	for range s.times {
		var sent sandbox.SendResult
		if err := s.post(ctx, target, content, &sent); err != nil {
			return err
		}
		if sent.Lost {
			fmt.Fprintln(s.Stdout, "changed, and its webhook was lost: nothing was sent")
		}
		for _, r := range sent.Replies {
			line := r.String()
			if len(sent.Replies) > 1 {
				line = r.To + ": " + line
			}
			fmt.Fprintln(s.Stdout, text.Visible(line))
			if r.OK() {
				continue
			}
			failed = exitCode(exitFailed)
			if answer := strings.TrimSpace(r.Answer); r.Status != 0 && answer != "" {
				fmt.Fprintln(s.Stderr, text.Visible(answer))
			}
		}
	}
	return failed
}

// checkout asks a running sandbox to ask whether a purchase may be made.
func (s *sandboxCall) checkout(ctx context.Context) error {
	var asked sandbox.CheckoutResult
	if err := s.post(ctx, "/sandbox/checkout", s.state.State, &asked); err != nil {
		return err
	}
	answer := strings.TrimSpace(fmt.Sprint(asked.Status, " ", asked.Decision))
	switch {
	case asked.Allowed:
		fmt.Fprintf(s.Stdout, "%s: the purchase is allowed\n", answer)
		return nil
	case asked.Status == 0:
		fmt.Fprintln(s.Stdout, "no answer: the purchase is refused, and the buyer reads a general error of the service")
	case len(asked.Reads) == 0:
		fmt.Fprintf(s.Stdout, "%s: the purchase is refused. The answer is not a JSON array of sentences, "+
			"so the buyer reads a general error of the service\n", answer)
	default:
		fmt.Fprintf(s.Stdout, "%s: the purchase is refused. The buyer reads:\n", answer)
		for _, sentence := range asked.Reads {
			fmt.Fprintln(s.Stdout, "  "+text.Visible(sentence))
		}
	}
	return exitCode(exitFailed)
}

func (s *sandboxCall) revoke(ctx context.Context) error {
	var answer sandbox.Revoked
	if err := s.post(ctx, "/sandbox/revoke", []byte{}, &answer); err != nil {
		return err
	}
	fmt.Fprintf(s.Stdout, "tokens revoked: %d\n", answer.Revoked)
	return nil
}

func (s *sandboxCall) setFailure(args []string) error {
	if len(args) == 1 && args[0] == "off" {
		args = append(args, "0")
	}
	if len(args) != 2 {
		return errWrongArgs
	}
	status, err := strconv.Atoi(args[1])
	if err != nil {
		return errWrongArgs
	}
	s.failure = sandbox.Failure{Part: args[0], Status: status, Seconds: s.failFor.Seconds()}
	return nil
}

func (s *sandboxCall) fail(ctx context.Context) error {
	return s.post(ctx, "/sandbox/fail", s.failure, &s.failure)
}

// post calls the running sandbox and decodes its answer into result. It sends a []byte as it is, and
// anything else as JSON.
func (s *sandboxCall) post(ctx context.Context, target string, content, result any) (err error) {
	if err := checkURL(s.at); err != nil {
		return usageErrorf("--at: write the address of a sandbox, such as http://127.0.0.1:9000")
	}
	body, raw := content.([]byte)
	if !raw {
		if body, err = json.Marshal(content); err != nil {
			return err
		}
	}
	address := strings.TrimRight(s.at, "/") + target
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if request, ok := errors.AsType[*url.Error](err); ok {
			err = request.Err // without the URL: the message below has it
		}
		return fmt.Errorf("cannot reach a sandbox at %s. Start one with 'usher sandbox', "+
			"or say with --at where it is: %w", s.at, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var refused struct{ Error string }
	json.Unmarshal(answer, &refused) // else it is not a sandbox
	switch {
	case resp.StatusCode == http.StatusOK:
		return json.Unmarshal(answer, result)
	case resp.StatusCode == http.StatusBadRequest && refused.Error != "":
		return usageError{errors.New(text.Visible(refused.Error))}
	case resp.StatusCode == http.StatusConflict && refused.Error != "":
		return errors.New(text.Visible(refused.Error))
	}
	return fmt.Errorf("%s answered %d: is that a sandbox?", s.at, resp.StatusCode)
}

func (s *sandboxCall) setReceiver(args []string) error {
	if len(args) != 1 || checkURL(args[0]) != nil {
		return errWrongArgs
	}
	s.sender.URLs = args
	return s.checkKey()
}

// rehearse sends a receiver what it has to expect in production, and prints how it did.
func (s *sandboxCall) rehearse(ctx context.Context) error {
	held, played, skipped := 0, 0, 0
	err := sandbox.Rehearse(ctx, s.sender, s.state.Platform, func(r sandbox.ScenarioResult) {
		result := "FAILED"
		switch played++; {
		case r.OK:
			result = "held"
			held++
		case r.Skipped:
			result = "-"
			skipped++
		}
		fmt.Fprintf(s.Stdout, "%-6s  %-40s  %s\n", result, r.Scenario, text.Visible(r.Answer))
		if r.Skipped {
			fmt.Fprintf(s.Stdout, "        to try a refusal, let it refuse the tenant %s\n", sandbox.RefusedTenant)
		}
		for _, mistake := range r.Mistakes {
			fmt.Fprintf(s.Stdout, "        usual mistake: %s\n", mistake)
		}
	})
	if refused, ok := errors.AsType[*sandbox.RefusedError](err); ok {
		return s.refused(refused)
	}
	fmt.Fprintf(s.Stdout, "\n%d of %d held.\n", held, played-skipped)
	if held < played-skipped || ctx.Err() != nil {
		return exitCode(exitFailed)
	}
	return nil
}

// refused says why a receiver takes no webhook at all.
func (s *sandboxCall) refused(r *sandbox.RefusedError) error {
	if r.Status == 0 {
		return fmt.Errorf("cannot reach the receiver at %s. Is it running? %s", r.To, text.Visible(r.Answer))
	}
	return fmt.Errorf("the receiver answered %d to the first webhook, so no scenario was tried: "+
		"check --token and --signing-key, or give them if your receiver checks who sends", r.Status)
}
