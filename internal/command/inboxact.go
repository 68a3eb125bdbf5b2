package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"usher/internal/admin"
	"usher/internal/inbox"
)

// What usher inbox has a running usher do.

// redeliver says of each webhook what became of it, and goes on when one fails.
func (a *adminAPI) redeliver(ctx context.Context, p Process, o *inboxOptions) error {
	ids, err := a.selected(ctx, p, o, func(all []admin.Listed) (chosen []uint64, note string) {
		latest, older := latestOf(all), 0
		tried := make(map[[2]string]bool)
		for _, e := range slices.Backward(o.matching(all)) { // by age: what is sent again keeps its order
			switch lane := laneOf(&e); {
			case e.State == inbox.Waiting && tried[lane]: // the one before it is tried now
			case o.force, e.Tenant == "", e.State == inbox.Waiting, latest[lane] == e.ID:
				tried[lane] = tried[lane] || e.State == inbox.Waiting && e.Tenant != ""
				chosen = append(chosen, e.ID)
			default:
				older++
			}
		}
		if older > 0 {
			note = fmt.Sprintf(" (%d older ones of the same tenants are left out; --force sends them, too)", older)
		}
		return chosen, note
	})
	if err != nil {
		return err
	}
	return a.each(ctx, p, ids, func(id uint64) string { return fmt.Sprintf("/api/inbox/%d/redeliver?force=%t", id, o.force) },
		"will be sent again", "not resent")
}

// discard sets webhooks aside. The newest go first: of a queue that is discarded whole none is
// delivered because the one before it is gone.
func (a *adminAPI) discard(ctx context.Context, p Process, o *inboxOptions) error {
	ids, err := a.selected(ctx, p, o, func(all []admin.Listed) (chosen []uint64, _ string) {
		for _, e := range o.matching(all) {
			if !e.State.Finished() {
				chosen = append(chosen, e.ID)
			}
		}
		return chosen, ""
	})
	if err != nil {
		return err
	}
	return a.each(ctx, p, ids, func(id uint64) string { return fmt.Sprintf("/api/inbox/%d/discard", id) }, "discarded", "not discarded")
}

// selected returns the ids that were given, or those of the webhooks that the filters choose,
// once somebody has agreed.
func (a *adminAPI) selected(ctx context.Context, p Process, o *inboxOptions, choose func([]admin.Listed) ([]uint64, string)) ([]uint64, error) {
	if len(o.ids) > 0 {
		return o.ids, nil
	}
	// All of the tenant, or of everybody, in whatever state: only so it is known which is the latest.
	query := (&inboxOptions{tenant: o.tenant}).filter()
	query.Set("limit", "0")
	var l admin.List
	if _, err := a.call(ctx, http.MethodGet, "/api/inbox?"+query.Encode(), nil, &l); err != nil {
		return nil, err
	}
	ids, note := choose(l.Webhooks)
	if len(ids) == 0 {
		fmt.Fprintf(p.Stdout, "No webhook to %s%s.\n", o.verb, note)
		return nil, nil
	}
	question := fmt.Sprintf("%s %s%s?", strings.ToUpper(o.verb[:1])+o.verb[1:], plural(len(ids), "webhook"), note)
	return ids, p.agreed(question, o.yes)
}

// matching are those that the filters choose.
func (o *inboxOptions) matching(all []admin.Listed) (fits []admin.Listed) {
	f := inbox.Filter{State: inbox.State(o.state), Since: o.since, Until: o.until}
	for _, e := range all {
		if f.Match(&e.Entry, nil) {
			fits = append(fits, e)
		}
	}
	return fits
}

func laneOf(e *admin.Listed) [2]string { return [2]string{e.Platform, e.Tenant} }

// latestOf are the newest webhooks of each tenant.
func latestOf(all []admin.Listed) map[[2]string]uint64 {
	latest := make(map[[2]string]uint64)
	for i := range all {
		latest[laneOf(&all[i])] = max(latest[laneOf(&all[i])], all[i].ID)
	}
	return latest
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

// each has something done to each id, and says what became of it.
func (a *adminAPI) each(ctx context.Context, p Process, ids []uint64, target func(uint64) string, done, not string) error {
	var failed error
	for _, id := range ids {
		_, err := a.call(ctx, http.MethodPost, target(id), nil, new(admin.Redelivered))
		var refused *apiError
		switch {
		case err == nil:
			fmt.Fprintf(p.Stdout, "%d %s\n", id, done)
			continue
		case errors.As(err, &refused) && refused.Latest != nil:
			fmt.Fprintf(p.Stderr, "%d %s: %d of the same tenant is newer. Use --force to resend it anyway.\n", id, not, refused.Latest.ID)
		default:
			fmt.Fprintf(p.Stderr, "%d %s: %v\n", id, not, err)
		}
		failed = errAlreadySaid
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
		fmt.Fprintf(p.Stdout, "paused: %s; 'usher inbox resume%s' goes on\n", what, visible(pauseFlag(done.Pause)))
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
	name := showTenant("", o.tenant.Tenant)
	if o.tenant.Platform != nil {
		name = inbox.ExactTenant(*o.tenant.Platform, o.tenant.Tenant)
	}
	question := fmt.Sprintf("Erase %s: delete its webhooks, those that wait included, and what it may use?", visible(name))
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
