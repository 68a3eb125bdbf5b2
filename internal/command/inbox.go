package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin"
	"usher/internal/inbox"
	"usher/internal/terminal"
)

const inboxUsage = `Usage: usher inbox COMMAND

Shows and manages the webhooks that a running usher keeps, through its admin port.

  ls [--state S] [--tenant T] [--since WHEN] [--until WHEN] [--limit N] [--json]
                    list webhooks, the newest first, 1000 at most (--limit 0: all)
  show ID [--json]  one webhook: its tries, what it changed, its payload
  redeliver ID...   send again; a webhook that waits for its next try is tried now.
                    A webhook that is not its tenant's latest needs --force
  discard ID...     set aside webhooks that wait or are parked: they are never sent,
                    and stay in the list as discarded
  pause             stop deliveries until 'resume', also after a restart:
  resume            all of them, or with --tenant T or --receiver R only some
  forget TENANT     drop what dedup remembers of a tenant, so that its next webhook is
                    delivered whatever it says; works without an inbox, too
  erase TENANT      delete a tenant's webhooks, its entitlements, and what dedup
                    remembers of it; asks first, unless --yes

redeliver and discard also take --state, --tenant, --since and --until instead of ids.
They say how many webhooks that is and ask, unless --yes. redeliver then sends only the
latest of each tenant, unless --force.

A state is waiting, parked, delivered, superseded, discarded or kept. A tenant is
platform/tenant, or tenant alone, with a slash or percent sign within a code as %2F or
%25. WHEN is a time (2026-01-31T08:00:00Z), a day (2026-01-31), or how long ago (90m).

The port is that of USHER_ADMIN_LISTEN. USHER_ADMIN_TOKEN (or USHER_ADMIN_TOKEN_FILE) is
sent if it is set.
`

// inboxCommand is usher inbox.
func inboxCommand(ctx context.Context, p Process, args []string) int {
	o, err := parseInbox(args, time.Now())
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(p.Stdout, inboxUsage)
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(p.Stderr, "usher inbox: %v. Run 'usher inbox -h' for help.\n", err)
		return exitUsage
	}
	api, err := newAdminAPI(p.Environ)
	if err != nil {
		return p.failed(err)
	}
	err = inboxVerbs[o.verb](api, ctx, p, o)
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

var inboxVerbs = map[string]func(*adminAPI, context.Context, Process, *inboxOptions) error{
	"ls": (*adminAPI).list, "show": (*adminAPI).show, "redeliver": (*adminAPI).redeliver, "discard": (*adminAPI).discard,
	"pause": (*adminAPI).pause, "resume": (*adminAPI).pause, "forget": (*adminAPI).forget, "erase": (*adminAPI).erase,
}

// errAlreadySaid says that something failed, and that the user knows.
var errAlreadySaid = errors.New("failed")

func (a *adminAPI) list(ctx context.Context, p Process, o *inboxOptions) error {
	query := o.filter()
	query.Set("limit", strconv.FormatUint(o.limit, 10))
	query.Set("inbox", "true")
	var l admin.WebhookList
	raw, err := a.call(ctx, http.MethodGet, "/api/webhooks?"+query.Encode(), nil, &l)
	if err != nil {
		return err
	}
	if o.json {
		_, err := p.Stdout.Write(raw)
		return err
	}
	onScreen := terminal.Is(p.Stdout)
	if err := printList(p.Stdout, l.Webhooks, time.Now(), onScreen); err != nil {
		return err
	}
	if onScreen {
		fmt.Fprintln(p.Stderr, summary(l.Webhooks))
	}
	p.sayPaused(l.Paused)
	if l.Next != "" {
		fmt.Fprintf(p.Stderr, "Only the newest %d are shown; --limit 0 shows all.\n", o.limit)
	}
	return nil
}

// sayPaused says what is not delivered for now.
func (p *Process) sayPaused(pauses []inbox.Pause) {
	for _, pause := range pauses {
		fmt.Fprintf(p.Stderr, "Paused since %s: %s. 'usher inbox resume%s' goes on.\n",
			pause.Since.UTC().Format(time.RFC3339), visible(pause.String()), visible(pauseFlag(pause)))
	}
}

func (a *adminAPI) show(ctx context.Context, p Process, o *inboxOptions) error {
	var d admin.WebhookDetail
	raw, err := a.call(ctx, http.MethodGet, fmt.Sprintf("/api/webhooks/%d", o.ids[0]), nil, &d)
	if err != nil {
		return err
	}
	if o.json {
		_, err := p.Stdout.Write(raw)
		return err
	}
	return printDetail(p.Stdout, &d, time.Now())
}

