package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"usher/internal/admin"
)

// The actions of usher inbox. A running usher does them.

// redeliver sends webhooks again.
func (a *adminAPI) redeliver(ctx context.Context, p Process, o *inboxOptions) error {
	return a.each(ctx, p, o, "will be sent again", "not resent")
}

// discard sets webhooks aside.
func (a *adminAPI) discard(ctx context.Context, p Process, o *inboxOptions) error {
	return a.each(ctx, p, o, "discarded", "not discarded")
}

// selected returns the ids that were given, or those of the webhooks that the filters choose,
// once somebody has agreed.
func (a *adminAPI) selected(ctx context.Context, p Process, o *inboxOptions) ([]string, error) {
	if len(o.ids) > 0 {
		return o.ids, nil
	}
	query := o.filter()
	query.Set("force", strconv.FormatBool(o.force))
	var chosen admin.Chosen
	if _, err := a.call(ctx, http.MethodGet, "/api/"+o.verb+"?"+query.Encode(), nil, &chosen); err != nil {
		return nil, err
	}
	note := ""
	if chosen.Older > 0 {
		note = fmt.Sprintf(" (without %s of the same tenants; --force sends them, too)", plural(chosen.Older, "older webhook"))
	}
	if len(chosen.Webhooks) == 0 {
		fmt.Fprintf(p.Stdout, "No webhook to %s%s.\n", o.verb, note)
		return nil, nil
	}
	question := fmt.Sprintf("%s %s%s?", strings.ToUpper(o.verb[:1])+o.verb[1:], plural(len(chosen.Webhooks), "webhook"), note)
	return chosen.Webhooks, p.agreed(question, o.yes)
}

// errRefused says that nothing was done.
var errRefused = errors.New("nothing was done: answer y, or use --yes")

// agreed asks, unless yes says that somebody has agreed already.
func (p *Process) agreed(question string, yes bool) error {
	if yes {
		fmt.Fprintln(p.Stdout, question, "yes")
		return nil
	}
	fmt.Fprint(p.Stdout, question, " [y/N] ")
	answer := ""
	if p.Stdin != nil {
		answer, _ = bufio.NewReader(p.Stdin).ReadString('\n') // nothing: no
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errRefused
}

// each has something done to each webhook, says of each what became of it, and goes on when one fails.
func (a *adminAPI) each(ctx context.Context, p Process, o *inboxOptions, done, not string) error {
	ids, err := a.selected(ctx, p, o)
	if err != nil {
		return err
	}
	var (
		failed error
		last   admin.Done
	)
	for _, id := range ids {
		_, err := a.call(ctx, http.MethodPost, fmt.Sprintf("/api/webhooks/%s/%s?force=%t", id, o.verb, o.force), nil, &last)
		var refused *apiError
		switch {
		case err == nil:
			fmt.Fprintf(p.Stdout, "%s %s\n", id, done)
			continue
		case errors.As(err, &refused) && refused.Latest != nil:
			fmt.Fprintf(p.Stderr, "%s %s: %s of the same tenant is newer. Use --force to resend it anyway.\n", id, not, refused.Latest.ID)
		default:
			fmt.Fprintf(p.Stderr, "%s %s: %v\n", id, not, err)
		}
		failed = errAlreadySaid
	}
	if o.verb == "redeliver" {
		p.sayPaused(last.Paused)
	}
	return failed
}

// pause is pause and resume.
func (a *adminAPI) pause(ctx context.Context, p Process, o *inboxOptions) error {
	var done admin.Resumed
	if _, err := a.call(ctx, http.MethodPost, "/api/"+o.verb, o.target(), &done); err != nil {
		return err
	}
	what := visible(done.Pause.String())
	switch {
	case o.verb == "pause":
		fmt.Fprintf(p.Stdout, "paused: %s; to resume: %s\n", what, visible(p.line("usher inbox resume"+done.Pause.Flag())))
	case done.Was:
		fmt.Fprintf(p.Stdout, "resumed: %s\n", what)
	default:
		return fmt.Errorf("%s: not paused", what)
	}
	return nil
}

// target is what an action is about, as the admin port's API wants it.
func (o *inboxOptions) target() map[string]any {
	t := make(map[string]any)
	if o.tenant.Tenant != "" {
		t["tenant"] = o.tenant.Tenant
	}
	if o.tenant.Platform != nil {
		t["platform"] = *o.tenant.Platform
	}
	if o.receiver != "" {
		t["receiver"] = o.receiver
	}
	return t
}

func (a *adminAPI) forget(ctx context.Context, p Process, o *inboxOptions) error {
	var f admin.Forgotten
	if _, err := a.call(ctx, http.MethodPost, "/api/forget", o.target(), &f); err != nil {
		return err
	}
	if f.Forgotten == 0 {
		fmt.Fprintf(p.Stdout, "%s: dedup remembered nothing\n", visible(showTenant(f.Platform, f.Tenant)))
		return nil
	}
	fmt.Fprintf(p.Stdout, "%s forgotten: its next webhook is delivered whatever it says\n", visible(showTenant(f.Platform, f.Tenant)))
	return nil
}

func (a *adminAPI) erase(ctx context.Context, p Process, o *inboxOptions) error {
	question := fmt.Sprintf("Erase %s: delete its webhooks, those that wait included, and what it may use?", visible(o.tenant.String()))
	if err := p.agreed(question, o.yes); err != nil {
		return err
	}
	var e admin.Erased
	if _, err := a.call(ctx, http.MethodPost, "/api/erase", o.target(), &e); err != nil {
		return err
	}
	fmt.Fprintf(p.Stdout, "%s erased: %s\n", visible(showTenant(e.Platform, e.Tenant)), plural(e.Webhooks, "webhook"))
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
