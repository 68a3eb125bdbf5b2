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
	"math"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"usher/internal/admin"
	"usher/internal/inbox"
	"usher/internal/job"
	"usher/internal/lane"
	"usher/internal/settings"
	"usher/internal/text"
)

const reconcileUsage = `Usage: usher reconcile [--apply [--no-deliver] [--twins] [--max N] [--yes]]
                       [--settle TIME] [--as-of TIME] [--partial] [--json]
                       -- CMD ARG...

Finds changes that usher does not know, because their webhook was lost. CMD asks
the billing service, and prints one tenant on a line: the payload of a webhook
({"tenant":{"code":...},"change":{"features":[...]}}), or a whole webhook.
usher compares that with what it knows, and says what differs.

It needs a running usher with a gate and an inbox. CMD is a script of yours, see
examples/reconcile.

CMD runs as under 'usher exec': it calls the billing service at $USHER_URL,
without a token. If it makes no successful call there, because it prints a saved
list, or if there is no USHER_BASE_URL, say with --as-of how old the list is.

  --apply        take in what differs or is new: usher makes a webhook of each,
                 and delivers it. It says how many and asks first
  --no-deliver   with --apply: take them in, and deliver nothing; for the first
                 day, with a receiver that is right already
  --twins        with --apply: also take in tenants whose code usher knows on
                 another platform
  --max N        with --apply: if more than N would be taken in, take in none.
                 By default a tenth of the tenants that usher knows, but 5 at
                 least and 100 at most; 0: any number
  --yes          do not ask
  --settle TIME  how long to wait before CMD starts (default 5s). Choose more if
                 the service's own lists are further behind its webhooks
  --as-of TIME   how old the list is: 2026-01-31T08:00:00Z, or 90m, 3d ago, or
                 now. Tenants of which something came later are not compared
  --partial      the list is not meant to be whole: no tenant is unlisted
  --json         lines of JSON, the last one with the numbers

The results:

  equal     usher answers with the same features
  differs   usher answers with other features
  new       usher does not know the tenant, or cannot read its features
  twin      as new, but usher knows this code on another platform: usually CMD
            prints a wrong one
  changed   something newer than the list came for it: run it again, with a
            newer list
  unlisted  CMD did not print it, and usher says that it may use something: a
            lost cancellation (then print it with "features":[]), or a list that
            is not whole. Nothing is done

A line is passed over if no receiver takes its platform.

usher reports what a run finds about a tenant until a later run or webhook
settles it, or you run 'usher inbox dismiss --tenant TENANT'.

Exit code 0: all that could be compared is equal now. 3: a tenant differs, is
new, a twin or unlisted. 1: it failed, and nothing was taken in, or not all.
2: wrong settings or usage.

It uses the settings of the billing service and of the admin port. With the
units of deploy/systemd, run as root: systemctl start usher-reconcile. Or:

  USHER_CLIENT_SECRET_FILE=/etc/usher/client-secret \
    usher --env-file /etc/usher/usher.env --env-file /etc/usher/gate.env \
    reconcile -- ./tenants.sh
`

// reconcileCall is one 'usher reconcile'.
type reconcileCall struct {
	*adminAPI
	apply, noDeliver, twins, yes, json, partial bool

	max     int // -1: the default
	settle  time.Duration
	asOf    time.Time
	now     bool // --as-of now
	command []string

	job     *job.Job
	calls   bool // the command can call the billing service
	signals <-chan os.Signal

	begun    admin.RunLine
	file     *os.File            // what the command has printed
	size     int64               // until it ended
	toApply  map[int]lane.Result // what the comparison said of the lines to take in, by their numbers
	listed   map[lane.Result]int
	progress progress
}

