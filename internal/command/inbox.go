package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin"
	"usher/internal/inbox"
	"usher/internal/lane/state"
	"usher/internal/text"
	"usher/internal/view"
)

var inboxUsage = `Usage: usher inbox COMMAND

Shows and manages the webhooks that a running usher keeps.

  ls [--state S] [--tenant T] [--limit N]
                    list webhooks, the newest first, 1000 at most (--limit 0:
                    all): what each changed, and what the receiver answered last
  tenants [--trouble]
                    each tenant: when its last webhook came, and how it stands;
                    --trouble: only those that are not all right
  show ID           one webhook: its tries, what it changed, its payload
` + actHelp() + `  actions [--limit N]
                    who did what, the newest first, 1000 at most (--limit 0:
                    all); kept for 90 days

redeliver and discard also take --state, --tenant, --platform, --since and
--until instead of ids. They say how many webhooks match and ask, unless --yes.
redeliver then sends only the latest webhook of each tenant, unless --force. If
webhooks of a tenant wait, it tries the first one now, and the others follow.

With --json ls, tenants and actions print each in a line of JSON; show prints
one object.

The states:

` + stateHelp() + `
A tenant is platform/tenant, or tenant alone; write a slash or percent sign
inside a code as %2F or %25. WHEN is a time (2026-01-31T08:00), a day
(2026-01-31), or how long ago (90m, 3d). Without a zone (08:00Z) it is local.
` + adminPortHelp + `inbox ls
`

// actHelp is the part of the help about what people can do.
func actHelp() (help string) {
	for _, a := range admin.Acts {
		if a.Help == "" {
			continue
		}
		name := fmt.Sprintf("  %-16s  ", strings.TrimSpace(a.Name+" "+a.Args()))
		help += name + text.Wrap(strings.Repeat(" ", len(name)), a.Help)[len(name):] + "\n"
	}
	return help
}

// stateHelp is the part of the help that lists the states.
func stateHelp() (help string) {
	for _, s := range state.All {
		name := fmt.Sprintf("  %-12s", s.State)
		help += name + text.Wrap(strings.Repeat(" ", len(name)), s.Means)[len(name):] + "\n"
	}
	return help
}

// inboxCall is one run of 'usher inbox': its arguments, and the running usher that it calls.
type inboxCall struct {
	*adminAPI
	subcommand string
	ids        []string
	file       string     // of an act that answers with one
	filter     url.Values // state, tenant, since and until, as parameters of the API
	limit      uint
	json, yes  bool
	trouble    bool
	params     map[string]string // of an act, as the API expects them
	tenant     string            // the one that an act is about, as ls prints it
}

// inboxCommand is 'usher inbox'.
func inboxCommand(ctx context.Context, p *Process, args []string) error {
	i := &inboxCall{filter: make(url.Values)}
	sub, err := i.parse(args, time.Now())
	if err != nil {
		return err
	}
	if i.adminAPI, err = newAdminAPI(p); err != nil {
		return err
	}
	return sub.run(ctx)
}

func (i *inboxCall) parse(args []string, now time.Time) (*subcommand, error) {
	const filters = "state tenant platform since until "
	if len(args) > 0 {
		i.subcommand = args[0]
	}
	all := []subcommand{
		{"ls", "state tenant limit json", "", nil, i.list},
		{"tenants", "trouble json", "", nil, i.tenants},
		{"show", "json", "one id", i.setIDs, i.show},
	}
	for _, a := range admin.Acts {
		sub := subcommand{
			name:  a.Name,
			flags: strings.Join(a.Flags(), " "),
			run:   func(ctx context.Context) error { return i.act(ctx, a) },
		}
		switch {
		case a.Help == "": // it has a command of its own
			continue
		case a.ByFilter:
			sub.flags, sub.argsHelp = filters+sub.flags, "ids, or --state, --tenant, --platform, --since or --until"
			sub.setArgs = func(args []string) error { return i.setIDsOrFilters(a, args) }
		case a.On == admin.OnWebhooks:
			sub.argsHelp, sub.setArgs = "ids, see 'usher inbox ls'", i.setIDs
		case a.On == admin.OnTenant:
			sub.argsHelp, sub.setArgs = "one tenant", oneArg(i.setTenant)
		case a.Download:
			sub.argsHelp = "one new file"
			sub.setArgs = oneArg(func(file string) error { i.file = file; return nil })
		}
		all = append(all, sub)
	}
	return parseSubcommand(append(all, subcommand{"actions", "limit json", "", nil, i.actions}), i.flags(now), args)
}

