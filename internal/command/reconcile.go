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
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"syscall"
	"time"

	"usher/internal/admin"
	"usher/internal/inbox"
	"usher/internal/job"
	"usher/internal/lane"
	"usher/internal/settings"
	"usher/internal/text"
)

const reconcileUsage = `Usage: usher reconcile [--since WHEN] [--apply [--yes]] [--json]
       usher reconcile [--apply [--no-deliver] [--max N] [--yes]] [--partial]
                       [--json] -- CMD ARG...

Finds changes that usher does not know, because their webhook was lost. It needs
a running usher with a gate and an inbox.

Without CMD usher reads the billing service's webhook log of the last 30 days,
as catch-up does, and says what differs. usher needs USHER_WEBHOOK_CATCH_UP_URL
for it. What no webhook ever said needs CMD: changes while the webhooks were
switched off, or from the time before usher.

CMD asks the billing service, and prints one tenant on a line: the payload of a
webhook ({"tenant":{"code":...},"change":{"features":[...]}}), or a whole
webhook. usher compares that with what it knows. It is a script of yours, see
examples/reconcile. usher waits 5 seconds first, because a list may lag.

CMD runs as under 'usher exec': it calls the billing service at $USHER_URL,
without a token. It must ask now: a saved list is no answer.

  --apply        take in what differs or is new: usher makes a webhook of each,
                 and delivers it. It says how many and asks first
  --yes          do not ask
  --json         lines of JSON, the last one with the numbers

Without CMD:

  --since WHEN   read the log back to 12h (or 2026-01-31T08:00), 30 days at most

With CMD:

  --no-deliver   with --apply: take them in, and deliver nothing; for the first
                 day, with a receiver that is right already
  --max N        with --apply: if more than N would be taken in, take in none.
                 By default a tenth of the tenants that usher knows, but 5 at
                 least and 100 at most; 0: any number
  --partial      the list is not meant to be whole: no tenant is unlisted

The results:

  equal     usher answers with the same features
  differs   usher answers with other features
  new       usher does not know the tenant, or cannot read its features
  left      not compared: something came for it since CMD began to ask, or
            somebody erased it. Without CMD: it changed, or something came for
            it, less than a minute ago; usher looks again by itself
  unlisted  usher says that the tenant may use something, and CMD did not print
            it. If it was cancelled, print it with "features":[]

If a line is faulty, a tenant is printed twice differently, a new tenant's code
is known on another platform that CMD did not print, or CMD fails or prints
nothing, usher takes nothing in.

Exit code 0: all that could be compared is equal now. 3: a tenant differs, is
new or unlisted. 1: it failed, and nothing was taken in, or not all. 2: wrong
settings or usage.

It uses the settings of the admin port and, with CMD, of the billing service.
With the units of deploy/systemd, run as root: systemctl start usher-reconcile.
Or:

  USHER_CLIENT_SECRET_FILE=/etc/usher/client-secret \
    usher --env-file /etc/usher/usher.env --env-file /etc/usher/gate.env \
    reconcile -- ./tenants.sh
`

// listLag is how long usher waits after the mark: the service's lists may be so far behind its webhooks.
var listLag = 5 * time.Second // tests do not wait

