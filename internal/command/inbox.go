package command

import (
	"bufio"
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
	"unicode/utf8"

	"usher/internal/admin"
	"usher/internal/inbox"
	"usher/internal/lane/state"
	"usher/internal/text"
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

With --json ls, tenants, show and actions print what the admin port answers.

The states:

` + stateHelp() + `
A tenant is platform/tenant, or tenant alone; write a slash or percent sign
inside a code as %2F or %25. WHEN is a time (2026-01-31T08:00; or 08:00, today
or yesterday), a day (2026-01-31), or how long ago (90m, 3d); without a zone
(08:00Z) it is local time.
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
	file       string            // of an act that answers with one
	filter     url.Values        // state, tenant, since and until, as parameters of the API
	when       map[string]string // since and until, as they were typed
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
		case a.ByFilter():
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
	i.when, i.params = make(map[string]string), make(map[string]string)
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
			case !p.Flag || a.Name != i.subcommand:
			case p.Is == admin.YesOrNo:
				f.BoolFunc(p.Name, "", take)
			default:
				once(p.Name, take)
			}
		}
	}
	for _, name := range []string{"since", "until"} {
		once(name, func(s string) error { // the other one may come later
			if s == "" { // an unset variable in a script must not select all
				return errWhen
			}
			i.when[name] = s
			from, to, err := between(i.when["since"], i.when["until"], now)
			for name, at := range map[string]time.Time{"since": from, "until": to} {
				if !at.IsZero() {
					i.filter.Set(name, at.UTC().Format(time.RFC3339Nano))
				}
			}
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

// pageSize is how many webhooks usher inbox ls requests at once: the most that a page has.
const pageSize = 500

// pages reads a list page by page: --limit at most, or all of it. read says how many a page has, and
// where the next one begins.
func (i *inboxCall) pages(read func(size, before string) (n int, next string, err error)) error {
	for got, before, limit := 0, "", int(i.limit); ; {
		size := pageSize
		if limit > 0 {
			size = min(size, limit-got)
		}
		n, next, err := read(strconv.Itoa(size), before)
		if got += n; err != nil || next == "" || limit > 0 && got >= limit {
			return err
		}
		before = next
	}
}

func (i *inboxCall) list(ctx context.Context) error {
	var l admin.WebhookList
	query := i.filter
	err := i.pages(func(size, before string) (n int, next string, err error) {
		query.Set("limit", size)
		query.Set("before", before)
		var page admin.WebhookList
		_, err = i.get(ctx, "/api/webhooks?"+query.Encode(), &page)
		n, page.Webhooks = len(page.Webhooks), append(l.Webhooks, page.Webhooks...)
		l = page
		return n, l.Next, err
	})
	if err != nil {
		return err
	}
	if i.json {
		return json.NewEncoder(i.Stdout).Encode(l)
	}
	if err := printList(i.Stdout, l.Webhooks, time.Now(), text.Width(i.Stdout)); err != nil {
		return err
	}
	if tenant := i.filter.Get("tenant"); len(l.Webhooks) == 0 && tenant != "" {
		fmt.Fprintf(i.Stderr, "usher has no such webhook of %s.\n", text.Visible(tenant))
	}
	i.printPauses(l.Paused)
	i.printMore(l.Next)
	return nil
}

// tenants prints when each tenant's last webhook came, and how it stands.
func (i *inboxCall) tenants(ctx context.Context) error {
	l := admin.TenantList{Tenants: []*inbox.Tenant{}} // [] and not null
	query := url.Values{}
	if i.trouble {
		query.Set("trouble", "true")
	}
	for next, more := query.Encode(), true; more; more = next != "" {
		var page admin.TenantList
		if _, err := i.get(ctx, "/api/tenants?"+next, &page); err != nil {
			return err
		}
		l.Tenants, next = append(l.Tenants, page.Tenants...), page.Next
	}
	if i.json {
		return json.NewEncoder(i.Stdout).Encode(l)
	}
	var rows [][]string
	if text.Width(i.Stdout) > 0 {
		rows = append(rows, []string{"TENANT", "LAST WEBHOOK", "NOW"})
	}
	for _, t := range l.Tenants {
		last := "-"
		if !t.Latest.IsZero() {
			last = t.Latest.UTC().Format(time.RFC3339)
		}
		rows = append(rows, []string{
			text.Visible(inbox.ShowTenant(t.Platform, t.Tenant)), last, strings.Join(t.Standing(), ", "),
		})
	}
	for _, line := range columns(rows) {
		if _, err := fmt.Fprintln(i.Stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// printPauses says which deliveries are paused, and how to resume them.
func (p *Process) printPauses(pauses []inbox.Pause) {
	for _, pause := range pauses {
		resume := p.commandLine("usher inbox resume" + pause.Flag())
		fmt.Fprintf(p.Stderr, "Paused since %s: %s. To resume: %s\n",
			timeAndAge(pause.Since, time.Now()), text.Visible(pause.Words()), text.Visible(resume))
	}
}

func (i *inboxCall) show(ctx context.Context) error {
	var d admin.WebhookDetail
	return i.getAndPrint(ctx, "/api/webhooks/"+i.ids[0], &d, func() error {
		return printDetail(i.Stdout, &d, time.Now())
	})
}

// actions prints who did what.
func (i *inboxCall) actions(ctx context.Context) error {
	l := admin.Actions{Actions: []inbox.Action{}} // [] and not null
	err := i.pages(func(size, before string) (n int, next string, err error) {
		var page admin.Actions
		_, err = i.get(ctx, "/api/actions?limit="+size+"&before="+before, &page)
		l.Actions, l.Next = append(l.Actions, page.Actions...), page.Next
		return len(page.Actions), l.Next, err
	})
	if err != nil {
		return err
	}
	if i.json {
		return json.NewEncoder(i.Stdout).Encode(l)
	}
	for _, act := range l.Actions {
		fmt.Fprintf(i.Stdout, "%s  %-9s  %-5d  %s  %s\n", act.At.UTC().Format(time.RFC3339),
			act.What, act.Count, text.Visible(act.Who), text.Visible(act.About))
	}
	i.printMore(l.Next)
	return nil
}

// printMore says that there are more than --limit allows; next is the next page.
func (i *inboxCall) printMore(next string) {
	if next != "" {
		fmt.Fprintf(i.Stderr, "Showing the newest %d; --limit 0 shows all.\n", i.limit)
	}
}

// getAndPrint gets target and prints the answer: with --json as it is, else decoded into result, with print.
func (i *inboxCall) getAndPrint(ctx context.Context, target string, result any, print func() error) error {
	raw, err := i.get(ctx, target, result)
	if err != nil {
		return err
	}
	if i.json {
		_, err = i.Stdout.Write(raw)
		return err
	}
	return print()
}

// act does an act, and says what came of it.
func (i *inboxCall) act(ctx context.Context, a *admin.Act) error {
	if a.On == admin.OnWebhooks {
		return i.actOnWebhooks(ctx, a)
	}
	if a.Question != "" {
		if err := i.confirm(strings.ReplaceAll(a.Question, "TENANT", text.Visible(i.tenant))); err != nil {
			return err
		}
	}
	if a.Download {
		return i.download(ctx, a)
	}
	raw, err := i.call(ctx, http.MethodPost, "/api/"+a.Name, i.params, new(json.RawMessage))
	if err != nil {
		return err
	}
	var still struct{ Paused []inbox.Pause }
	_ = json.Unmarshal(raw, &still) // not every answer has it
	said, err := a.Says(raw, i.commandLine)
	if said != "" {
		fmt.Fprintln(i.Stdout, text.Visible(said))
	}
	i.printPauses(still.Paused)
	if err != nil {
		err = errors.New(text.Visible(err.Error()))
	}
	return err
}

// actOnWebhooks does an act to webhooks and prints a line for each, as it is done: one action, however many
// there are.
func (i *inboxCall) actOnWebhooks(ctx context.Context, a *admin.Act) error {
	for name, value := range i.params {
		i.filter.Set(name, value)
	}
	var body any
	if len(i.ids) > 0 {
		body = map[string][]string{"ids": text.Once(i.ids)}
	} else if nothing, err := i.askMany(ctx, a); nothing || err != nil {
		return err
	}
	i.client.Timeout = 0 // it may take long
	var came admin.Acted
	failed := false
	target := "/api/" + a.Name + "?" + i.filter.Encode()
	err := i.stream(ctx, target, body, &came, func(raw json.RawMessage) error {
		var d admin.Done
		err := json.Unmarshal(raw, &d)
		failed = failed || d.Failed != ""
		i.printDone(a, &d)
		return err
	})
	if err != nil {
		return err
	}
	if came.Left > 0 {
		fmt.Fprintf(i.Stderr, "%s not tried\n", count(came.Left, "more webhook"))
	}
	i.printPauses(came.Paused)
	if failed || came.Left > 0 {
		return exitCode(exitFailed)
	}
	return nil
}

// printDone prints what came of an act on a webhook.
func (i *inboxCall) printDone(a *admin.Act, d *admin.Done) {
	switch {
	case d.Newer != "":
		fmt.Fprintf(i.Stderr, "%s %s: %s of the same tenant is newer. Use --force to %s it anyway.\n",
			d.ID, a.NotDone, d.Newer, a.Name)
	case d.Failed != "":
		why := i.commandLines(strings.ReplaceAll(d.Failed, " ID'", " "+d.ID+"'"))
		fmt.Fprintf(i.Stderr, "%s %s: %s\n", d.ID, a.NotDone, text.Visible(why))
	default:
		fmt.Fprintf(i.Stdout, "%s %s\n", d.ID, strings.Replace(a.Done, "ID", d.New, 1))
	}
}

// askMany says how many webhooks match the filters, and asks. What comes meanwhile is not among them.
func (i *inboxCall) askMany(ctx context.Context, a *admin.Act) (nothing bool, err error) {
	var chosen admin.Chosen
	i.client.Timeout = 0 // counting may take long
	if _, err := i.get(ctx, "/api/"+a.Name+"?"+i.filter.Encode(), &chosen); err != nil {
		return false, err
	}
	i.filter.Set("before", chosen.Before)
	note := ""
	if chosen.Older > 0 {
		note = fmt.Sprintf(" (without %s of the same tenants; --force sends them, too)",
			count(chosen.Older, "older webhook"))
	}
	if chosen.Count == 0 {
		fmt.Fprintf(i.Stdout, "No webhook to %s%s.\n", a.Name, note)
		return true, nil
	}
	return false, i.confirm(fmt.Sprintf("%s %s%s?", a.Title(), count(chosen.Count, "webhook"), note))
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

// confirms asks a question on out, and says whether the answer is yes.
func (p *Process) confirms(ctx context.Context, out io.Writer, question string) (yes bool, err error) {
	fmt.Fprint(out, question, " [y/N] ")
	answers := make(chan string, 1)
	go func() { // a read from a terminal does not end with ctx
		answer, _ := bufio.NewReader(p.Stdin).ReadString('\n') // at the end of the input: no
		answers <- strings.ToLower(strings.TrimSpace(answer))
	}()
	select {
	case answer := <-answers:
		return answer == "y" || answer == "yes", nil
	case <-ctx.Done():
		fmt.Fprintln(out)
		return false, context.Cause(ctx)
	}
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

// printList prints one line for each webhook. On a terminal, which has terminal columns, it prints headings
// and cuts the lines; elsewhere terminal is zero.
func printList(w io.Writer, entries []admin.Webhook, now time.Time, terminal int) error {
	var rows [][]string
	if terminal > 0 {
		rows = append(rows, []string{"ID", "STATE", "TENANT", "WHAT CHANGED", "TRIES", "AGE", "LAST ANSWER"})
	}
	for i := range entries {
		e := &entries[i]
		changes := cmp.Or(text.Visible(strings.Join(e.Changes, ", ")), "-")
		if e.Source != "" {
			changes = text.Visible(e.Source) + ": " + changes
		}
		if terminal > 0 { // leave room for the last answer
			changes = text.Shorten(changes, max(12, terminal/4))
		}
		rows = append(rows, []string{
			e.ID, text.Visible(string(e.State)), tenantName(e), changes,
			strconv.Itoa(e.Tries), age(e.Received, now), lastAnswer(e, now),
		})
	}
	var out strings.Builder
	for _, line := range columns(rows) {
		if terminal > 0 {
			line = text.Shorten(line, terminal)
		}
		out.WriteString(line + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// columns returns rows as lines, with their cells below each other. A long cell makes only its own line
// longer: senders choose how long they are.
func columns(rows [][]string) (lines []string) {
	const maxWidth = 36
	if len(rows) == 0 {
		return nil
	}
	widths := make([]int, len(rows[0])-1) // the last column needs none
	for _, row := range rows {
		for i := range widths {
			widths[i] = max(widths[i], min(utf8.RuneCountInString(row[i]), maxWidth))
		}
	}
	for _, row := range rows {
		line := ""
		for i, width := range widths {
			line += fmt.Sprintf("%-*s  ", width, row[i])
		}
		lines = append(lines, line+row[len(widths)])
	}
	return lines
}

// printDetail prints everything that usher knows about one webhook.
func printDetail(w io.Writer, d *admin.WebhookDetail, now time.Time) error {
	var out strings.Builder
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&out, "%-11s %s\n", name, text.Visible(value))
		}
	}
	field("id", d.ID)
	field("state", d.Outcome())
	field("because", d.Why)
	field("since", timeAndAge(d.Changed, now))
	if d.Source == inbox.FromReconcile {
		field("source", "reconcile: usher made it from what the billing service said")
	}
	field("tenant", tenantName(&d.Webhook))
	field("type", d.Type)
	field("received", timeAndAge(d.Received, now))
	field("redelivered", timeAndAge(d.Again, now))
	field("webhook-id", d.UUID)
	if d.Decision == "rejected" {
		field("answered", strconv.Itoa(d.Status))
		field("from", d.From)
	} else {
		field("tries", strconv.Itoa(d.Tries))
	}
	field("receiver", d.Receiver)
	if d.Unacceptable != "" {
		field("accept", "not possible: "+d.Unacceptable)
	}
	field("waits", strings.Join(waitsFor(&d.Webhook, now), "; "))

	section := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&out, "\n%s\n", title)
		}
		for _, line := range lines {
			fmt.Fprintf(&out, "  %s\n", text.Visible(line))
		}
	}
	var tries, faults []string
	for i := range d.Tried {
		a := &d.Tried[i]
		at, took := a.At.UTC().Format(time.RFC3339), a.Took.Round(time.Millisecond)
		tries = append(tries, fmt.Sprintf("%s  %8v  %s", at, took, a.Words()))
	}
	section("tries", tries)
	for _, f := range d.Faults {
		faults = append(faults, f.String())
	}
	section("what is wrong with it", faults)
	if d.Payload != nil {
		title, changes := changesOf(d)
		section(title, changes)
		out.WriteString("\npayload\n" + payloadText(d) + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// changesOf returns what a webhook changed, and a title that says which webhook it is compared with.
func changesOf(d *admin.WebhookDetail) (title string, changes []string) {
	none := "(the receiver has not accepted any earlier snapshot)"
	if d.Tenant == "" {
		none = "(its tenant is not known)"
	}
	title, changes = "changes since "+d.Previous, []string{"none"}
	switch {
	case d.Decision == "rejected":
		title, changes = "compared with "+cmp.Or(d.Previous, "nothing "+none), []string{"its features can't be read"}
	case d.Previous == "":
		title = "changes " + none
	case d.Untaken != "":
		title += fmt.Sprintf(", the last webhook that the receiver accepted (it did not accept %s)", d.Untaken)
	}
	if len(d.Changes) > 0 {
		changes = d.Changes
	}
	return title, changes
}

// payloadText returns a payload as people read it, and says what is left out.
func payloadText(d *admin.WebhookDetail) string {
	shown, left, margin := "", d.LeftOut, "  "    // a text may have lines of its own, which must not look like usher's
	if json.Unmarshal(d.Payload, &shown) != nil { // it is not a text, but JSON
		margin = ""
		shown, left = text.Payload(d.Payload)
	}
	lines := strings.Split(shown, "\n")
	for i := range lines {
		lines[i] = margin + text.Visible(lines[i])
	}
	if left > 0 {
		lines = append(lines, fmt.Sprintf("(%d bytes of the payload are left out. "+
			"The admin port has all of it: GET /webhooks/%s/payload)", left, d.ID))
	}
	return strings.Join(lines, "\n")
}

// tenantName returns the tenant of a webhook or, if it belongs to none, its type in brackets.
func tenantName(e *admin.Webhook) string {
	switch {
	case e.Tenant == "" && (e.Type == "" || e.Decision == "rejected"):
		return "-" // damaged in the inbox, or invalid before usher could read its tenant
	case e.Tenant == "":
		return text.Visible("(" + e.Type + ")")
	default:
		return text.Visible(inbox.ShowTenant(e.Platform, e.Tenant))
	}
}

// lastAnswer returns the receiver's last answer, or why there is none, and what the webhook waits for.
func lastAnswer(e *admin.Webhook, now time.Time) string {
	words := waitsFor(e, now)
	if answer := cmp.Or(e.Answer, e.Why); answer != "" {
		words = slices.Insert(words, 0, text.Visible(answer))
	}
	return cmp.Or(strings.Join(words, "; "), "-")
}

// waitsFor says what a webhook waits for, and how many wait behind it.
func waitsFor(e *admin.Webhook, now time.Time) (words []string) {
	if e.Paused {
		words = append(words, inbox.Pause{Until: e.Next}.With("paused"))
	}
	switch {
	case e.NoReceiver:
		words = append(words, "no receiver takes its platform")
	case e.HeldBy != "":
		words = append(words, "behind "+e.HeldBy)
	case !e.Paused && e.Down:
		words = append(words, "receiver is down")
	case !e.Paused && !e.Next.IsZero():
		words = append(words, "next try in "+age(now, e.Next))
	}
	if e.Behind > 0 {
		words = append(words, fmt.Sprintf("%d behind it", e.Behind))
	}
	return words
}

// timeAndAge returns a time and how long ago it was. It is empty for the zero time.
func timeAndAge(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s, %s ago", t.UTC().Format(time.RFC3339), age(t, now))
}

// age returns the time from since to now, in its largest unit.
func age(since, now time.Time) string {
	d := max(0, now.Sub(since))
	switch {
	case since.IsZero():
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}