func (i *inboxCall) flags(now time.Time) *flag.FlagSet {
	f := new(flag.FlagSet)
	i.params = make(map[string]string)
	f.BoolVar(&i.json, "json", false, "")
	f.BoolVar(&i.yes, "yes", false, "")
	f.BoolVar(&i.trouble, "trouble", false, "")
	f.UintVar(&i.limit, "limit", 1000, "")
	once := func(name string, take func(string) error) { // the first of two would be passed over
		if f.Lookup(name) != nil { // the act has one of its own
			return
		}
		given := false
		f.Func(name, "", func(s string) error {
			if given {
				return errors.New("give it once")
			}
			given = true
			return take(s)
		})
	}
	for _, a := range admin.Acts {
		for _, p := range a.Params {
			switch take := func(value string) error { return i.setParam(&p, value) }; {
			case a.Name != i.subcommand:
			case p.Is == admin.YesOrNo:
				f.BoolFunc(p.Name, "", take)
			default:
				once(p.Name, take)
			}
		}
	}
	for _, name := range []string{"since", "until"} {
		once(name, func(s string) error {
			at, err := parseWhen(s, now) // empty, as an unset variable in a script, is none
			i.filter.Set(name, at.UTC().Format(time.RFC3339Nano))
			return err
		})
	}
	once("tenant", func(s string) error {
		name, err := inbox.ParseTenant(s)
		i.filter.Set("tenant", name.String())
		return err
	})
	once("platform", func(s string) error { i.filter.Set("platform", s); return nil })
	once("state", func(s string) error {
		i.filter.Set("state", s)
		if names := state.Names(); !slices.Contains(names, s) {
			last := len(names) - 1
			return errors.New("write " + strings.Join(names[:last], ", ") + " or " + names[last])
		}
		return nil
	})
	return f
}

func (i *inboxCall) setIDs(args []string) error {
	if len(args) == 0 || i.subcommand == "show" && len(args) > 1 {
		return errWrongArgs
	}
	for _, arg := range args {
		if _, err := strconv.ParseUint(arg, 10, 63); err != nil {
			return fmt.Errorf("invalid id %q: ids are numbers, see 'usher inbox ls'", arg)
		}
	}
	i.ids = args
	return nil
}

func (i *inboxCall) setIDsOrFilters(a *admin.Act, args []string) error {
	instead := a.Instead[state.State(i.filter.Get("state"))]
	switch filtered := len(i.filter) > 0; {
	case filtered && len(args) > 0:
		return fmt.Errorf("%s takes either ids or filters", a.Name)
	case instead != "":
		return errors.New(instead)
	case filtered:
		return nil
	}
	return i.setIDs(args)
}

// setParam sets a parameter of an act.
func (i *inboxCall) setParam(p *admin.Param, value string) error {
	switch {
	case p.Is == admin.ATenant:
		return i.setTenant(value)
	case p.Check(value) != nil || value == "": // an unset variable in a script must not mean all
		return errors.New("write " + p.Is)
	}
	i.params[p.Name] = value
	return nil
}

// setTenant sets the tenant that an act is about.
func (i *inboxCall) setTenant(typed string) error {
	name, err := inbox.ParseTenant(typed)
	i.tenant, i.params["tenant"] = name.String(), name.Tenant
	if name.Platform != nil {
		i.params["platform"] = *name.Platform
	}
	return err
}

// pageSize is how many things usher inbox requests at once: the most that a page has.
const pageSize = 500