// reconcileCommand is 'usher reconcile'.
func reconcileCommand(ctx context.Context, p *Process, args []string) (err error) {
	c := &reconcileCall{progress: progress{stderr: p.Stderr}}
	c.toApply, c.listed = make(map[int]lane.Compared), make(map[lane.Result]int)
	if err := c.parse(args); err != nil {
		return err
	}
	if !c.readsLog() {
		c.job = newJob(p, c.command)
	}
	c.calls = !c.readsLog() && settings.Environment(p.Environ)["USHER_BASE_URL"] != ""
	stdin, _ := p.Stdin.(*os.File)
	if c.apply && !c.yes && (stdin == nil || !text.IsTerminal(stdin)) {
		return usageErrorf("--apply asks before it takes anything in, and there is no terminal: use --yes")
	}
	if c.calls {
		if err := readOutbound(p, c.job); err != nil {
			return err
		}
	}
	if c.adminAPI, err = newAdminAPI(p); err != nil {
		return err
	}
	c.client.Timeout = 0 // the calls last as long as the run
	if !c.readsLog() {
		forget, err := c.openFile()
		if err != nil {
			return err
		}
		defer forget()
	}
	// Before the command starts, because it may survive a signal that means usher, too.
	signals, stop := job.Notify(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	c.signals = signals
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if err := c.begin(ctx); err != nil {
		return err
	}
	run, err := c.runAll(ctx, end)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return c.end(run, err)
}

func (c *reconcileCall) parse(args []string) error {
	f := flag.NewFlagSet("reconcile", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.BoolVar(&c.apply, "apply", false, "")
	f.BoolVar(&c.noDeliver, "no-deliver", false, "")
	f.BoolVar(&c.yes, "yes", false, "")
	f.BoolVar(&c.json, "json", false, "")
	f.BoolVar(&c.partial, "partial", false, "")
	f.IntVar(&c.max, "max", -1, "")
	f.Func("since", "", func(typed string) (err error) {
		now := time.Now()
		if c.since, err = parseWhen(typed, now); err == nil && c.since.After(now) {
			err = errors.New("this time is still to come")
		}
		c.typed = typed
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
	for _, name := range []string{"no-deliver", "max", "yes"} {
		if given[name] && !c.apply {
			return usageErrorf("--%s is only for --apply", name)
		}
	}
	for _, name := range []string{"no-deliver", "max", "partial"} {
		if given[name] && c.readsLog() {
			return usageErrorf("--%s needs a command that prints the tenants, as in: usher reconcile -- ./tenants.sh", name)
		}
	}
	switch {
	case c.readsLog() && len(args) > 0 && args[len(args)-1] == "--": // a script whose variable is empty
		return usageErrorf("needs a command after --, as in: usher reconcile -- ./tenants.sh")
	case c.readsLog():
	case given["since"]:
		return usageErrorf("--since is for the webhook log, not for a command")
	case given["max"] && c.max < 0:
		return usageErrorf("--max %d: write a whole number, 0 for any", c.max)
	case len(c.command) == len(args) || args[len(args)-len(c.command)-1] != "--":
		// So that nobody takes a flag behind CMD for one of usher's.
		return usageErrorf("write -- before the command, as in: usher reconcile -- ./tenants.sh")
	}
	return nil
}

// openFile makes the file for what the command prints: for the user alone, and without a name.
func (c *reconcileCall) openFile() (forget func(), err error) {
	if c.file, err = os.CreateTemp("", "usher-reconcile-*"); err != nil { // mode 0600
		return nil, err
	}
	named := os.Remove(c.file.Name()) != nil // Windows cannot do that while it is open
	return func() {
		c.file.Close()
		if named {
			_ = os.Remove(c.file.Name())
		}
	}, nil
}

// errInterrupted is why a run failed that a signal has ended.
var errInterrupted = errors.New("interrupted")

// begin begins the run.
func (c *reconcileCall) begin(ctx context.Context) error {
	answer, err := c.stream(ctx, admin.RunCall{About: c.flags(), Log: c.readsLog()}, http.NoBody)
	if err != nil {
		return err
	}
	defer answer.Close()
	if c.begun, err = answer.next(); err == nil && c.begun.Run == nil {
		err = fmt.Errorf("%s is another version of usher", c.listen)
	}
	return err
}

// A runAnswer reads the lines of an answer.
type runAnswer struct {
	io.Closer
	*json.Decoder
}

func (a *runAnswer) next() (line admin.RunLine, err error) {
	if err = a.Decode(&line); err != nil {
		return line, fmt.Errorf("the connection to usher has ended, and so has this run: %w. "+
			"'usher inbox actions' shows what was done", err)
	}
	if line.Error != "" {
		err = errors.New(text.Visible(line.Error))
	}
	return line, err
}

// stream makes a call of a run.
func (c *reconcileCall) stream(ctx context.Context, asked admin.RunCall, list io.Reader) (*runAnswer, error) {
	first, _ := json.Marshal(asked) // strings and a time
	body := io.MultiReader(bytes.NewReader(append(first, '\n')), list)
	resp, err := c.fetch(ctx, http.MethodPost, "/api/reconcile", body)
	if err != nil {
		return nil, err
	}
	return &runAnswer{resp.Body, json.NewDecoder(resp.Body)}, nil
}

// runAll runs the command, compares what it has printed, and takes in what may be taken in.
func (c *reconcileCall) runAll(ctx context.Context, end context.CancelCauseFunc) (*inbox.Run, error) {
	if c.readsLog() {
		c.endOnSignal(ctx, end)
		return c.readLog(ctx)
	}
	c.progress.show("waiting %v, because the service's lists may lag, then running the command", listLag)
	c.progress.end()
	select {
	case <-time.After(listLag):
	case <-c.signals:
		return nil, errInterrupted
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	failed, err := c.runCommand(ctx)
	if err != nil {
		return nil, err
	}
	for len(c.signals) > 0 {
		<-c.signals
	}
	c.endOnSignal(ctx, end)
	run, err := c.compareAll(ctx, failed)
	if err != nil || !c.apply || run.Failed != "" {
		return run, err
	}
	return c.applyAll(ctx, run)
}

// endOnSignal has the next signal end the run.
func (c *reconcileCall) endOnSignal(ctx context.Context, end context.CancelCauseFunc) {
	go func() {
		select {
		case <-c.signals:
			end(errInterrupted)
		case <-ctx.Done():
		}
	}()
}

// readLog asks usher to read the billing service's webhook log: to compare, and once more to take in what differs.
func (c *reconcileCall) readLog(ctx context.Context) (*inbox.Run, error) {
	mode, show := lane.ToCompare, c.report
	if c.apply {
		mode = lane.ToApply
	}
	if c.apply && !c.yes {
		run, err := c.pass(ctx, inbox.Pass{Mode: lane.ToCompare}, http.NoBody, func(r *lane.Compared) {
			if !c.json { // its line says whether it was applied
				c.report(r)
			}
		})
		if err != nil {
			return nil, err
		}
		n := run.Found.Open()
		yes := n > 0 && run.Failed == ""
		if yes {
			if yes, err = c.confirmed(ctx, n); err != nil {
				return nil, err
			}
		}
		switch {
		case yes:
			show = func(r *lane.Compared) {
				if c.json || !r.Applied {
					c.report(r)
				}
			}
		case c.json:
			mode = lane.ToCompare
		default:
			if n > 0 {
				c.say("Nothing was taken in.\n")
			}
			return run, nil
		}
	}
	return c.pass(ctx, inbox.Pass{Mode: mode}, http.NoBody, show)
}

// runCommand runs the command, and says why what it has printed cannot be trusted; empty: it can.
func (c *reconcileCall) runCommand(ctx context.Context) (failed string, err error) {
	start := c.job.Run
	if !c.calls {
		start = c.job.RunAlone
	}
	c.job.Stdout = c.file
	code, notStarted := start(ctx)
	info, err := c.file.Stat()
	if err = cmp.Or(err, context.Cause(ctx)); err != nil {
		return "", err
	}
	c.size = info.Size()
	switch {
	case notStarted != nil:
		return "cannot start the command: " + notStarted.Error(), nil
	case code != 0:
		return fmt.Sprint("the command failed: its exit code is ", code), nil
	case len(c.signals) > 0:
		return errInterrupted.Error(), nil
	case c.size == 0:
		return "the command printed nothing", nil
	}
	return "", nil
}

// pass sends lines to the server, and returns the run as it is then. each gets what comes of each that is not
// equal.
func (c *reconcileCall) pass(ctx context.Context, p inbox.Pass, lines io.Reader, each func(*lane.Compared)) (
	*inbox.Run, error) {
	p.Run = c.begun.Run.ID
	answer, err := c.stream(ctx, admin.RunCall{Pass: p, Log: c.readsLog(), Since: c.since}, lines)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	defer c.progress.end()
	for {
		switch line, err := answer.next(); {
		case err != nil:
			return nil, err
		case line.Tenant != nil:
			each(line.Tenant)
		case line.Compared > 0:
			c.progress.show("%s compared", count(line.Compared, "tenant"))
		case line.Run != nil:
			return line.Run, nil
		}
	}
}

// compareAll compares all lines.
func (c *reconcileCall) compareAll(ctx context.Context, failed string) (*inbox.Run, error) {
	pass := inbox.Pass{Mode: lane.ToCompare, Failed: text.Clip(failed, 500), Partial: c.partial}
	lines := io.NewSectionReader(c.file, 0, c.size)
	run, err := c.pass(ctx, pass, lines, func(r *lane.Compared) {
		if c.apply && failed == "" && (r.Result == lane.Differs || r.Result == lane.NewTenant) {
			c.toApply[r.Line] = *r
			if c.json { // its line says whether it was applied
				return
			}
		}
		c.report(r)
	})
	if err == nil && run.Failed != "" { // then none is applied
		for _, line := range slices.Sorted(maps.Keys(c.toApply)) {
			if r := c.toApply[line]; c.json {
				c.report(&r)
			}
		}
	}
	return run, err
}

// applyAll takes in what differs, if it may. It returns the run with what both passes have found.
func (c *reconcileCall) applyAll(ctx context.Context, run *inbox.Run) (*inbox.Run, error) {
	pass := inbox.Pass{Mode: lane.ToApply, Rest: !c.partial && run.Found[lane.Unlisted] == 0}
	if c.noDeliver {
		pass.Mode = lane.ToStore
	}
	switch n, most := len(c.toApply), c.most(); {
	case n == 0:
		return run, nil
	case n > most:
		pass.Failed = fmt.Sprintf("%s would be taken in, but --max allows only %d, so none was. If your list is right, "+
			"add --max %d", count(n, "tenant"), most, n)
	case !c.yes:
		yes, err := c.confirmed(ctx, n)
		if err != nil {
			return nil, err
		}
		if !yes {
			pass.Mode, pass.Partial = lane.ToCompare, true
			c.say("Nothing was taken in.\n")
		}
	}
	applied, err := c.pass(ctx, pass, c.linesToApply(), func(r *lane.Compared) {
		notDone := !r.Applied && pass.Mode.Applies() && pass.Failed == ""
		if c.json || notDone {
			c.report(r)
		}
	})
	if err != nil {
		return nil, err
	}
	for _, result := range []lane.Result{lane.Differs, lane.NewTenant} { // something may have come since they were compared
		run.Found[result] = 0
	}
	for result, n := range applied.Found {
		run.Found[result] += n
	}
	run.Failed = applied.Failed
	return run, nil
}

// most is how many may be taken in.
func (c *reconcileCall) most() int {
	if c.max < 0 {
		return c.defaultMax()
	}
	return cmp.Or(c.max, math.MaxInt)
}

// confirmed asks whether to take in so many tenants.
func (c *reconcileCall) confirmed(ctx context.Context, n int) (bool, error) {
	c.sayMore()
	question, out := "Take in %s? usher makes a webhook of each, and delivers it to the receiver.", c.Stdout
	if c.noDeliver {
		question = "Take in %s? usher delivers nothing, but answers by what the billing service says."
	}
	if c.json { // standard output is for a program
		out = c.Stderr
	}
	return c.confirms(ctx, out, fmt.Sprintf(question, count(n, "tenant")))
}

// linesToApply reads the file again. Lines that are not to be taken in are empty, so that the others keep
// their numbers.
func (c *reconcileCall) linesToApply() io.Reader {
	r, w := io.Pipe()
	go func() {
		in := bufio.NewReaderSize(io.NewSectionReader(c.file, 0, c.size), 64<<10)
		out := bufio.NewWriterSize(w, 64<<10)
		var err error
		for number := 1; err == nil; number++ {
			var line []byte
			if line, err = in.ReadBytes('\n'); c.toApply[number].Result != "" {
				_, _ = out.Write(bytes.TrimSpace(line)) // Flush says whether it could
			}
			_ = out.WriteByte('\n')
		}
		if errors.Is(err, io.EOF) {
			err = out.Flush()
		}
		w.CloseWithError(err)
	}()
	return r
}

// end says how the run has ended.
func (c *reconcileCall) end(run *inbox.Run, failed error) error {
	if failed == nil && run.Failed != "" {
		failed = errors.New(run.Failed)
	}
	switch {
	case c.json && run != nil:
		numbers := make(lane.Counts) // one of each
		for _, result := range lane.Results {
			numbers[result] = run.Found[result]
		}
		failed = cmp.Or(failed, json.NewEncoder(c.Stdout).Encode(map[string]any{"summary": numbers}))
	case run != nil:
		c.sayMore()
		c.say("%s", c.conclusion(run))
	}
	switch {
	case failed != nil:
		return fmt.Errorf("reconcile failed: %w", failed)
	case run.Found.Open() > 0:
		return exitCode(exitDiffers)
	}
	return nil
}
