package command

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"usher/internal/admin"
	"usher/internal/admin/status"
	"usher/internal/inbox"
	"usher/internal/job"
	"usher/internal/settings"
	"usher/internal/text"
)

const reconcileUsage = `Usage: usher reconcile [--apply [--no-deliver] [--twins] [--max N] [--yes]]
                       [--as-of TIME] [--json] -- CMD ARG...

Finds changes that usher does not know: their webhook got lost or was never
sent, or they are older than usher. CMD asks the billing service in its own way,
and prints one tenant on a line: the payload of a webhook
({"tenant":{"code":...},"change":{"features":[...]}}), or a whole webhook.
usher compares that with what it knows, and says what differs.

It needs a running usher with a gate and an inbox. CMD is a script of yours, see
examples/reconcile. If you have installed the units of deploy/systemd, run as
root: systemctl start usher-reconcile.

CMD runs as under 'usher exec': it calls the billing service at $USHER_URL,
without a token. Without USHER_BASE_URL it just runs; then say with --as-of how
old its list is.

  --apply       take in what differs or is new: usher makes a webhook of
                each, and delivers it. It says how many and asks first
  --no-deliver  with --apply: usher only knows them, and delivers nothing; for
                the first day, with a receiver that is right already
  --twins       with --apply: also take in tenants whose code usher knows on
                another platform
  --max N       with --apply: if more than N would be taken in, take in none.
                By default a tenth of the tenants that usher knows, but 5 at
                least and 100 at most; 0: any number
  --yes         do not ask
  --as-of TIME  how old the list is: 2026-01-31T08:00:00Z, or 90m, 3d ago
  --json        lines of JSON, the last one with the numbers

The results:

  equal    the features are what usher answers by
  differs  they are not
  missing  usher does not know the tenant, or cannot read its features
  twin     as missing, but usher knows this code on another platform, and CMD
           did not print that one: usually CMD prints a wrong platform
  changed  something came for the tenant meanwhile; the next run compares it
  absent   usher knows the tenant, and CMD did not print it

A run that compares less than 90 % of the tenants of the largest run of the last
week clears no difference that a larger one found, and ends no outage (a time
without a gate). To end an outage, a run must also compare at least half of the
tenants that usher knows, and leave nothing that differs.

Exit code 0: nothing differs or is missing any more. 3: something does. 1: it
failed, and nothing was taken in, or not all. 2: wrong settings or usage.

It uses the settings for calls (USHER_BASE_URL, USHER_CLIENT_ID,
USHER_CLIENT_SECRET) and those of the admin port, from one file or from several:

  USHER_CLIENT_SECRET_FILE=/etc/usher/client-secret \
    usher --env-file /etc/usher/usher.env --env-file /etc/usher/gate.env \
    reconcile -- ./tenants.sh
`

// exitDiffers is the exit code of a reconcile that has left something that differs.
const exitDiffers = 3

const (
	// A call compares or applies so many lines, or about so many bytes.
	batchLines = 200
	batchBytes = 1 << 20
	// maxTenantLine is the length of the longest line. The server may accept less.
	maxTenantLine = 16 << 20
	// maxListed is how many tenants of one result, and how many faults, are printed without --json.
	maxListed = 50
)

// reconcileCall is one 'usher reconcile'.
type reconcileCall struct {
	*adminAPI
	apply, noDeliver, twins, yes, json bool
	max                                int // -1: the default
	asOf                               time.Time
	command                            []string
	job                                *job.Job // runs the command

	run    admin.RunBegun
	number int // of the last line
	batch  batch

	seen      map[tenantKey]seenTenant // every tenant that CMD has printed
	spool     spool                    // lines that need a second look: those that are not equal
	conflicts spool                    // lines of tenants that came before with other features
	toApply   spool
	faults    int
	untaken   []string // the first platforms of lines that were passed over
	cut       error    // why not all that the command prints could be read
	summary   inbox.Summary
	listed    map[inbox.Result]int
	progress  progress
}

// A tenantKey stands for a tenant. It is a hash, because codes may be long, and there may be very many.
type tenantKey [16]byte

