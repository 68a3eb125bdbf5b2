package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"usher/internal/admin"
	"usher/internal/inbox/store"
	"usher/internal/text"
)

// accept takes in what was refused.
func (a *adminAPI) accept(ctx context.Context, p Process, o *inboxOptions) error {
	var failed error
	for _, id := range o.ids {
		var done admin.Accepted
		_, err := a.call(ctx, http.MethodPost, fmt.Sprintf("/api/webhooks/%s/accept?force=%t", id, o.force), nil, &done)
		var refused *apiError
		switch {
		case err == nil:
			fmt.Fprintf(p.Stdout, "%s accepted: its new id is %s\n", id, done.ID)
			continue
		case errors.As(err, &refused) && refused.Latest != nil:
			fmt.Fprintf(p.Stderr, "%s not accepted: %s of the same tenant is newer. Use --force to take it in anyway.\n", id, refused.Latest.ID)
		default:
			fmt.Fprintf(p.Stderr, "%s not accepted: %v\n", id, err)
		}
		failed = errAlreadySaid
	}
	return failed
}

// patient is a client for what may take long.
func (a *adminAPI) patient() *http.Client {
	c := *a.client
	c.Timeout = 0
	return &c
}

// export writes the inbox to standard output.
func (a *adminAPI) export(ctx context.Context, p Process, _ *inboxOptions) error {
	if text.IsTerminal(p.Stdout) {
		return errors.New("write it to a file: usher inbox export > inbox.jsonl")
	}
	resp, err := a.do(ctx, a.patient(), http.MethodGet, "/api/export", "application/json", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return a.refused(resp.StatusCode, raw)
	}
	from := &counter{r: resp.Body, p: &p}
	_, err = io.Copy(p.Stdout, from)
	from.end()
	if err != nil {
		return fmt.Errorf("the export ended too early and is not complete: %w", err)
	}
	return nil
}

// imports reads a file into the inbox.
func (a *adminAPI) imports(ctx context.Context, p Process, o *inboxOptions) error {
	var from io.Reader = p.Stdin
	if o.file != "-" {
		f, err := os.Open(o.file)
		if err != nil {
			return err
		}
		defer f.Close()
		from = f
	}
	counted := &counter{r: from, p: &p}
	resp, err := a.do(ctx, a.patient(), http.MethodPost, fmt.Sprintf("/api/import?skip_faulty=%t", o.skip), "application/x-ndjson", io.NopCloser(counted))
	counted.end()
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("the answer ended too early; 'usher inbox ls' shows whether it was done: %w", err)
	case resp.StatusCode != http.StatusOK:
		return a.refused(resp.StatusCode, raw)
	}
	var done store.Imported
	if err := json.Unmarshal(raw, &done); err != nil {
		return fmt.Errorf("%s is not an usher, or not of this version: %w", a.url, err)
	}
	for _, line := range done.Faulty {
		fmt.Fprintln(p.Stderr, "left out:", visible(line))
	}
	if done.Known > 0 {
		fmt.Fprintf(p.Stderr, "skipped %s of tenants that usher already knew\n", plural(done.Known, "webhook"))
	}
	fmt.Fprintf(p.Stdout, "imported %s and %s\n", plural(done.Webhooks, "webhook"), plural(done.Snapshots, "snapshot"))
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

// actions lists what people did.
func (a *adminAPI) actions(ctx context.Context, p Process, o *inboxOptions) error {
	var l admin.Actions
	raw, err := a.call(ctx, http.MethodGet, "/api/actions?limit=500", nil, &l)
	if err != nil {
		return err
	}
	if o.json {
		_, err := p.Stdout.Write(raw)
		return err
	}
	for _, act := range l.Actions {
		fmt.Fprintf(p.Stdout, "%s  %-9s  %-5d  %s  %s\n", act.At.UTC().Format(time.RFC3339), act.What, act.Count, visible(act.Who), visible(act.About))
	}
	return nil
}