// printPages prints a list page by page, --limit at most or all of it, each as it comes: its reader may take long with one,
// and there may be millions. It returns how many there were, and the end of the last page.
func printPages[T any](ctx context.Context, i *inboxCall, path string, query url.Values, limit int, columns []view.Column[T]) (n int, end view.End, err error) {
	print := &view.Printer[T]{Columns: columns, Width: text.Width(i.Stdout)}
	for {
		size := pageSize
		if limit > 0 {
			size = min(size, limit-n)
		}
		query.Set("limit", strconv.Itoa(size))
		var page []T
		end, err = i.lines(ctx, http.MethodGet, path+"?"+query.Encode(), nil, func(line []byte) error {
			var one T
			if n++; i.json {
				_, err := i.Stdout.Write(append(line, '\n'))
				return err
			}
			err := json.Unmarshal(line, &one)
			page = append(page, one)
			return err
		})
		if !i.json && len(page) > 0 { // also of a page that has ended too early
			err = cmp.Or(print.Print(i.Stdout, page), err)
		}
		if err != nil || end.Next == "" || limit > 0 && n >= limit {
			return n, end, err
		}
		if query, err = url.ParseQuery(end.Next); err != nil {
			return n, end, err
		}
	}
}

func (i *inboxCall) list(ctx context.Context) error {
	tenant := i.filter.Get("tenant")
	n, end, err := printPages(ctx, i, "/api/webhooks", i.filter, int(i.limit), view.Webhooks)
	if err != nil {
		return err
	}
	if n == 0 && tenant != "" {
		fmt.Fprintf(i.Stderr, "usher has no such webhook of %s.\n", text.Visible(tenant))
	}
	i.printPauses(end.Paused)
	i.printMore(end)
	return nil
}

// tenants prints when each tenant's last webhook came, and how it stands.
func (i *inboxCall) tenants(ctx context.Context) error {
	query := url.Values{}
	if i.trouble {
		query.Set("trouble", "true")
	}
	_, _, err := printPages(ctx, i, "/api/tenants", query, 0, view.Tenants)
	return err
}

// actions prints who did what.
func (i *inboxCall) actions(ctx context.Context) error {
	_, end, err := printPages(ctx, i, "/api/actions", url.Values{}, int(i.limit), view.Actions)
	if err == nil {
		i.printMore(end)
	}
	return err
}

// printPauses says which deliveries are paused, and how to resume them.
func (p *Process) printPauses(pauses []inbox.Pause) {
	for _, pause := range pauses {
		resume := p.commandLine("usher inbox resume" + pause.Flag())
		fmt.Fprintf(p.Stderr, "%s. To resume: %s\n", text.Visible(view.PausedWords(&pause)), text.Visible(resume))
	}
}

// printMore says that there are more than --limit allows.
func (i *inboxCall) printMore(end view.End) {
	if end.Next != "" {
		fmt.Fprintf(i.Stderr, "Showing the newest %d; --limit 0 shows all.\n", i.limit)
	}
}

func (i *inboxCall) show(ctx context.Context) error {
	var d view.Detail
	raw, err := i.get(ctx, "/api/webhooks/"+i.ids[0], &d)
	if err != nil {
		return err
	}
	if !i.json {
		raw = []byte(d.Text())
	}
	_, err = i.Stdout.Write(raw)
	return err
}

// act does an act, and prints a line for what came of it, or for each webhook as it is done: it is one action, however
// many there are.
func (i *inboxCall) act(ctx context.Context, a *admin.Act) error {
	if a.Question != "" {
		if err := i.confirm(strings.ReplaceAll(a.Question, "TENANT", text.Visible(i.tenant))); err != nil {
			return err
		}
	}
	if a.Download {
		return i.download(ctx, a)
	}
	target, body := "/api/"+a.Name, any(i.params)
	if a.On == admin.OnWebhooks {
		for name, value := range i.params {
			i.filter.Set(name, value)
		}
		body = map[string][]string{"ids": text.Once(i.ids)}
		if len(i.ids) == 0 {
			body = nil
			if nothing, err := i.askMany(ctx, a); nothing || err != nil {
				return err
			}
		}
		target += "?" + i.filter.Encode()
	}
	i.client.Timeout = 0 // it may take long
	failed := false
	end, err := i.lines(ctx, http.MethodPost, target, body, func(line []byte) error {
		var r view.Result
		err := json.Unmarshal(line, &r)
		failed = failed || r.Failed != ""
		i.printResult(a, &r)
		return err
	})
	if end.Left > 0 {
		fmt.Fprintf(i.Stderr, "%s not tried\n", view.Plural(end.Left, "more webhook", "more webhooks"))
	}
	if a.Name != "pause" { // which has said it
		i.printPauses(end.Paused)
	}
	if err == nil && (failed || end.Left > 0) {
		err = exitCode(exitFailed)
	}
	return err
}

