package command

import (
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
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"usher/internal/filelock"
	"usher/internal/guard"
	"usher/internal/serve"
	"usher/internal/settings"
	"usher/internal/text"
)

const changesUsage = `Usage: usher changes [--cursor FILE] [--follow] [--limit N] [--at URL]
                     [-- CMD ARG...]

Prints what each tenant may use, one tenant a line, as JSON: for programs that
keep a copy. {"all":"begin"} and {"all":"end"} stand around all tenants. At the
end delete from your copy all tenants that were not between them. A line with
"erased":true means: delete this tenant.

  --cursor FILE  go on where FILE says, and store there how far you are. Without
                 the file the command begins with all tenants. FILE.lock lets
                 only one 'usher changes' run, and only one CMD
  --follow       wait for more. Otherwise the command ends when there is no more
  --limit N      the most tenants that CMD gets at once: 1 to 1000, default 100
  --at URL       ask at this address, such as https://usher.example.com

With CMD the lines are CMD's standard input, page by page. FILE is replaced when
CMD has ended with 0. If CMD ends with anything else, FILE stays as it is, and
the command ends with 1; with --follow CMD gets the same page again, after 1 s,
then after twice as long each time, up to 5 min. So CMD may get a line twice,
but never an older state of a tenant after a newer one.

It calls the entitlements port of a running usher, and uses only its settings
(USHER_ENTITLEMENTS_LISTEN, USHER_ENTITLEMENTS_KEY). CMD gets no secrets of
usher. If a service manager started usher, name its settings:

  usher --env-file /etc/usher/gate.env changes --cursor FILE --follow -- CMD
`

// A changesReader reads pages of changes, and hands them over.
type changesReader struct {
	*Process
	client *serve.Client
	base   string   // the URL of the port
	shown  string   // the address as the user knows it
	file   string   // where its place is stored; may be empty
	lock   *os.File // of file, while this process uses it
	follow bool
	limit  int
	cmd    []string // gets the lines; none: they are printed
	again  bool     // this process has begun again, and has not got all tenants since

	place
}

// A place is how far a reader is, as the file has it.
type place struct {
	Cursor string `json:"cursor"`
	All    bool   `json:"all"` // a pass over all tenants is under way
}

type changesPage struct {
	Changes []json.RawMessage `json:"changes"`
	Cursor  string            `json:"cursor"`
	More    bool              `json:"more"`
}

// changesCommand is 'usher changes'.
func changesCommand(ctx context.Context, p *Process, args []string) error {
	flags := flag.NewFlagSet("changes", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	r := &changesReader{Process: p, place: place{All: true}}
	flags.StringVar(&r.file, "cursor", "", "")
	flags.BoolVar(&r.follow, "follow", false, "")
	flags.IntVar(&r.limit, "limit", 100, "")
	at := flags.String("at", "", "")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return usageError{flagProblem(flags, err)}
	case r.limit < 1 || r.limit > 1000:
		return usageErrorf("--limit must be a whole number from 1 to 1000")
	}
	if r.cmd = flags.Args(); len(r.cmd) > 0 && !slices.Contains(args[:len(args)-len(r.cmd)], "--") {
		return usageErrorf("takes no argument %q: write -- before the command, as in: usher changes -- ./update-table",
			r.cmd[0])
	}
	if err := r.connect(*at); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer func() { _ = r.lock.Close() }() // nil closes, too
	if err := r.run(ctx); ctx.Err() == nil {
		return err
	}
	return nil // it was stopped
}

// connect finds the port: at an address, or where the settings have it.
func (r *changesReader) connect(at string) error {
	e, err := settings.ReadEntitlements(r.Environ)
	if err != nil {
		return err
	}
	r.base, r.shown = serve.LocalURL, cmp.Or(at, e.Listen)
	u, err := url.Parse(at)
	switch {
	case r.shown == "":
		return usageErrorf("needs the address of the entitlements port: "+
			"set USHER_ENTITLEMENTS_LISTEN, or write --at URL%s", r.envFileHint())
	case at == "" || strings.HasPrefix(at, "unix:"):
		r.client = serve.NewClient(r.shown, "")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.User != nil:
		return usageErrorf("--at must be http://HOST:PORT, https://HOST or unix:/PATH")
	default:
		r.base = strings.TrimSuffix(at, "/")
		r.client = serve.NewClient("", "")
		r.client.Transport = &http.Transport{}
	}
	if key, _, _ := strings.Cut(e.Key.Get(), ","); key != "" {
		r.client.Header.Set(guard.KeyHeader, strings.TrimSpace(key))
	}
	// The key is for this address alone.
	r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return nil
}

// takeFile has the file for this process alone, and reads it. The command inherits the lock: if this process
// is killed, the next one waits for the command's end, which may still write what is old by then.
func (r *changesReader) takeFile() (err error) {
	if r.file == "" || r.lock != nil {
		return nil
	}
	if r.lock, err = filelock.Take(r.file + ".lock"); errors.Is(err, filelock.ErrInUse) {
		return fmt.Errorf("%s is in use by another 'usher changes', or by a command that one has left", r.file)
	}
	if err == nil {
		err = r.readPlace()
	}
	if err != nil {
		return finalError{err}
	}
	return nil
}

