package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"usher/internal/admin"
)

const inboxUsage = `usher inbox asks a running usher, through its admin port, about the webhooks that it
keeps, and has it send one again.

  usher inbox ls [--state STATE] [--tenant TENANT] [--limit N] [--json]
                     what is there, the newest first, 1000 at most (0: all); a state
                     is waiting, delivered, parked or superseded
  usher inbox show ID [--json]
                     one of them: its tries, what it changed, its payload
  usher inbox redeliver [--force] ID...
                     send it again; what is not its tenant's latest needs --force
  usher inbox forget TENANT
                     drop what dedup remembers of a tenant, so that its next webhook
                     is delivered whatever it says; works without an inbox too

It finds the port by USHER_ADMIN_LISTEN, and sends USHER_ADMIN_TOKEN (or what is in
USHER_ADMIN_TOKEN_FILE) if that is set.
`

// inboxCommand is usher inbox.
func inboxCommand(ctx context.Context, p Process, args []string) int {
	o, err := parseInbox(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(p.Stdout, inboxUsage)
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(p.Stderr, "usher inbox: %v\n\n%s", err, inboxUsage)
		return exitUsage
	}
	api, err := newAdminAPI(p.Environ)
	if err != nil {
		return p.unasked(err)
	}
	switch o.verb {
	case "ls":
		err = api.list(ctx, p, o)
	case "show":
		err = api.show(ctx, p, o)
	case "redeliver":
		err = api.redeliver(ctx, p, o)
	case "forget":
		err = api.forget(ctx, p, o)
	}
	var refused *apiError
	switch {
	case errors.Is(err, errAlreadySaid):
		return exitFailed
	case errors.As(err, &refused) && refused.status == http.StatusBadRequest:
		_ = p.failed(err)
		return exitUsage
	case err != nil:
		return p.failed(err)
	}
	return exitOK
}

// errAlreadySaid says that something failed, and that the user knows.
var errAlreadySaid = errors.New("failed")

func (a *adminAPI) list(ctx context.Context, p Process, o *inboxOptions) error {
	query := url.Values{"limit": {strconv.FormatUint(uint64(o.limit), 10)}}
	if o.state != "" {
		query.Set("state", o.state)
	}
	if o.tenant != "" {
		query.Set("tenant", o.tenant)
	}
	var l admin.List
	raw, err := a.call(ctx, http.MethodGet, "/api/inbox?"+query.Encode(), nil, &l)
	if err != nil {
		return err
	}
	if o.json {
		_, err := p.Stdout.Write(raw)
		return err
	}
	terminal := isTerminal(p.Stdout)
	if err := printList(p.Stdout, l.Webhooks, time.Now(), terminal); err != nil {
		return err
	}
	if terminal {
		fmt.Fprintln(p.Stderr, summary(l.Webhooks))
	}
	if o.limit > 0 && len(l.Webhooks) >= int(o.limit) {
		fmt.Fprintf(p.Stderr, "the newest %d are shown; --limit 0 shows all\n", o.limit)
	}
	return nil
}

func (a *adminAPI) show(ctx context.Context, p Process, o *inboxOptions) error {
	var d admin.Detail
	raw, err := a.call(ctx, http.MethodGet, fmt.Sprintf("/api/inbox/%d", o.ids[0]), nil, &d)
	if err != nil {
		return err
	}
	if o.json {
		_, err := p.Stdout.Write(raw)
		return err
	}
	return printDetail(p.Stdout, &d, time.Now())
}

// redeliver says of each id what became of it, and goes on when one fails.
func (a *adminAPI) redeliver(ctx context.Context, p Process, o *inboxOptions) error {
	var failed error
	for _, id := range o.ids {
		_, err := a.call(ctx, http.MethodPost, fmt.Sprintf("/api/inbox/%d/redeliver?force=%t", id, o.force), nil, new(admin.Redelivered))
		if err == nil {
			fmt.Fprintf(p.Stdout, "%d waits to be sent again\n", id)
			continue
		}
		hint := ""
		var refused *apiError
		if errors.As(err, &refused) && refused.Latest != nil {
			hint = "; --force sends it all the same"
		}
		fmt.Fprintf(p.Stderr, "%d is not sent again: %v%s\n", id, err, hint)
		failed = errAlreadySaid
	}
	return failed
}

func (a *adminAPI) forget(ctx context.Context, p Process, o *inboxOptions) error {
	var f admin.Forgotten
	if _, err := a.call(ctx, http.MethodPost, "/api/forget", map[string]string{"tenant": o.tenant}, &f); err != nil {
		return err
	}
	lanes := "lanes"
	if f.Forgotten == 1 {
		lanes = "lane"
	}
	fmt.Fprintf(p.Stdout, "tenant %q: %d %s forgotten\n", o.tenant, f.Forgotten, lanes)
	return nil
}

// inboxOptions is what the arguments say.
type inboxOptions struct {
	verb          string
	state, tenant string
	limit         uint
	json, force   bool
	ids           []uint64
}

func parseInbox(args []string) (*inboxOptions, error) {
	if len(args) == 0 {
		return nil, errors.New("say what to do: ls, show, redeliver or forget")
	}
	o := &inboxOptions{verb: args[0]}
	flags := flag.NewFlagSet(o.verb, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says it all
	switch o.verb {
	case "ls":
		flags.StringVar(&o.state, "state", "", "")
		flags.StringVar(&o.tenant, "tenant", "", "")
		flags.UintVar(&o.limit, "limit", admin.DefaultLimit, "")
		flags.BoolVar(&o.json, "json", false, "")
	case "show":
		flags.BoolVar(&o.json, "json", false, "")
	case "redeliver":
		flags.BoolVar(&o.force, "force", false, "")
	case "forget":
	case "-h", "-help", "--help", "help":
		return nil, flag.ErrHelp
	default:
		return nil, fmt.Errorf("there is no %q: it is ls, show, redeliver or forget", o.verb)
	}
	words, err := parseFlags(flags, args[1:])
	if err != nil {
		return nil, err
	}
	switch {
	case o.verb == "ls" && len(words) > 0:
		return nil, fmt.Errorf("ls takes no %q; --tenant and --state narrow it down", words[0])
	case o.verb == "show" && len(words) != 1:
		return nil, errors.New("show takes one id, as ls has it")
	case o.verb == "redeliver" && len(words) == 0:
		return nil, errors.New("redeliver takes ids, as ls has them")
	case o.verb == "forget" && (len(words) != 1 || words[0] == ""):
		return nil, errors.New("forget takes one tenant")
	case o.verb == "forget":
		o.tenant = words[0]
		return o, nil
	}
	for _, word := range words {
		id, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no id: ls has them, and they are numbers", word)
		}
		o.ids = append(o.ids, id)
	}
	return o, nil
}

// parseFlags parses flags wherever they stand, and returns the other words.
// Package flag stops at the first of these; after -- there are no more flags.
func parseFlags(flags *flag.FlagSet, args []string) (words []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		rest := flags.Args()
		parsed := len(args) - len(rest)
		if len(rest) == 0 || parsed > 0 && args[parsed-1] == "--" {
			return append(words, rest...), nil
		}
		words, args = append(words, rest[0]), rest[1:]
	}
}