func keyOf(platform, tenant string) tenantKey {
	sum := sha256.Sum256([]byte(platform + "\x00" + tenant))
	return tenantKey(sum[:16])
}

type seenTenant struct {
	state [8]byte // a hash of the digest of its features
	equal bool    // it is counted as equal
}

// batch are the lines of one call.
type batch struct {
	lines []tenantLine
	body  bytes.Buffer
}

// A tenantLine is a line that the command has printed.
type tenantLine struct {
	number int
	found  inbox.Result // what the last comparison has found; empty: there was none
	text   []byte
}

func (b *batch) add(l tenantLine) (full bool) {
	b.lines = append(b.lines, tenantLine{l.number, l.found, bytes.Clone(l.text)})
	b.body.Write(l.text)
	b.body.WriteByte('\n')
	return len(b.lines) >= batchLines || b.body.Len() >= batchBytes
}

func (b *batch) reset() { b.lines = b.lines[:0]; b.body.Reset() }

// reconcileCommand is 'usher reconcile'.
func reconcileCommand(ctx context.Context, p *Process, args []string) error {
	c := &reconcileCall{seen: make(map[tenantKey]seenTenant), listed: make(map[inbox.Result]int), progress: progress{stderr: p.Stderr}}
	if err := c.parse(args, time.Now()); err != nil {
		return err
	}
	calls := settings.Environment(p.Environ)["USHER_BASE_URL"] != ""
	stdin, _ := p.Stdin.(*os.File)
	switch {
	case !calls && c.asOf.IsZero():
		return usageErrorf("without USHER_BASE_URL it needs --as-of, to know how old the list of CMD is")
	case c.apply && !c.yes && (stdin == nil || !text.IsTerminal(stdin)):
		return usageErrorf("--apply asks before it takes anything in, and there is no terminal: use --yes")
	}
	c.job = newJob(p, c.command)
	if calls {
		if err := readOutbound(p, c.job); err != nil {
			return err
		}
	}
	var err error
	if c.adminAPI, err = newAdminAPI(p); err != nil {
		return err
	}
	if err := c.post(ctx, "/api/reconcile/begin", admin.RunBegin{AsOf: c.asOf, About: c.flags()}, &c.run); err != nil {
		return err
	}
	defer c.spool.close()
	defer c.conflicts.close()
	defer c.toApply.close()
	complete, failed := c.compareAll(ctx, calls)
	return c.end(complete, failed)
}

func (c *reconcileCall) parse(args []string, now time.Time) error {
	f := flag.NewFlagSet("reconcile", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.BoolVar(&c.apply, "apply", false, "")
	f.BoolVar(&c.noDeliver, "no-deliver", false, "")
	f.BoolVar(&c.twins, "twins", false, "")
	f.BoolVar(&c.yes, "yes", false, "")
	f.BoolVar(&c.json, "json", false, "")
	f.IntVar(&c.max, "max", -1, "")
	f.Func("as-of", "", func(s string) (err error) {
		c.asOf, err = parseWhen(s, now)
		return err
	})
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{flagProblem(f, err)}
	}
	c.command = f.Args()
	given := make(map[string]bool)
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, name := range []string{"no-deliver", "twins", "max", "yes"} {
		if given[name] && !c.apply {
			return usageErrorf("--%s is only for --apply", name)
		}
	}
	switch {
	case given["max"] && c.max < 0:
		return usageErrorf("--max %d: write a whole number, 0 for any", c.max)
	case len(c.command) == 0:
		return usageErrorf("needs a command that prints the tenants, as in: usher reconcile -- ./tenants.sh")
	case len(c.command) == len(args) || args[len(args)-len(c.command)-1] != "--": // so that nobody takes a flag behind CMD for one of usher's
		return usageErrorf("write -- before the command, as in: usher reconcile -- ./tenants.sh")
	}
	return nil
}