func (r *changesReader) readPlace() error {
	content, err := os.ReadFile(r.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(content, &r.place)
	}
	if err == nil && r.Cursor == "" {
		err = errors.New("it has no cursor")
	}
	if err != nil {
		return fmt.Errorf("cannot read the cursor in %s: %w. Delete the file to begin with all tenants", r.file, err)
	}
	return nil
}

const (
	// changesWait is how long an answer may wait for changes, in seconds.
	changesWait = 50
	// Pauses after a failure double up to these: usher is soon back, and a command that fails needs somebody.
	mostAskPause     = 30 * time.Second
	mostCommandPause = 5 * time.Minute
)

// run reads and hands over until there is nothing more, or something fails for good.
func (r *changesReader) run(ctx context.Context) error {
	var pause time.Duration
	more := true
	for r.follow || more {
		wait := changesWait
		if more || r.All {
			wait = 0
		}
		most := mostAskPause
		var page changesPage
		err := r.takeFile()
		if err == nil {
			page, err = r.ask(ctx, wait)
		}
		if errors.Is(err, errCursorUnknown) {
			again := r.again // there may be two inboxes at this address, each with cursors of its own
			r.place, r.again, more = place{All: true}, true, true
			if !again {
				fmt.Fprintln(r.Stderr, "usher:", err)
				continue
			}
		} else if err == nil {
			most = mostCommandPause
			err = r.handOver(ctx, page)
		}
		if final := new(finalError); err == nil {
			pause, more, r.again = 0, page.More, r.again && r.All
			continue
		} else if !r.follow || ctx.Err() != nil || errors.As(err, final) {
			return err
		}
		pause = min(max(2*pause, time.Second), most)
		fmt.Fprintf(r.Stderr, "usher: %v. Trying again in %v.\n", err, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil
}

// A finalError is one that waiting does not end.
type finalError struct{ error }

var errCursorUnknown = errors.New("this inbox cannot go on from the cursor: all tenants follow")

// ask reads the next page.
func (r *changesReader) ask(ctx context.Context, wait int) (page changesPage, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(wait)*time.Second+30*time.Second)
	defer cancel()
	query := url.Values{"limit": {strconv.Itoa(r.limit)}, "wait": {strconv.Itoa(wait)}}
	if r.Cursor != "" {
		query.Set("after", r.Cursor)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+"/v1/changes?"+query.Encode(), nil)
	if err != nil {
		return page, finalError{err}
	}
	req.Header = r.client.Header
	answer, err := r.client.Do(req)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err // without method and URL: the user typed neither
	}
	if err != nil {
		return page, fmt.Errorf("cannot reach usher at %s: %w", r.shown, err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return page, fmt.Errorf("the answer of usher at %s ended too early: %w", r.shown, err)
	case answer.StatusCode == http.StatusGone:
		return page, errCursorUnknown
	case answer.StatusCode != http.StatusOK:
		return page, r.invalid(answer.StatusCode, body)
	}
	if err := json.Unmarshal(body, &page); err != nil || page.Cursor == "" {
		return page, finalError{fmt.Errorf("%s is not usher, or another version of it", r.shown)}
	}
	return page, nil
}

// invalid is the error for an answer that is no page.
func (r *changesReader) invalid(status int, body []byte) error {
	var problem struct{ Error struct{ Message string } }
	_ = json.Unmarshal(body, &problem)
	said := text.Visible(text.Clip(cmp.Or(problem.Error.Message, "is that usher?"), 500))
	err := fmt.Errorf("%s answered %d: %s", r.shown, status, strings.TrimSuffix(said, "."))
	if status < 500 && status != http.StatusTooManyRequests {
		return finalError{err}
	}
	return err
}

// handOver prints the lines of a page, or gives them to the command, and then stores the place behind it.
func (r *changesReader) handOver(ctx context.Context, page changesPage) error {
	var lines bytes.Buffer
	if r.All && r.Cursor == "" {
		lines.WriteString("{\"all\":\"begin\"}\n")
	}
	for _, change := range page.Changes {
		lines.Write(change)
		lines.WriteByte('\n')
	}
	next := place{page.Cursor, r.All && page.More}
	if r.All && !next.All {
		lines.WriteString("{\"all\":\"end\"}\n")
	}
	if lines.Len() > 0 {
		if err := r.give(ctx, lines.Bytes()); err != nil {
			return err
		}
	}
	if r.file != "" && next != r.place {
		content, err := json.Marshal(next)
		if err == nil {
			err = replaceFile(r.file, append(content, '\n'))
		}
		if err != nil {
			return finalError{fmt.Errorf("cannot store the cursor: %w", err)}
		}
	}
	r.place = next
	return nil
}

// give gives lines to the command, or prints them.
func (r *changesReader) give(ctx context.Context, lines []byte) error {
	if len(r.cmd) == 0 {
		if _, err := r.Stdout.Write(lines); err != nil {
			return finalError{err}
		}
		return nil
	}
	// The command gets the end of a pipe itself: something that it has started, and that reads nothing, keeps nobody.
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	defer from.Close()
	go func() {
		_, _ = to.Write(lines) // the command need not read them
		to.Close()
	}()
	j := newJob(r.Process, r.cmd)
	j.Stdin, j.Holds = from, r.lock
	code, err := j.RunAlone(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s ended with %d", text.Quote(r.cmd[0]), code)
	}
	return err
}

// replaceFile replaces a file, whole or not at all.
func replaceFile(name string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*") // its mode is 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