// reconcileCommand is 'usher reconcile'.
func reconcileCommand(ctx context.Context, p *Process, args []string) (err error) {
	c := &reconcileCall{progress: progress{stderr: p.Stderr}}
	c.toApply, c.listed = make(map[int]lane.Result), make(map[lane.Result]int)
	if err := c.parse(args, time.Now()); err != nil {
		return err
	}
	c.job, c.calls = newJob(p, c.command), settings.Environment(p.Environ)["USHER_BASE_URL"] != ""
	stdin, _ := p.Stdin.(*os.File)
	switch {
	case c.apply && !c.yes && (stdin == nil || !text.IsTerminal(stdin)):
		return usageErrorf("--apply asks before it takes anything in, and there is no terminal: use --yes")
	case !c.calls && c.asOf.IsZero() && !c.now:
		return fmt.Errorf("reconcile failed: USHER_BASE_URL is not set. "+
			"If CMD prints a saved list, say with --as-of how old that is. "+
			"If CMD calls the billing service, set it, for example by a file: %s",
			p.commandLine("usher --env-file FILE reconcile ..."))
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
	forget, err := c.openFile()
	if err != nil {
		return err
	}
	defer forget()
	// Before the command starts, because it may survive a signal that means usher, too.
	signals, stop := job.Notify(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	c.signals = signals
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if err := c.begin(ctx, end); err != nil {
		return err
	}
	run, err := c.runAll(ctx, end)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return c.end(run, err)
}

func (c *reconcileCall) parse(args []string, now time.Time) error {
	f := flag.NewFlagSet("reconcile", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.BoolVar(&c.apply, "apply", false, "")
	f.BoolVar(&c.noDeliver, "no-deliver", false, "")
	f.BoolVar(&c.twins, "twins", false, "")
	f.BoolVar(&c.yes, "yes", false, "")
	f.BoolVar(&c.json, "json", false, "")
	f.BoolVar(&c.partial, "partial", false, "")
	f.IntVar(&c.max, "max", -1, "")
	f.DurationVar(&c.settle, "settle", 5*time.Second, "")
	f.Func("as-of", "", func(s string) (err error) {
		if c.now = s == "now"; !c.now {
			c.asOf, err = parseWhen(s, now)
		}
		if errors.Is(err, errWhen) {
			err = fmt.Errorf("%w, or now", err)
		}
		if err == nil && c.asOf.After(now) {
			err = errors.New("it is in the future: say when the list was made")
		}
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
	case c.settle < 0:
		return usageErrorf("--settle %v: write how long to wait, 0s for not at all", c.settle)
	case len(c.command) == 0:
		return usageErrorf("needs a command that prints the tenants, as in: usher reconcile -- ./tenants.sh")
	case len(c.command) == len(args) || args[len(args)-len(c.command)-1] != "--":
		// So that nobody takes a flag behind CMD for one of usher's.
		return usageErrorf("write -- before the command, as in: usher reconcile -- ./tenants.sh")
	}
	return nil
}

// flags returns the flags that say what was asked for.
func (c *reconcileCall) flags() string {
	var all []string
	for _, f := range []struct {
		on   bool
		flag string
	}{
		{c.apply, "--apply"}, {c.noDeliver, "--no-deliver"}, {c.partial, "--partial"}, {c.twins, "--twins"},
		{c.max >= 0, fmt.Sprint("--max ", c.max)}, {c.settle != 5*time.Second, fmt.Sprint("--settle ", c.settle)},
		{c.now, "--as-of now"}, {!c.asOf.IsZero(), "--as-of " + c.asOf.UTC().Format(time.RFC3339)},
	} {
		if f.on {
			all = append(all, f.flag)
		}
	}
	return strings.Join(all, " ")
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

// begin begins the run. Its request stays open: when it ends, so does the run.
func (c *reconcileCall) begin(ctx context.Context, end context.CancelCauseFunc) error {
	answer, err := c.stream(ctx, admin.RunCall{AsOf: c.asOf, About: c.flags()}, http.NoBody)
	if err != nil {
		return err
	}
	if c.begun, err = answer.next(); err != nil || c.begun.Run == nil {
		return cmp.Or(err, fmt.Errorf("%s is another version of usher", c.listen))
	}
	go func() {
		defer answer.Close()
		for err == nil {
			_, err = answer.next()
		}
		end(err)
	}()
	return nil
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
func (c *reconcileCall) runAll(ctx context.Context, end context.CancelCauseFunc) (*lane.Run, error) {
	if c.asOf.IsZero() && c.settle > 0 {
		c.progress.show("waiting %v (--settle), then running the command", c.settle)
		c.progress.end()
		select {
		case <-time.After(c.settle):
		case <-c.signals:
			return nil, errInterrupted
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	failed, err := c.runCommand(ctx)
	if err != nil {
		return nil, err
	}
	for len(c.signals) > 0 {
		<-c.signals
	}
	go func() { // the next one ends the run
		select {
		case <-c.signals:
			end(errInterrupted)
		case <-ctx.Done():
		}
	}()
	run, err := c.compareAll(ctx, failed)
	if err != nil || !run.Ended.IsZero() {
		return run, err
	}
	return c.applyAll(ctx, run)
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
	case c.job.Calls() == 0 && c.asOf.IsZero() && !c.now:
		return "the command made no successful call through $USHER_URL, so nobody knows how old its list is: " +
			"add --as-of (--as-of now if the list is new)", nil
	}
	return "", nil
}

// pass sends lines to the server, and returns the run as it is then. each gets what comes of each that is not
// equal.
func (c *reconcileCall) pass(ctx context.Context, p inbox.Pass, lines io.Reader, each func(*lane.Compared)) (
	*lane.Run, error) {
	p.Run = c.begun.Run.ID
	answer, err := c.stream(ctx, admin.RunCall{Pass: p}, lines)
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
func (c *reconcileCall) compareAll(ctx context.Context, failed string) (*lane.Run, error) {
	pass := inbox.Pass{Mode: lane.ToCompare, Failed: text.Clip(failed, 500), Partial: c.partial}
	pass.Last = !c.apply || failed != ""
	return c.pass(ctx, pass, io.NewSectionReader(c.file, 0, c.size), func(r *lane.Compared) {
		differs := r.Result == lane.Differs || r.Result == lane.NewTenant || r.Result == lane.Twin && c.twins
		if !pass.Last && differs {
			c.toApply[r.Line] = r.Result
			if c.json { // its line says whether it was applied
				return
			}
		}
		c.report(r)
	})
}

// applyAll takes in what differs, if it may, and ends the run.
func (c *reconcileCall) applyAll(ctx context.Context, run *lane.Run) (*lane.Run, error) {
	pass := inbox.Pass{Mode: lane.ToApply, Failed: run.Failed, Last: true}
	if c.noDeliver {
		pass.Mode = lane.ToStore
	}
	switch n, most := len(c.toApply), c.most(); {
	case run.Failed != "":
	case n > most:
		pass.Failed = fmt.Sprintf("%s would be taken in, but --max allows only %d, so none was. If your list is right, "+
			"add --max %d", count(n, "tenant"), most, n)
	case n > 0 && !c.yes:
		yes, err := c.confirmed(ctx, n)
		if err != nil {
			return nil, err
		}
		if !yes {
			pass.Mode = lane.ToSee
			c.say("Nothing was taken in.\n")
		}
	}
	return c.pass(ctx, pass, c.linesToApply(), func(r *lane.Compared) {
		if r.Result == lane.NewTenant || r.Result == lane.Twin { // these lines alone do not say which
			r.Result = c.toApply[r.Line]
		}
		leftOut := !r.Applied && pass.Mode.Applies() && pass.Failed == ""
		if c.json || leftOut || r.Result == lane.Faulty {
			c.report(r)
		}
	})
}

func (c *reconcileCall) defaultMax() int { return max(5, min(100, c.begun.Known/10)) }

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
			if line, err = in.ReadBytes('\n'); c.toApply[number] != "" {
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
func (c *reconcileCall) end(run *lane.Run, failed error) error {
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
	case run.Left > 0:
		return exitCode(exitDiffers)
	}
	return nil
}
