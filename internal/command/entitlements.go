package command

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"usher/internal/inbox"
	"usher/internal/snapshot"
	"usher/internal/text"
	"usher/internal/view"
)

const entitlementsUsage = `Usage: usher entitlements TENANT [FEATURE]

Says what a tenant may use, since when and by which webhook, and whether the
receiver has that webhook: if not, why, and what to do. TENANT is
platform/tenant, or tenant alone. With FEATURE the exit code is 0 only if the
tenant may use it.
` + adminPortHelp + `entitlements TENANT
`

// entitlementsCommand is 'usher entitlements': it prints what a tenant may use.
func entitlementsCommand(ctx context.Context, p *Process, args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return usageErrorf("takes a tenant, and optionally a feature: usher entitlements TENANT [FEATURE]")
	}
	name, err := inbox.ParseTenant(args[0])
	if err != nil {
		return usageError{err}
	}
	api, err := newAdminAPI(p)
	if err != nil {
		return err
	}
	query := url.Values{"code": {name.Tenant}}
	if name.Platform != nil {
		query.Set("platform", *name.Platform)
	}
	var t view.Tenant
	if _, err := api.get(ctx, "/api/tenant?"+query.Encode(), &t); err != nil {
		refused, ok := errors.AsType[*apiError](err)
		switch {
		case ok && refused.status == http.StatusConflict:
			return fmt.Errorf("%w. Questions that name no platform are answered 409 AMBIGUOUS", err)
		case ok && refused.Error() == text.Visible("unknown tenant "+name.String()):
			return fmt.Errorf("%w: usher has taken in no webhook of it. If the code is right, %s", err,
				p.commandLines("see 'usher inbox ls --state invalid'. If it is not there, its webhook was "+
					"lost or never sent: 'usher help reconcile' says how to find it"))
		}
		return err
	}
	tenant := text.Visible(t.Name())
	switch {
	case t.MayUse == nil:
		p.printReceipt(&t)
		return fmt.Errorf("cannot tell what %s may use: %s", tenant, text.Visible(t.NotKnown))
	case !t.MayUse.Known:
		see := p.commandLines(fmt.Sprintf("'usher inbox show %d'", t.MayUse.ID))
		return fmt.Errorf("the last webhook of %s, %d, has no list of features that can be read. "+
			"See it with %s, correct it in the billing service, and send it again from there",
			tenant, t.MayUse.ID, text.Visible(see))
	}
	var failed error
	switch {
	case len(args) == 1:
		p.printFeatures(tenant, t.MayUse.Features)
	case !p.printFeature(tenant, args[1], t.MayUse.Features):
		failed = exitCode(exitFailed)
	}
	fmt.Fprintln(p.Stdout, t.MayUse.Since())
	if held := t.Held(); held != "" {
		fmt.Fprintf(p.Stdout, "%s\n  %s\n", text.Visible(held), text.Visible(p.commandLines("See what is wrong: 'usher status'.")))
	}
	p.printReceipt(&t)
	if len(args) == 2 && failed == nil { // it may use what was asked for
		return nil
	}
	fmt.Fprintf(p.Stdout,
		"If the billing service says something else, usher has missed a change. "+
			"Resend the tenant's last webhook from its\n"+
			"webhook log, or reconcile it with a command that prints the tenant ('usher help "+
			"reconcile' says how):\n  %s\n",
		text.Visible(p.commandLine("usher reconcile --partial --apply -- CMD")))
	return failed
}

// printReceipt says whether the receiver has the webhook that usher's answer comes from and, if not, why
// and what to do; and which webhooks of the tenant do not count.
func (p *Process) printReceipt(t *view.Tenant) {
	if r := t.Receipt; r != nil { // else usher does not know
		fmt.Fprintf(p.Stdout, "%s.\n", text.Visible(r.Words()))
		if !r.Taken {
			p.printAdvice(r.Why, r.Do, r.Run)
		} else if r.Do != "" {
			fmt.Fprintf(p.Stdout, "  %s\n", text.Visible(p.commandLines(r.Do)))
		}
	}
	if words, why, do := t.NotCounted(); words != "" {
		fmt.Fprintf(p.Stdout, "%s.\n", words)
		p.printAdvice(why, do, "usher inbox show "+t.Invalid.ID)
	}
}

// printAdvice prints the reason, what to do, and the command for it. do and run may be empty.
func (p *Process) printAdvice(why, do, run string) {
	fmt.Fprintf(p.Stdout, "  %s\n", text.Visible(why))
	if run != "" {
		fmt.Fprintf(p.Stdout, "  %s:\n  %s\n", strings.TrimSuffix(do, "."), text.Visible(p.commandLine(run)))
	} else if do != "" {
		fmt.Fprintf(p.Stdout, "  %s\n", do)
	}
}

// printFeature prints whether a tenant may use a feature, and returns it.
func (p *Process) printFeature(tenant, code string, features []snapshot.Feature) (enabled bool) {
	i := slices.IndexFunc(features, func(f snapshot.Feature) bool { return f.Code == code })
	switch {
	case i < 0:
		hint := ""
		alike := func(f snapshot.Feature) bool {
			return text.WithinEdits(strings.ToLower(f.Code), strings.ToLower(code), 1)
		}
		if n := slices.IndexFunc(features, alike); n >= 0 {
			hint = fmt.Sprintf(" (did you mean %s?)", text.Visible(features[n].Code))
		}
		fmt.Fprintf(p.Stdout, "%s may not use %s%s\n", tenant, text.Visible(code), hint)
	case features[i].Limit == snapshot.Unlimited:
		fmt.Fprintf(p.Stdout, "%s may use %s, unlimited\n", tenant, text.Visible(code))
	default:
		fmt.Fprintf(p.Stdout, "%s may use %s, limit %s\n", tenant, text.Visible(code), features[i].Limit)
	}
	return i >= 0
}

func (p *Process) printFeatures(tenant string, features []snapshot.Feature) {
	if len(features) == 0 {
		fmt.Fprintf(p.Stdout, "%s may not use any feature.\n", tenant)
		return
	}
	fmt.Fprintf(p.Stdout, "%s may use:\n", tenant)
	print := view.Printer[snapshot.Feature]{Columns: view.Features, Width: text.Width(p.Stdout)}
	_ = print.Print(p.Stdout, features) // an error shows as for every other line here
}