// flags returns the flags that say what was asked for.
func (c *reconcileCall) flags() string {
	var all []string
	for name, on := range map[string]bool{"--apply": c.apply, "--no-deliver": c.noDeliver, "--twins": c.twins} {
		if on {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	if c.max >= 0 {
		all = append(all, fmt.Sprint("--max ", c.max))
	}
	if !c.asOf.IsZero() {
		all = append(all, "--as-of "+c.asOf.UTC().Format(time.RFC3339))
	}
	return strings.Join(all, " ")
}

// compareAll runs the command, compares what it prints, and applies what may be applied. complete: all tenants were compared.
func (c *reconcileCall) compareAll(ctx context.Context, calls bool) (complete bool, failed error) {
	var readErr error
	j := c.job
	j.Read = func(ctx context.Context, r io.Reader) error { readErr = c.read(ctx, r); return readErr }
	start := j.Run
	if !calls {
		start = j.RunAlone
	}
	signals, stop := notifyOfStops() // before the command starts: it may survive a signal that means usher, too
	defer stop()
	code, err := start(ctx)
	c.progress.end()
	interrupted := len(signals) > 0
	ctx, cancel := stoppedBy(ctx, signals, interrupted)
	defer cancel()
	defer func() {
		if errors.Is(failed, context.Canceled) {
			failed = errInterrupted
		}
	}()
	switch {
	case readErr != nil && c.cut == nil:
		return false, readErr // usher has ended the command: its exit code means nothing
	case err != nil:
		failed = err
	case code != 0:
		failed = fmt.Errorf("the command failed: its exit code is %d", code)
	case interrupted:
		failed = errInterrupted
	case c.cut != nil:
		failed = c.cut
	case c.number == 0:
		failed = errors.New("the command printed nothing")
	}
	if err := c.compareConflicts(ctx); err != nil {
		return false, err
	}
	if failed == nil {
		failed = c.faulty("compared")
	}
	if err := c.compareAgain(ctx, failed == nil); err != nil {
		return false, err
	}
	if failed == nil { // the server may see a line in another way than before
		failed = c.faulty("compared")
	}
	if failed == nil && c.compared() == 0 { // a list of another platform is more likely than one that says nothing
		failed = fmt.Errorf("nothing was compared: no receiver takes these platforms: %s. Are they right?", strings.Join(c.untaken, ", "))
	}
	if failed != nil {
		return false, failed
	}
	if err := c.findUnlisted(ctx); err != nil {
		return false, err
	}
	return true, c.applyAll(ctx)
}

// errInterrupted is why a run failed that a signal has ended.
var errInterrupted = errors.New("interrupted")

// notifyOfStops returns the signals that end a run. Those that are ignored, as under nohup, stay ignored.
func notifyOfStops() (signals chan os.Signal, stop func()) {
	signals = make(chan os.Signal, 1)
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	return signals, func() { signal.Stop(signals) }
}

// stoppedBy returns a context that ends with a signal; with the second one, if the first has come already.
func stoppedBy(ctx context.Context, signals <-chan os.Signal, already bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if already {
		<-signals
	}
	go func() {
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// read reads the command's lines, and compares them.
func (c *reconcileCall) read(ctx context.Context, r io.Reader) error {
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, tooLong, err := readTenantLine(in)
		if err != nil && !errors.Is(err, io.EOF) { // the line has no end
			c.cut = fmt.Errorf("cannot read all that the command prints: %w", err)
			if err := c.compare(ctx); err != nil {
				c.cut = nil
				return err
			}
			return c.cut
		}
		if line = bytes.TrimSpace(line); len(line) > 0 || tooLong {
			c.number++
			if tooLong {
				c.fault(c.number, fmt.Sprintf("it is longer than %d MiB", maxTenantLine>>20))
			} else if c.batch.add(tenantLine{number: c.number, text: line}) {
				if err := c.compare(ctx); err != nil {
					return err
				}
			}
		}
		if err != nil {
			return c.compare(ctx)
		}
	}
}

func readTenantLine(in *bufio.Reader) (line []byte, tooLong bool, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if tooLong = tooLong || len(line)+len(part) > maxTenantLine; !tooLong {
			line = append(line, part...)
		}
		if err != bufio.ErrBufferFull {
			return line, tooLong, err
		}
	}
}

// send has the server compare or apply the lines of a batch, and empties it.
func (c *reconcileCall) send(ctx context.Context, b *batch, what string, query url.Values, each func(tenantLine, *admin.RunLine) error) error {
	defer b.reset()
	if len(b.lines) == 0 {
		return nil
	}
	query.Set("run", c.run.Run)
	var answer admin.RunLines
	if err := c.post(ctx, "/api/reconcile/"+what+"?"+query.Encode(), bytes.NewReader(b.body.Bytes()), &answer); err != nil {
		return err
	}
	if len(answer.Lines) != len(b.lines) {
		return fmt.Errorf("%s is not usher, or another version of it: it answers %d of %d lines", c.listen, len(answer.Lines), len(b.lines))
	}
	for n, line := range b.lines {
		if r := &answer.Lines[n]; what == "compare" && r.Fault == "" && !r.PassedOver && !slices.Contains(compareResults, r.Result) {
			return c.notUnderstood(r)
		}
		if err := each(line, &answer.Lines[n]); err != nil {
			return err
		}
	}
	return nil
}

// compareResults are the results of a comparison. The command itself finds the others.
var compareResults = []inbox.Result{inbox.Equal, inbox.Differs, inbox.NewTenant, inbox.Changed}

func (c *reconcileCall) notUnderstood(r *admin.RunLine) error {
	return fmt.Errorf("%s is not usher, or another version of it: it says %q of the tenant %s", c.listen, r.Result, text.Visible(inbox.ShowTenant(r.Platform, r.Tenant)))
}

// compare compares the lines that were read. What is equal is done; the others get a second look when the command has ended.
func (c *reconcileCall) compare(ctx context.Context) error {
	err := c.send(ctx, &c.batch, "compare", url.Values{}, func(line tenantLine, r *admin.RunLine) error {
		if r.Fault != "" {
			c.fault(line.number, r.Fault)
			return nil
		}
		key := keyOf(r.Platform, r.Tenant)
		state := sha256.Sum256([]byte(r.State))
		now := seenTenant{state: [8]byte(state[:8]), equal: r.Result == inbox.Equal && !r.Settles}
		switch before, twice := c.seen[key]; {
		case twice && before.state == now.state:
			return nil
		case twice:
			return c.conflicts.add(line)
		}
		c.seen[key] = now
		switch {
		case r.PassedOver:
			c.passOver(r)
		case now.equal:
			c.summary.Equal++
		default:
			return c.spool.add(line)
		}
		return nil
	})
	c.progress.show("%s compared", count(len(c.seen), "tenant"))
	return err
}

// maxUntaken is how many platforms that no receiver takes are named.
const maxUntaken = 5

func (c *reconcileCall) passOver(r *admin.RunLine) {
	c.summary.PassedOver++
	if platform := cmp.Or(text.Visible(r.Platform), `""`); len(c.untaken) < maxUntaken && !slices.Contains(c.untaken, platform) {
		c.untaken = append(c.untaken, platform)
	}
}

// compared returns how many tenants were compared.
func (c *reconcileCall) compared() int {
	s := &c.summary
	return s.Equal + s.Differs + s.New + s.Twin + s.Changed
}

func (c *reconcileCall) fault(number int, why string) {
	if c.faults++; c.faults <= maxListed {
		c.progress.end()
		fmt.Fprintf(c.Stderr, "line %d: %s\n", number, text.Visible(why))
	}
}

// faulty returns an error if there were faults.
func (c *reconcileCall) faulty(done string) error {
	if c.faults == 0 {
		return nil
	}
	return fmt.Errorf("%s cannot be %s", plural(c.faults, "line"), done)
}

// again sends the lines of a spool once more.
func (c *reconcileCall) again(ctx context.Context, s *spool, what string, query url.Values, each func(tenantLine, *admin.RunLine) error) error {
	return s.batches(func(b *batch) error { return c.send(ctx, b, what, query, each) })
}

// compareConflicts looks at tenants that the command has printed twice, with different features. That is a fault, unless the tenant
// has changed meanwhile.
func (c *reconcileCall) compareConflicts(ctx context.Context) error {
	return c.again(ctx, &c.conflicts, "compare", url.Values{}, func(line tenantLine, r *admin.RunLine) error {
		key := keyOf(r.Platform, r.Tenant)
		before := c.seen[key]
		switch {
		case r.Fault != "":
			c.fault(line.number, r.Fault)
		case r.PassedOver:
		case r.Result != inbox.Changed:
			c.fault(line.number, fmt.Sprintf("the tenant %s was printed before, with other features", inbox.ShowTenant(r.Platform, r.Tenant)))
		case before.equal:
			c.summary.Equal--
			c.found(r, inbox.Changed)
			c.seen[key] = seenTenant{state: before.state}
		}
		return nil
	})
}

// compareAgain compares once more what was not equal: a webhook may have been on its way. trusted: the command has ended well, so
// that what was found equal is settled, and what differs may be applied.
func (c *reconcileCall) compareAgain(ctx context.Context, trusted bool) error {
	return c.again(ctx, &c.spool, "compare", url.Values{"settle": {strconv.FormatBool(trusted)}}, func(line tenantLine, r *admin.RunLine) error {
		switch { // the settings of the server may have changed since the first look
		case r.Fault != "":
			c.fault(line.number, r.Fault)
			return nil
		case r.PassedOver:
			c.passOver(r)
			return nil
		}
		result := r.Result
		if result == inbox.NewTenant && c.isTwin(r) {
			result = inbox.Twin
		}
		if trusted && c.apply && (result == inbox.Differs || result == inbox.NewTenant || result == inbox.Twin && c.twins) {
			if err := c.toApply.add(tenantLine{line.number, result, line.text}); err != nil {
				return err
			}
			if c.json { // its line says whether it was applied
				c.count(result, 1)
				return nil
			}
		}
		c.found(r, result)
		return nil
	})
}

// isTwin says whether usher knows this code on another platform that the command did not print.
func (c *reconcileCall) isTwin(r *admin.RunLine) bool {
	return slices.ContainsFunc(r.Elsewhere, func(platform string) bool { _, printed := c.seen[keyOf(platform, r.Tenant)]; return !printed })
}

// findUnlisted finds the tenants that usher knows and the command did not print.
func (c *reconcileCall) findUnlisted(ctx context.Context) error {
	for after := (inbox.TenantRef{}); ; {
		query := url.Values{"run": {c.run.Run}, "platform": {after.Platform}, "tenant": {after.Tenant}}
		var known admin.RunKnown
		if err := c.post(ctx, "/api/reconcile/known?"+query.Encode(), nil, &known); err != nil {
			return err
		}
		for _, t := range known.Tenants {
			if _, printed := c.seen[keyOf(t.Platform, t.Tenant)]; !printed {
				c.found(&admin.RunLine{Compared: inbox.Compared{Platform: t.Platform, Tenant: t.Tenant}}, inbox.Unlisted)
			}
			after = t
		}
		if !known.More {
			return nil
		}
	}
}

// applyAll takes in what differs.
func (c *reconcileCall) applyAll(ctx context.Context) error {
	n := c.toApply.count
	if n == 0 {
		return nil
	}
	most := c.max
	if most < 0 {
		most = max(5, min(100, c.run.Known/10))
	}
	if most > 0 && n > most {
		if err := c.reportLeft(ctx, &c.toApply); err != nil {
			return err
		}
		return fmt.Errorf("%s would be taken in, and --max allows %s: so none was. If that is right: --max %d", count(n, "tenant"), thousands(most), n)
	}
	question := fmt.Sprintf("Take in %s? usher delivers what the billing service says to their receivers.", count(n, "tenant"))
	if c.noDeliver {
		question = fmt.Sprintf("Take in %s? usher then knows them, and delivers nothing.", count(n, "tenant"))
	}
	if !c.yes {
		yes, err := c.confirm(ctx, question)
		if err != nil {
			return err
		}
		if !yes {
			c.say("Nothing was taken in.\n")
			return c.reportLeft(ctx, &c.toApply)
		}
	}
	var full error
	var rest spool // what was not tried after that
	defer rest.close()
	query := url.Values{"no_deliver": {strconv.FormatBool(c.noDeliver)}}
	err := c.toApply.batches(func(b *batch) error {
		if full != nil {
			defer b.reset()
			return rest.addAll(b.lines)
		}
		return c.send(ctx, b, "apply", query, func(line tenantLine, r *admin.RunLine) error {
			was := line.found
			switch {
			case r.Applied:
				c.summary.Applied++
				c.left(was, -1)
			case r.Error != "":
				full = errors.New(r.Error)
			case full != nil:
				return rest.add(line)
			case r.Fault != "":
				c.fault(line.number, r.Fault)
				return nil
			case r.PassedOver:
				c.count(was, -1)
				c.passOver(r)
				return nil
			case r.LeftOut != "":
			case r.Result == inbox.Equal || r.Result == inbox.Changed: // meanwhile
				c.count(was, -1)
				c.count(r.Result, 1)
				was = r.Result
			default:
				full = c.notUnderstood(r)
			}
			if c.json || !r.Applied {
				c.report(r, was)
			}
			return nil
		})
	})
	switch {
	case err != nil:
		return err
	case full != nil:
		if err := c.reportLeft(ctx, &rest); err != nil {
			return err
		}
		return fmt.Errorf("not all were taken in: %w", full)
	}
	return c.faulty("taken in")
}

// reportLeft reports what was to be applied and is not, for --json: else that was printed before.
func (c *reconcileCall) reportLeft(ctx context.Context, s *spool) error {
	if !c.json {
		return nil
	}
	err := c.again(ctx, s, "compare", url.Values{}, func(line tenantLine, r *admin.RunLine) error {
		if r.Fault != "" {
			c.fault(line.number, r.Fault)
		} else {
			c.report(r, line.found)
		}
		return nil
	})
	return cmp.Or(err, c.faulty("compared"))
}

// end stores how the run has ended, and says so.
func (c *reconcileCall) end(complete bool, failed error) error {
	body := admin.RunEnd{Complete: complete, Summary: c.summary}
	if failed != nil {
		body.Failed = text.Clip(failed.Error(), 500)
	}
	// Also after an interruption.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var ended admin.RunEnded
	if err := c.post(ctx, "/api/reconcile/end?run="+c.run.Run, body, &ended); err != nil && failed == nil {
		failed = err
	}
	if c.json {
		numbers := c.summary
		numbers.Left = inbox.Left{} // who reads it expects a number in each member
		if err := json.NewEncoder(c.Stdout).Encode(map[string]inbox.Summary{"summary": numbers}); err != nil && failed == nil {
			failed = err
		}
	} else {
		c.sayMore()
		c.say("%s", c.conclusion(complete, failed))
		if ended.Partial {
			c.sayPartial(ctx)
		}
	}
	switch {
	case failed != nil:
		return fmt.Errorf("reconcile failed: %w", failed)
	case c.summary.Left.Count() > 0:
		return exitCode(exitDiffers)
	}
	return nil
}

// sayPartial says what a run of too few tenants leaves as it was, if there is anything.
func (c *reconcileCall) sayPartial(ctx context.Context) {
	var now status.Status
	if _, err := c.get(ctx, "/api/status", &now); err != nil {
		return
	}
	if now.Differs() && c.summary.Left.Count() == 0 {
		c.say("This run compared too few tenants to clear what an earlier one has found.\n")
	}
	if _, outages := now.Missed.Dismissible(); len(outages) > 0 {
		c.say("%s", c.commandLines("This run compared too few tenants to end the times without a gate. If its list is complete, run 'usher inbox dismiss'.\n"))
	}
}

// found counts a tenant, and reports it.
func (c *reconcileCall) found(r *admin.RunLine, result inbox.Result) {
	c.count(result, 1)
	if result != inbox.Equal {
		c.report(r, result)
	}
}

// count counts tenants of a result. What differs is left as it is, until it is applied.
func (c *reconcileCall) count(result inbox.Result, n int) {
	s := &c.summary
	*map[inbox.Result]*int{inbox.Equal: &s.Equal, inbox.Differs: &s.Differs, inbox.NewTenant: &s.New, inbox.Twin: &s.Twin, inbox.Changed: &s.Changed, inbox.Unlisted: &s.Unlisted}[result] += n
	c.left(result, n)
}

func (c *reconcileCall) left(result inbox.Result, n int) {
	switch l := &c.summary.Left; result {
	case inbox.Differs:
		l.Differs += n
	case inbox.NewTenant:
		l.New += n
	case inbox.Twin:
		l.Twin += n
	}
}

// report prints a tenant that is not equal.
func (c *reconcileCall) report(r *admin.RunLine, result inbox.Result) {
	if c.json {
		_ = json.NewEncoder(c.Stdout).Encode(struct {
			Result   inbox.Result `json:"result"`
			Platform string       `json:"platform"`
			Tenant   string       `json:"tenant"`
			Changes  []string     `json:"changes"`
			Applied  bool         `json:"applied"`
			LeftOut  string       `json:"left_out,omitempty"`
		}{result, r.Platform, r.Tenant, append([]string{}, r.Changes...), r.Applied, r.LeftOut})
		return
	}
	if c.listed[result]++; c.listed[result] > maxListed {
		return
	}
	words := strings.Join(r.Changes, ", ")
	switch {
	case r.Error != "":
		words = "not taken in: " + r.Error
	case r.LeftOut != "":
		words = "left out: " + r.LeftOut
	case result == inbox.NewTenant:
		words = cmp.Or(words, "no features")
	case result == inbox.Twin:
		others := make([]string, len(r.Elsewhere))
		for n, platform := range r.Elsewhere {
			others[n] = inbox.ShowTenant(platform, r.Tenant)
		}
		words = "usher knows " + strings.Join(others, " and ") + ", which the command did not print: is the platform right?"
	case result == inbox.Changed:
		words = "something came for it meanwhile; the next run compares it"
	case result == inbox.Unlisted:
		words = "usher knows it, and the command did not print it"
	}
	c.progress.end()
	c.say("%-8s %-24s  %s\n", result, text.Visible(inbox.ShowTenant(r.Platform, r.Tenant)), text.Visible(words))
}

// sayMore says how many tenants of each result were not listed.
func (c *reconcileCall) sayMore() {
	for _, result := range inbox.Results {
		if n := c.listed[result] - maxListed; n > 0 {
			c.say("%-8s and %s more; --json lists all\n", result, thousands(n))
		}
	}
	if c.faults > maxListed {
		fmt.Fprintf(c.Stderr, "and %s more\n", count(c.faults-maxListed, "faulty line"))
	}
}

func (c *reconcileCall) say(format string, args ...any) {
	if !c.json {
		fmt.Fprintf(c.Stdout, format, args...)
	}
}

// confirm asks a question, and says whether the answer is yes.
func (c *reconcileCall) confirm(ctx context.Context, question string) (yes bool, err error) {
	c.sayMore()
	clear(c.listed)
	out := c.Stdout
	if c.json { // standard output is for a program
		out = c.Stderr
	}
	fmt.Fprint(out, question, " [y/N] ")
	answers := make(chan string, 1)
	go func() { // a read from a terminal does not end with ctx
		answer, _ := bufio.NewReader(c.Stdin).ReadString('\n') // at the end of the input: no
		answers <- strings.ToLower(strings.TrimSpace(answer))
	}()
	select {
	case answer := <-answers:
		return answer == "y" || answer == "yes", nil
	case <-ctx.Done():
		fmt.Fprintln(out)
		return false, errInterrupted
	}
}

// conclusion says in words what was found, and what to do next.
func (c *reconcileCall) conclusion(complete bool, failed error) string {
	s, left := &c.summary, c.summary.Left
	var out strings.Builder
	if c.anyListed() {
		out.WriteByte('\n')
	}
	if !complete {
		fmt.Fprintf(&out, "Not complete: %s compared, nothing taken in.\n", count(c.compared(), "tenant"))
		return out.String()
	}
	parts := []string{are(s.Equal, "equal")}
	for _, p := range []struct {
		n          int
		one, other string
	}{{s.Differs, "1 differs", "differ"}, {s.New, "1 is new", "are new"}, {s.Twin, "1 is a twin", "are twins"}, {s.Changed, "1 has changed meanwhile", "have changed meanwhile"}} {
		switch {
		case p.n == 1:
			parts = append(parts, p.one)
		case p.n > 1:
			parts = append(parts, thousands(p.n)+" "+p.other)
		}
	}
	if s.Differs+s.New+s.Twin+s.Changed == 0 {
		switch s.Equal {
		case 0:
			out.WriteString("Nothing was compared.")
		case 1:
			out.WriteString("Nothing differs: usher knows the 1 tenant as the billing service does.")
		default:
			fmt.Fprintf(&out, "Nothing differs: usher knows all %s as the billing service does.", count(s.Equal, "tenant"))
		}
	} else {
		fmt.Fprintf(&out, "%s compared: %s.", count(c.compared(), "tenant"), strings.Join(parts, ", "))
	}
	if s.Unlisted > 0 {
		fmt.Fprintf(&out, " %s that usher knows %s not printed.", count(s.Unlisted, "tenant"), wasWere(s.Unlisted))
	}
	if s.PassedOver > 0 {
		fmt.Fprintf(&out, " %s passed over: no receiver takes their platforms.", count(s.PassedOver, "tenant"))
	}
	out.WriteByte('\n')
	switch {
	case s.Applied > 0 && c.noDeliver:
		fmt.Fprintf(&out, "%s taken in: usher knows them now, and delivers nothing.\n", count(s.Applied, "tenant"))
	case s.Applied > 0:
		fmt.Fprintf(&out, "%s taken in. To see their deliveries: %s\n", count(s.Applied, "tenant"), c.commandLine("usher inbox ls --since "+c.run.Began.UTC().Format(time.RFC3339)))
	}
	if left.Count() > 0 && !c.apply {
		flags := "--apply"
		if c.run.Known == 0 && left.New > 0 {
			out.WriteString("usher knows no tenant yet. If your receiver is right already, --apply --no-deliver makes usher know them, and delivers nothing.\n")
			flags = "--apply --no-deliver"
		}
		if n := left.Differs + left.New; n > max(5, min(100, c.run.Known/10)) {
			flags += fmt.Sprint(" --max ", n)
		}
		if left.Differs+left.New > 0 {
			fmt.Fprintf(&out, "Nothing was changed. To take in what differs or is missing:\n  %s\n", c.nextLine(flags))
		}
	}
	if left.Twin > 0 && !c.twins {
		flags := "--apply --twins"
		if c.apply {
			flags = "--twins"
		}
		fmt.Fprintf(&out, "A twin is usually a wrong platform in your list: correct it. If it is a new tenant, add %s.\n", flags)
	}
	return out.String()
}

func (c *reconcileCall) anyListed() bool {
	for _, n := range c.listed {
		if n > 0 {
			return true
		}
	}
	return false
}

// nextLine returns the command line with other flags.
func (c *reconcileCall) nextLine(flags string) string {
	line := "usher reconcile " + flags
	if !c.asOf.IsZero() {
		line += " --as-of " + c.asOf.UTC().Format(time.RFC3339)
	}
	line += " --"
	for _, arg := range c.command {
		if text.Visible(arg) != arg { // nobody could copy it
			return text.Visible(c.commandLine(line)) + " CMD ARG...  (the same command)"
		}
	}
	for _, arg := range c.command {
		line += " " + text.Quote(arg)
	}
	return text.Visible(c.commandLine(line))
}

func are(n int, what string) string {
	if n == 1 {
		return "1 is " + what
	}
	return thousands(n) + " are " + what
}

func wasWere(n int) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

// count writes a number and what it counts: 1,204 tenants.
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return thousands(n) + " " + what
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// progress says on a terminal how far something is.
type progress struct {
	stderr  io.Writer
	printed time.Time
	open    bool // the line has no end yet
}

func (p *progress) show(format string, args ...any) {
	if time.Since(p.printed) > time.Second/2 && text.IsTerminal(p.stderr) {
		p.printed, p.open = time.Now(), true
		fmt.Fprintf(p.stderr, "\r"+format, args...)
	}
}

func (p *progress) end() {
	if p.open {
		fmt.Fprintln(p.stderr)
		p.open = false
	}
}
