package command

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin"
	"usher/internal/inbox/store"
	"usher/internal/settings"
	"usher/internal/text"
)

const inboxUsage = `Usage: usher inbox COMMAND

Shows and manages the webhooks that a running usher keeps.

  ls [--state S] [--tenant T] [--since WHEN] [--until WHEN] [--limit N] [--json]
                    list webhooks, the newest first, 1000 at most (--limit 0:
                    all): what each changed, and what the receiver answered last
  show ID [--json]  one webhook: its tries, what it changed, its payload
  redeliver ID...   send webhooks again. A webhook that waits for its next try
                    is tried now. If the tenant has a newer one, this needs
                    --force
  discard ID...     never send webhooks that wait, are parked or were refused;
                    they stay in the list as discarded
  accept ID...      take in webhooks that were refused, as they are. If the
                    tenant has a newer one, this needs --force
  pause             stop all deliveries until 'resume', also after a restart;
                    --tenant T or --receiver R stops only those
  resume            start them again, with the same flags as 'pause'
  forget TENANT     forget what the receiver has of a tenant, so that the
                    tenant's next webhook is delivered whatever it says; works
                    without an inbox, too
  erase TENANT      delete a tenant's webhooks and what it may use, and forget
                    it, too; asks first, unless --yes
  export            write the whole inbox as lines of JSON:
                    usher inbox export > FILE
  import FILE       read an export into an empty inbox, or bare webhooks, one on
                    a line, into any (- for standard input). If a line is faulty
                    nothing is imported, unless --skip-faulty
  actions [--json]  who did what, the last first; kept for 90 days

redeliver and discard also take --state, --tenant, --since and --until instead
of ids. They say how many webhooks that is and ask, unless --yes. redeliver then
sends only the latest of each tenant, unless --force (of those that wait:
tries the first of each tenant now, and the others follow).

The states:

  waiting     for its first or next try
  parked      the receiver did not take it, and usher does not try it again
  refused     usher did not take it in: its content is wrong
  delivered   the receiver took it
  superseded  a newer one of the same tenant took its place
  discarded   somebody decided that it is never sent
  kept        no receiver takes its platform; usher answers from it
  accepted    it was refused; somebody took it in, under a new id

A tenant is platform/tenant, or tenant alone; write a slash or percent sign
inside a code as %2F or %25. WHEN is a time (2026-01-31T08:00:00Z), a day
(2026-01-31), or how long ago (90m, 3d).

It calls the admin port of a running usher, and uses only the admin settings
(USHER_ADMIN_LISTEN, USHER_ADMIN_TOKEN). If a service manager started usher,
name its settings:

  usher --env-file /etc/usher/gate.env inbox ls
`

// inboxCommand is usher inbox.
func inboxCommand(ctx context.Context, p Process, args []string) int {
	o, err := parseInbox(args, time.Now())
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(p.Stdout, inboxUsage)
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(p.Stderr, "usher inbox: %s Run 'usher inbox -h' for help.\n", sentence(err))
		return exitUsage
	}
	api, err := newAdminAPI(&p)
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
	"accept": (*adminAPI).accept, "export": (*adminAPI).export, "import": (*adminAPI).imports, "actions": (*adminAPI).actions,
	"pause": (*adminAPI).pause, "resume": (*adminAPI).pause, "forget": (*adminAPI).forget, "erase": (*adminAPI).erase,
}

// errAlreadySaid says that something failed, and that the user knows.
var errAlreadySaid = errors.New("failed")

// pageSize is how many webhooks the list is asked for at once: up to so many come with what they changed.
const pageSize = 500