// printResult prints what came of an act.
func (i *inboxCall) printResult(a *admin.Act, r *view.Result) {
	switch {
	case r.Newer != "":
		fmt.Fprintf(i.Stderr, "%s %s: %s of the same tenant is newer. Use --force to %s it anyway.\n",
			r.ID, a.NotDone, r.Newer, a.Name)
	case r.Failed != "" && r.ID == "":
		fmt.Fprintf(i.Stderr, "usher: %s\n", text.Visible(r.Failed))
	case r.Failed != "":
		why := i.commandLines(strings.ReplaceAll(r.Failed, " ID'", " "+r.ID+"'"))
		fmt.Fprintf(i.Stderr, "%s %s: %s\n", r.ID, a.NotDone, text.Visible(why))
	case r.Undo != "":
		fmt.Fprintf(i.Stdout, "%s; to %s: %s\n", text.Visible(r.Said), strings.Fields(r.Undo)[2], text.Visible(i.commandLine(r.Undo)))
	case r.Said != "":
		fmt.Fprintln(i.Stdout, text.Visible(r.Said))
	default:
		fmt.Fprintf(i.Stdout, "%s %s\n", r.ID, strings.Replace(a.Done, "ID", r.New, 1))
	}
}

// askMany says how many webhooks match the filters, and asks. What comes meanwhile is not among them.
func (i *inboxCall) askMany(ctx context.Context, a *admin.Act) (nothing bool, err error) {
	var chosen view.Chosen
	i.client.Timeout = 0 // counting may take long
	if _, err := i.get(ctx, "/api/"+a.Name+"?"+i.filter.Encode(), &chosen); err != nil {
		return false, err
	}
	i.filter.Set("before", chosen.Before)
	note := ""
	if chosen.Older > 0 {
		note = fmt.Sprintf(" (without %s of the same tenants; --force sends them, too)",
			view.Plural(chosen.Older, "older webhook", "older webhooks"))
	}
	if chosen.Count == 0 {
		fmt.Fprintf(i.Stdout, "No webhook to %s%s.\n", a.Name, note)
		return true, nil
	}
	return false, i.confirm(fmt.Sprintf("%s %s%s?", a.Title(), view.Plural(chosen.Count, "webhook", "webhooks"), note))
}

// confirm asks a question, unless the arguments have --yes. It returns an error if the answer is not yes.
func (i *inboxCall) confirm(question string) error {
	if i.yes {
		fmt.Fprintln(i.Stdout, question, "yes")
		return nil
	}
	if yes, _ := i.confirms(context.Background(), i.Stdout, question); yes {
		return nil
	}
	return errors.New("nothing was done: answer y, or use --yes")
}

// download writes the file that an act answers with: to a new one, for the user alone, whole or not at all.
func (i *inboxCall) download(ctx context.Context, a *admin.Act) (err error) {
	if _, err := os.Lstat(i.file); !errors.Is(err, os.ErrNotExist) {
		return cmp.Or(err, fmt.Errorf("%s exists: name a new file", i.file))
	}
	f, err := os.CreateTemp(filepath.Dir(i.file), ".usher-"+a.Name+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	i.client.Timeout = 0 // it may take long
	resp, err := i.fetch(ctx, http.MethodPost, "/api/"+a.Name, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(f, resp.Body)
	if err == nil && n != resp.ContentLength {
		err = fmt.Errorf("got %d bytes of %d", n, resp.ContentLength)
	}
	if err != nil {
		return fmt.Errorf("the %s is not complete, and nothing was saved: %w", a.Name, err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), i.file); err != nil {
		return err
	}
	if dir, err := os.Open(filepath.Dir(i.file)); err == nil { // so that the name is on disk, too
		_ = dir.Sync()
		dir.Close()
	}
	fmt.Fprintf(i.Stdout, "saved %.1f MiB in %s\n", float64(n)/(1<<20), text.Visible(i.file))
	return nil
}