// inboxOptions is what the arguments say.
type inboxOptions struct {
	verb         string
	ids          []uint64
	state        string
	tenant       tenantName // without a code: none is named
	receiver     string
	since, until time.Time
	limit        uint64
	json, force  bool
	yes          bool
}

// filter has what narrows a list down, as the admin port's API wants it.
func (o *inboxOptions) filter() url.Values {
	query := make(url.Values)
	if o.tenant.Tenant != "" {
		query.Set("tenant", o.tenant.String())
	}
	if o.state != "" {
		query.Set("outcome", o.state)
	}
	for name, t := range map[string]time.Time{"since": o.since, "until": o.until} {
		if !t.IsZero() {
			query.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	return query
}

func parseInbox(args []string, now time.Time) (*inboxOptions, error) {
	const verbs = "ls, show, redeliver, discard, pause, resume, forget or erase"
	if len(args) == 0 {
		return nil, errors.New("say what to do: " + verbs)
	}
	o := &inboxOptions{verb: args[0]}
	if isHelp(o.verb) || o.verb == "help" {
		return nil, flag.ErrHelp
	}
	if inboxVerbs[o.verb] == nil {
		return nil, fmt.Errorf("unknown command %q: use %s", o.verb, verbs)
	}
	words, err := parseFlags(o.flags(now), args[1:])
	if err != nil {
		return nil, err
	}
	return o, o.take(words)
}

// flags are those that a command takes.
func (o *inboxOptions) flags(now time.Time) *flag.FlagSet {
	flags := flag.NewFlagSet(o.verb, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says it all
	in := func(verbs ...string) bool { return slices.Contains(verbs, o.verb) }
	if in("ls", "redeliver", "discard") {
		flags.Func("state", "", func(s string) error {
			o.state = s
			if !slices.Contains(inbox.States, inbox.State(s)) {
				return errors.New("write waiting, parked, delivered, superseded, discarded or kept")
			}
			return nil
		})
		flags.Func("since", "", func(s string) (err error) { o.since, err = parseWhen(s, now); return err })
		flags.Func("until", "", func(s string) (err error) { o.until, err = parseWhen(s, now); return err })
	}
	if in("ls", "redeliver", "discard", "pause", "resume") {
		flags.Func("tenant", "", func(s string) (err error) { o.tenant, err = parseTenant(s); return err })
	}
	if in("pause", "resume") {
		flags.Func("receiver", "", func(s string) error {
			if o.receiver = s; s == "" { // a variable that a script did not fill in is not everybody
				return errors.New("write its name")
			}
			return nil
		})
	}
	if in("ls") {
		o.limit = 1000
		flags.Func("limit", "", func(s string) (err error) {
			if o.limit, err = strconv.ParseUint(s, 10, 31); err != nil {
				return errors.New("write a number, 0 for all")
			}
			return nil
		})
	}
	if in("ls", "show") {
		flags.BoolVar(&o.json, "json", false, "")
	}
	if in("redeliver") {
		flags.BoolVar(&o.force, "force", false, "")
	}
	if in("redeliver", "discard", "erase") {
		flags.BoolVar(&o.yes, "yes", false, "")
	}
	return flags
}

// take takes the words that are no flags.
func (o *inboxOptions) take(words []string) (err error) {
	filtered := len(o.filter()) > 0
	switch o.verb {
	case "ls", "pause", "resume":
		if len(words) > 0 {
			return fmt.Errorf("%s takes no %q, only flags such as --tenant", o.verb, words[0])
		}
		return nil
	case "forget", "erase":
		if len(words) != 1 {
			return fmt.Errorf("%s takes one tenant", o.verb)
		}
		o.tenant, err = parseTenant(words[0])
		return err
	case "show":
		if len(words) != 1 {
			return errors.New("show takes one id")
		}
	default:
		if len(words) == 0 && !filtered {
			return fmt.Errorf("%s takes ids, or --state, --tenant, --since or --until", o.verb)
		}
		if len(words) > 0 && filtered {
			return fmt.Errorf("%s takes either ids or filters", o.verb)
		}
	}
	for _, word := range words {
		id, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return fmt.Errorf("invalid id %q: ids are numbers, see 'usher inbox ls'", word)
		}
		o.ids = append(o.ids, id)
	}
	return nil
}

// parseWhen reads a time, a day, or how long ago.
func parseWhen(s string, now time.Time) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	if ago, err := time.ParseDuration(strings.TrimPrefix(s, "-")); err == nil {
		return now.Add(-ago), nil
	}
	return time.Time{}, errors.New("write a time (2026-01-31T08:00:00Z), a day (2026-01-31), or how long ago (90m)")
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