func (a *adminAPI) list(ctx context.Context, p Process, o *inboxOptions) error {
	var l admin.WebhookList
	for {
		query := o.filter()
		query.Set("inbox", "true")
		query.Set("limit", strconv.Itoa(pageSize))
		if left := int(o.limit) - len(l.Webhooks); o.limit > 0 && left < pageSize {
			query.Set("limit", strconv.Itoa(left))
		}
		if l.Next != "" {
			query.Set("before", l.Next)
		}
		var page admin.WebhookList
		if _, err := a.call(ctx, http.MethodGet, "/api/webhooks?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		page.Webhooks = append(l.Webhooks, page.Webhooks...)
		if l = page; l.Next == "" || o.limit > 0 && len(l.Webhooks) >= int(o.limit) {
			break
		}
	}
	if o.json {
		return json.NewEncoder(p.Stdout).Encode(l)
	}
	width := text.Width(p.Stdout)
	if err := printList(p.Stdout, l.Webhooks, time.Now(), width); err != nil {
		return err
	}
	if width > 0 {
		fmt.Fprintln(p.Stderr, summary(l.Webhooks))
	}
	if len(l.Webhooks) == 0 && len(l.Alike) > 0 {
		fmt.Fprintf(p.Stderr, "No tenant is called %s. Did you mean %s?\n", visible(o.tenant.String()), visible(strings.Join(l.Alike, " or ")))
	}
	p.sayPaused(l.Paused)
	if l.Next != "" {
		fmt.Fprintf(p.Stderr, "Only the newest %d are shown; --limit 0 shows all.\n", o.limit)
	}
	return nil
}

// sayPaused says what is not delivered for now.
func (p *Process) sayPaused(pauses []store.Pause) {
	for _, pause := range pauses {
		fmt.Fprintf(p.Stderr, "Paused since %s: %s. To resume: %s\n",
			moment(pause.Since, time.Now()), visible(pause.String()), visible(p.line("usher inbox resume"+pause.Flag())))
	}
}

func (a *adminAPI) show(ctx context.Context, p Process, o *inboxOptions) error {
	var d admin.WebhookDetail
	raw, err := a.call(ctx, http.MethodGet, "/api/webhooks/"+o.ids[0], nil, &d)
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
	ids          []string
	state        string
	tenant       tenantName // without a code: none is named
	receiver     string
	since, until time.Time
	limit        uint64
	json, force  bool
	yes          bool
	file         string // of import
	skip         bool
}

// filter has what narrows a list down, as the admin port's API wants it.
func (o *inboxOptions) filter() url.Values {
	query := make(url.Values)
	if o.tenant.Tenant != "" {
		query.Set("tenant", o.tenant.String())
	}
	if o.state != "" {
		query.Set("state", o.state)
	}
	for name, t := range map[string]time.Time{"since": o.since, "until": o.until} {
		if !t.IsZero() {
			query.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	return query
}

func parseInbox(args []string, now time.Time) (*inboxOptions, error) {
	const verbs = "ls, show, redeliver, discard, accept, pause, resume, forget, erase, export, import or actions"
	if len(args) == 0 {
		return nil, errors.New("say what to do: " + verbs)
	}
	o := &inboxOptions{verb: args[0]}
	if isHelp(o.verb) || o.verb == "help" {
		return nil, flag.ErrHelp
	}
	if inboxVerbs[o.verb] == nil {
		if meant := settings.Nearest(o.verb, slices.Sorted(maps.Keys(inboxVerbs))); meant != "" {
			return nil, fmt.Errorf("unknown command %q: did you mean %s?", o.verb, meant)
		}
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
			if !slices.Contains(store.States, store.State(s)) {
				return errors.New("write waiting, parked, refused, delivered, superseded, discarded, kept or accepted")
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
	if in("import") {
		flags.BoolVar(&o.skip, "skip-faulty", false, "")
	}
	if in("ls", "show", "actions") {
		flags.BoolVar(&o.json, "json", false, "")
	}
	if in("redeliver", "accept") {
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
	case "import":
		if len(words) != 1 {
			return errors.New("import takes one file, - for standard input")
		}
		o.file = words[0]
		return nil
	case "ls", "pause", "resume", "export", "actions":
		if len(words) > 0 {
			return fmt.Errorf("%s takes no argument %q, only flags", o.verb, words[0])
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
	case "accept":
		if len(words) == 0 {
			return errors.New("accept takes ids of refused webhooks, see 'usher inbox ls --state refused'")
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
		number := word
		if o.verb == "show" { // the page also shows what the inbox never had, as d12
			number = strings.TrimPrefix(word, "d")
		}
		if _, err := strconv.ParseUint(number, 10, 63); err != nil {
			return fmt.Errorf("invalid id %q: ids are numbers, see 'usher inbox ls'", word)
		}
		o.ids = append(o.ids, word)
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
	s = strings.TrimPrefix(s, "-")
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, -int(n)), nil
		}
	}
	if ago, err := time.ParseDuration(s); err == nil {
		return now.Add(-ago), nil
	}
	return time.Time{}, errors.New("write a time (2026-01-31T08:00:00Z), a day (2026-01-31), or how long ago (90m, 3d)")
}

// parseFlags parses flags wherever they stand, and returns the other words.
// Package flag stops at the first of these; after -- there are no more flags.
func parseFlags(flags *flag.FlagSet, args []string) (words []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, flagProblem(flags, err)
		}
		rest := flags.Args()
		parsed := len(args) - len(rest)
		if len(rest) == 0 || parsed > 0 && args[parsed-1] == "--" {
			return append(words, rest...), nil
		}
		words, args = append(words, rest[0]), rest[1:]
	}
}

// flagProblem says in our own words that there is no such flag, and which ones there are.
func flagProblem(flags *flag.FlagSet, err error) error {
	unknown, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: ")
	if !ok {
		return err
	}
	var names []string
	flags.VisitAll(func(f *flag.Flag) { names = append(names, "--"+f.Name) })
	unknown = "--" + strings.TrimLeft(unknown, "-")
	switch meant := settings.Nearest(unknown, names); {
	case unknown == "--outcome" && slices.Contains(names, "--state"):
		return fmt.Errorf("%s has no flag %s: use --state", flags.Name(), unknown)
	case meant != "":
		return fmt.Errorf("%s has no flag %s: did you mean %s?", flags.Name(), unknown, meant)
	case len(names) == 0:
		return fmt.Errorf("%s takes no flags, but got %s", flags.Name(), unknown)
	}
	return fmt.Errorf("%s has no flag %s: it has %s", flags.Name(), unknown, strings.Join(names, ", "))
}
