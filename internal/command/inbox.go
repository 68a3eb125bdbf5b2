package command

import (
	"bufio"
	"bytes"
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
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"usher/internal/admin"
	"usher/internal/inbox/store"
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
` + asksUsher + `inbox ls
`

// inboxCall is usher inbox: what the arguments say, and the running usher that is asked.
type inboxCall struct {
	*adminAPI
	verb        string
	ids         []string
	file        string           // of import
	filter      url.Values       // what narrows a list down, as the API wants it: state, tenant, since, until
	tenant      store.TenantName // without a code: none is named
	receiver    string
	limit       uint64
	json, force bool
	yes, skip   bool
}

// inboxCommand is usher inbox.
func inboxCommand(ctx context.Context, p *Process, args []string) error {
	i := &inboxCall{filter: make(url.Values)}
	v, err := i.parse(args, time.Now())
	if err != nil {
		return err
	}
	if i.adminAPI, err = newAdminAPI(p); err != nil {
		return err
	}
	return v.run(ctx)
}

func (i *inboxCall) parse(args []string, now time.Time) (*verb, error) {
	const filters = "state tenant since until "
	const idsOrFilters = "ids, or --state, --tenant, --since or --until"
	if len(args) > 0 {
		i.verb = args[0]
	}
	return parseVerb([]verb{
		{"ls", filters + "limit json", "", nil, i.list},
		{"show", "json", "one id", i.takeIDs, i.show},
		{"redeliver", filters + "force yes", idsOrFilters, i.takeIDsOrFilters, i.each("will be sent again", "not resent", "resend it")},
		{"discard", filters + "yes", idsOrFilters, i.takeIDsOrFilters, i.each("discarded", "not discarded", "discard it")},
		{"accept", "force", "ids of refused webhooks, see 'usher inbox ls --state refused'", i.takeIDs,
			i.each("accepted: its new id is ID", "not accepted", "take it in")},
		{"pause", "tenant receiver", "", nil, i.pause},
		{"resume", "tenant receiver", "", nil, i.pause},
		{"forget", "", "one tenant", one(i.takeTenant), i.forget},
		{"erase", "yes", "one tenant", one(i.takeTenant), i.erase},
		{"export", "", "", nil, i.export},
		{"import", "skip-faulty", "one file, - for standard input", one(func(file string) error { i.file = file; return nil }), i.imports},
		{"actions", "json", "", nil, i.actions},
	}, i.flags(now), args)
}

func (i *inboxCall) flags(now time.Time) *flag.FlagSet {
	f := new(flag.FlagSet)
	f.BoolVar(&i.json, "json", false, "")
	f.BoolVar(&i.force, "force", false, "")
	f.BoolVar(&i.yes, "yes", false, "")
	f.BoolVar(&i.skip, "skip-faulty", false, "")
	for _, name := range []string{"since", "until"} {
		f.Func(name, "", func(s string) error {
			t, err := parseWhen(s, now)
			i.filter.Set(name, t.UTC().Format(time.RFC3339Nano))
			return err
		})
	}
	f.Func("tenant", "", i.takeTenant)
	f.Func("state", "", func(s string) error {
		i.filter.Set("state", s)
		if !slices.Contains(store.States, store.State(s)) {
			return errors.New("write waiting, parked, refused, delivered, superseded, discarded, kept or accepted")
		}
		return nil
	})
	f.Func("receiver", "", func(s string) error {
		if i.receiver = s; s == "" { // a variable that a script did not fill in is not everybody
			return errors.New("write its name")
		}
		return nil
	})
	i.limit = 1000
	f.Func("limit", "", func(s string) (err error) {
		if i.limit, err = strconv.ParseUint(s, 10, 31); err != nil {
			return errors.New("write a number, 0 for all")
		}
		return nil
	})
	return f
}

func (i *inboxCall) takeIDs(words []string) error {
	if len(words) == 0 || i.verb == "show" && len(words) > 1 {
		return errWords
	}
	for _, word := range words {
		number := word
		if i.verb == "show" { // the page also shows what the inbox never had, as d12
			number = strings.TrimPrefix(word, "d")
		}
		if _, err := strconv.ParseUint(number, 10, 63); err != nil {
			return fmt.Errorf("invalid id %q: ids are numbers, see 'usher inbox ls'", word)
		}
	}
	i.ids = words
	return nil
}

func (i *inboxCall) takeIDsOrFilters(words []string) error {
	switch filtered := len(i.filter) > 0; {
	case filtered && len(words) > 0:
		return fmt.Errorf("%s takes either ids or filters", i.verb)
	case filtered:
		return nil
	}
	return i.takeIDs(words)
}

func (i *inboxCall) takeTenant(word string) (err error) {
	i.tenant, err = store.ParseTenant(word)
	name := store.ShowTenant("", i.tenant.Tenant)
	if i.tenant.Platform != nil {
		name = store.Exact(*i.tenant.Platform, i.tenant.Tenant)
	}
	i.filter.Set("tenant", name)
	return err
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

// target is what an action is about, as the admin port's API wants it.
func (i *inboxCall) target() any {
	return struct {
		Tenant   string  `json:"tenant,omitempty"`
		Platform *string `json:"platform,omitempty"`
		Receiver string  `json:"receiver,omitempty"`
	}{i.tenant.Tenant, i.tenant.Platform, i.receiver}
}

// pageSize is how many webhooks the list is asked for at once: up to so many come with what they changed.
const pageSize = 500

func (i *inboxCall) list(ctx context.Context) error {
	var l admin.WebhookList
	query, limit := i.filter, int(i.limit)
	query.Set("inbox", "true")
	for more := true; more; more = l.Next != "" && (limit == 0 || len(l.Webhooks) < limit) {
		size := pageSize
		if limit > 0 {
			size = min(size, limit-len(l.Webhooks))
		}
		query.Set("limit", strconv.Itoa(size))
		var page admin.WebhookList
		if _, err := i.get(ctx, "/api/webhooks?"+query.Encode(), &page); err != nil {
			return err
		}
		page.Webhooks = append(l.Webhooks, page.Webhooks...)
		l = page
		query.Set("before", l.Next)
	}
	if i.json {
		return json.NewEncoder(i.Stdout).Encode(l)
	}
	width := text.Width(i.Stdout)
	if err := printList(i.Stdout, l.Webhooks, time.Now(), width); err != nil {
		return err
	}
	if width > 0 {
		fmt.Fprintln(i.Stderr, summary(l.Webhooks))
	}
	if len(l.Webhooks) == 0 && len(l.Alike) > 0 {
		fmt.Fprintf(i.Stderr, "No tenant is called %s. Did you mean %s?\n", visible(i.filter.Get("tenant")), visible(strings.Join(l.Alike, " or ")))
	}
	i.sayPaused(l.Paused)
	if l.Next != "" {
		fmt.Fprintf(i.Stderr, "Only the newest %d are shown; --limit 0 shows all.\n", limit)
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

func (i *inboxCall) show(ctx context.Context) error {
	var d admin.WebhookDetail
	raw, err := i.get(ctx, "/api/webhooks/"+i.ids[0], &d)
	switch {
	case err != nil:
		return err
	case i.json:
		_, err = i.Stdout.Write(raw)
		return err
	}
	return printDetail(i.Stdout, &d, time.Now())
}

// actions lists what people did.
func (i *inboxCall) actions(ctx context.Context) error {
	var l admin.Actions
	raw, err := i.get(ctx, "/api/actions?limit=500", &l)
	switch {
	case err != nil:
		return err
	case i.json:
		_, err = i.Stdout.Write(raw)
		return err
	}
	for _, act := range l.Actions {
		fmt.Fprintf(i.Stdout, "%s  %-9s  %-5d  %s  %s\n", act.At.UTC().Format(time.RFC3339), act.What, act.Count, visible(act.Who), visible(act.About))
	}
	return nil
}

// each does something to each webhook, says of each what became of it, and goes on when one fails.
// The words say that it was done, that it was not, and what --force would do.
func (i *inboxCall) each(done, not, force string) func(context.Context) error {
	return func(ctx context.Context) error {
		ids, err := i.chosen(ctx)
		if err != nil {
			return err
		}
		var (
			failed error
			last   admin.Done
		)
		for _, id := range ids {
			err := i.post(ctx, fmt.Sprintf("/api/webhooks/%s/%s?force=%t", id, i.verb, i.force), nil, &last)
			switch refused, _ := errors.AsType[*apiError](err); {
			case err == nil:
				fmt.Fprintf(i.Stdout, "%s %s\n", id, strings.Replace(done, "ID", last.ID, 1))
				continue
			case refused != nil && refused.Latest != nil:
				fmt.Fprintf(i.Stderr, "%s %s: %s of the same tenant is newer. Use --force to %s anyway.\n", id, not, refused.Latest.ID, force)
			default:
				fmt.Fprintf(i.Stderr, "%s %s: %v\n", id, not, err)
			}
			failed = quiet(exitFailed)
		}
		if i.verb == "redeliver" {
			i.sayPaused(last.Paused)
		}
		return failed
	}
}

// chosen returns the ids that were given, or those of the webhooks that the filters choose,
// once somebody has agreed.
func (i *inboxCall) chosen(ctx context.Context) ([]string, error) {
	if len(i.ids) > 0 {
		return i.ids, nil
	}
	i.filter.Set("force", strconv.FormatBool(i.force))
	var chosen admin.Chosen
	if _, err := i.get(ctx, "/api/"+i.verb+"?"+i.filter.Encode(), &chosen); err != nil {
		return nil, err
	}
	note := ""
	if chosen.Older > 0 {
		note = fmt.Sprintf(" (without %s of the same tenants; --force sends them, too)", plural(chosen.Older, "older webhook"))
	}
	if len(chosen.Webhooks) == 0 {
		fmt.Fprintf(i.Stdout, "No webhook to %s%s.\n", i.verb, note)
		return nil, nil
	}
	question := fmt.Sprintf("%s %s%s?", strings.ToUpper(i.verb[:1])+i.verb[1:], plural(len(chosen.Webhooks), "webhook"), note)
	return chosen.Webhooks, i.agreed(question)
}

// agreed asks, unless somebody has agreed already with --yes.
func (i *inboxCall) agreed(question string) error {
	if i.yes {
		fmt.Fprintln(i.Stdout, question, "yes")
		return nil
	}
	fmt.Fprint(i.Stdout, question, " [y/N] ")
	answer, _ := bufio.NewReader(i.Stdin).ReadString('\n') // nothing: no
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was done: answer y, or use --yes")
}

// pause is pause and resume.
func (i *inboxCall) pause(ctx context.Context) error {
	var done admin.Resumed
	if err := i.post(ctx, "/api/"+i.verb, i.target(), &done); err != nil {
		return err
	}
	what := visible(done.Pause.String())
	switch {
	case i.verb == "pause":
		fmt.Fprintf(i.Stdout, "paused: %s; to resume: %s\n", what, visible(i.line("usher inbox resume"+done.Pause.Flag())))
	case done.Was:
		fmt.Fprintf(i.Stdout, "resumed: %s\n", what)
	default:
		return fmt.Errorf("%s: not paused", what)
	}
	return nil
}

func (i *inboxCall) forget(ctx context.Context) error {
	var f admin.Forgotten
	if err := i.post(ctx, "/api/forget", i.target(), &f); err != nil {
		return err
	}
	became := " forgotten: its next webhook is delivered whatever it says"
	if f.Forgotten == 0 {
		became = ": dedup remembered nothing"
	}
	fmt.Fprintln(i.Stdout, visible(store.ShowTenant(f.Platform, f.Tenant))+became)
	return nil
}

func (i *inboxCall) erase(ctx context.Context) error {
	question := fmt.Sprintf("Erase %s: delete its webhooks, those that wait included, and what it may use?", visible(i.filter.Get("tenant")))
	if err := i.agreed(question); err != nil {
		return err
	}
	var e admin.Erased
	if err := i.post(ctx, "/api/erase", i.target(), &e); err != nil {
		return err
	}
	fmt.Fprintf(i.Stdout, "%s erased: %s\n", visible(store.ShowTenant(e.Platform, e.Tenant)), plural(e.Webhooks, "webhook"))
	return nil
}

// export writes the inbox to standard output.
func (i *inboxCall) export(ctx context.Context) error {
	if text.IsTerminal(i.Stdout) {
		return errors.New("write it to a file: usher inbox export > inbox.jsonl")
	}
	i.client.Timeout = 0 // it may take long
	resp, err := i.do(ctx, http.MethodGet, "/api/export", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return i.refused(resp.StatusCode, raw)
	}
	from := &counter{r: resp.Body, p: i.Process}
	_, err = io.Copy(i.Stdout, from)
	from.end()
	if err != nil {
		return fmt.Errorf("the export ended too early and is not complete: %w", err)
	}
	return nil
}

// imports reads a file into the inbox.
func (i *inboxCall) imports(ctx context.Context) error {
	from := i.Stdin
	if i.file != "-" {
		f, err := os.Open(i.file)
		if err != nil {
			return err
		}
		defer f.Close()
		from = f
	}
	i.client.Timeout = 0 // it may take long
	counted := &counter{r: from, p: i.Process}
	var done store.Imported
	err := i.post(ctx, fmt.Sprintf("/api/import?skip_faulty=%t", i.skip), io.NopCloser(counted), &done)
	counted.end()
	if err != nil {
		return err
	}
	for _, line := range done.Faulty {
		fmt.Fprintln(i.Stderr, "left out:", visible(line))
	}
	if done.Known > 0 {
		fmt.Fprintf(i.Stderr, "skipped %s of tenants that usher already knew\n", plural(done.Known, "webhook"))
	}
	fmt.Fprintf(i.Stdout, "imported %s and %s\n", plural(done.Webhooks, "webhook"), plural(done.Snapshots, "snapshot"))
	return nil
}

// counter says on a terminal how far something has come.
type counter struct {
	r     io.Reader
	p     *Process
	bytes int64
	said  time.Time
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.bytes += int64(n)
	if time.Since(c.said) > time.Second/2 && text.IsTerminal(c.p.Stderr) {
		c.said = time.Now()
		fmt.Fprintf(c.p.Stderr, "\r%.1f MiB", float64(c.bytes)/(1<<20))
	}
	return n, err
}

func (c *counter) end() {
	if !c.said.IsZero() {
		fmt.Fprintln(c.p.Stderr)
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// The columns whose content can be long. In a list that goes to a file or a pipe a long one only makes its own line longer.
const (
	tenantColumn = 2
	changeColumn = 3
	lastColumn   = 6
	alignedWidth = 36
	columnGap    = "  "
)

// noReceiver is what a webhook waits for whose receiver is gone from the settings.
const noReceiver = "no receiver takes its platform"

// printList prints one line for each webhook. It never shortens a tenant, so that people can copy it
// from here. terminal is how many columns that has, to which the lines are cut; zero: it is none.
func printList(w io.Writer, entries []admin.Webhook, now time.Time, terminal int) error {
	var rows [][]string
	if terminal > 0 {
		rows = append(rows, []string{"ID", "STATE", "TENANT", "WHAT CHANGED", "TRIES", "AGE", "LAST ANSWER"})
	}
	for i := range entries {
		e := &entries[i]
		changes := cmp.Or(visible(strings.Join(e.Changes, ", ")), "-")
		rows = append(rows, []string{
			e.ID, visible(string(e.State)), tenantOf(e), changes, strconv.Itoa(e.Tries), age(e.Received, now), progress(e, now),
		})
	}
	widths := make([]int, lastColumn)
	for _, row := range rows {
		for i := range widths {
			width := utf8.RuneCountInString(row[i])
			if i == tenantColumn || i == changeColumn {
				width = min(width, alignedWidth)
			}
			widths[i] = max(widths[i], width)
		}
	}
	if terminal > 0 { // what changed and the last answer share what the others leave
		left := terminal + widths[changeColumn]
		for _, width := range widths {
			left -= width + len(columnGap)
		}
		widths[changeColumn] = max(12, min(widths[changeColumn], left/2, left-20))
	}
	var out strings.Builder
	for _, row := range rows {
		line := ""
		for i, width := range widths {
			if terminal > 0 && i == changeColumn {
				row[i] = shorten(row[i], width)
			}
			line += fmt.Sprintf("%-*s", width, row[i]) + columnGap
		}
		if terminal > 0 {
			row[lastColumn] = shorten(row[lastColumn], terminal-utf8.RuneCountInString(line))
		}
		out.WriteString(line + row[lastColumn] + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// summary counts the states.
func summary(entries []admin.Webhook) string {
	count := make(map[store.State]int)
	for i := range entries {
		count[entries[i].State]++
	}
	var words []string
	for _, state := range store.States {
		if count[state] > 0 {
			words = append(words, fmt.Sprintf("%d %s", count[state], state))
		}
	}
	return strings.TrimSuffix(plural(len(entries), "webhook")+": "+strings.Join(words, ", "), ": ")
}

// printDetail prints all there is of a webhook.
func printDetail(w io.Writer, d *admin.WebhookDetail, now time.Time) error {
	var out strings.Builder
	fact := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&out, "%-11s %s\n", name, visible(value))
		}
	}
	fact("id", d.ID)
	fact("state", d.Outcome())
	fact("because", d.Why)
	if d.NoReceiver {
		fact("because", noReceiver)
	}
	fact("since", moment(d.Changed, now))
	fact("tenant", tenantOf(&d.Webhook))
	fact("type", d.Type)
	fact("received", moment(d.Received, now))
	fact("sent again", moment(d.Again, now))
	fact("webhook-id", d.Webhook.Webhook)
	if d.Decision == "rejected" {
		fact("answered", strconv.Itoa(d.Status))
		fact("from", d.From)
		if d.Times > 1 {
			fact("came", fmt.Sprintf("%d times", d.Times))
		}
	} else {
		fact("tries", strconv.Itoa(d.Tries))
	}
	fact("receiver", d.Receiver)
	switch {
	case d.Paused:
		fact("next try", "paused")
	case d.HeldBy != "":
		fact("next try", "waits behind "+d.HeldBy)
	case d.Down:
		fact("next try", "when the receiver is back")
	case !d.Next.IsZero():
		fact("next try", d.Next.UTC().Format(time.RFC3339)+", in "+age(now, d.Next))
	}

	section := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&out, "\n%s\n", title)
		}
		for _, line := range lines {
			fmt.Fprintf(&out, "  %s\n", visible(line))
		}
	}
	var attempts, faults []string
	for i := range d.Attempts {
		a := &d.Attempts[i]
		attempts = append(attempts, fmt.Sprintf("%s  %8v  %s", a.At.UTC().Format(time.RFC3339), a.Took.Round(time.Millisecond), a.Words()))
	}
	section("attempts", attempts)
	for _, f := range d.Faults {
		faults = append(faults, strings.TrimSpace(f.Path+" "+f.Message))
	}
	section("what is wrong with it", faults)
	if d.Payload != nil {
		title, changes := compared(d)
		section(title, changes)
		out.WriteString("\npayload\n" + payloadText(d.Payload) + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// compared returns what a webhook changed, with a title that says against what.
func compared(d *admin.WebhookDetail) (title string, changes []string) {
	const none = "(the receiver took no snapshot before it, as far as usher knows)"
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

// payloadText indents a payload; one that is no JSON comes as a string.
func payloadText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return visible(text)
	}
	var indented bytes.Buffer
	_ = json.Indent(&indented, raw, "", "  ") // it is JSON, as part of an answer that is
	lines := strings.Split(indented.String(), "\n")
	for i := range lines {
		lines[i] = visible(lines[i])
	}
	return strings.Join(lines, "\n")
}

// tenantOf names a tenant, or, where a webhook has none, its type in brackets.
func tenantOf(e *admin.Webhook) string {
	switch {
	case e.Tenant == "" && (e.Type == "" || e.Decision == "rejected"):
		return "-" // a damaged record, or nobody knows whose it is
	case e.Tenant == "":
		return visible("(" + e.Type + ")")
	default:
		return visible(store.ShowTenant(e.Platform, e.Tenant))
	}
}

// progress is what the receiver said last, or else what is known instead, and what a webhook waits for.
func progress(e *admin.Webhook, now time.Time) string {
	var words []string
	if answer := cmp.Or(e.Answer, e.Why); answer != "" {
		words = append(words, visible(answer))
	}
	if e.Paused {
		words = append(words, "paused")
	}
	switch {
	case e.NoReceiver:
		words = append(words, noReceiver)
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
	return cmp.Or(strings.Join(words, "; "), "-")
}

// moment is a time, and how long ago it is; empty: it is not known.
func moment(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s, %s ago", t.UTC().Format(time.RFC3339), age(t, now))
}

// age is short and rough, as in a list.
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

// shorten cuts what is longer than n characters at its end.
func shorten(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return strings.TrimRight(string(runes[:max(n, 3)-1]), " ") + "…"
}
