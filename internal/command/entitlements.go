package command

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"text/tabwriter"
	"time"
)

const entitlementsUsage = `Usage: usher entitlements TENANT [FEATURE]

Asks the running usher, through its admin port, what a tenant may use.
TENANT is platform/tenant, or tenant alone. With FEATURE the exit code is 0
only if the feature is enabled.
`

// granted is what the API says of a tenant, or of one feature.
type granted struct {
	Tenant   string    `json:"tenant"`
	Platform string    `json:"platform"`
	AsOf     time.Time `json:"as_of"`
	Webhook  string    `json:"webhook"`
	Features []feature `json:"features"`
	feature
}

type feature struct {
	Feature string `json:"feature"`
	Name    string `json:"name"`
	Enabled bool   `json:"enabled"`
	Limit   *int64 `json:"limit"`
	Value   string `json:"value"`
}

func (f *feature) limit() string {
	if f.Limit == nil {
		return "unlimited"
	}
	return strconv.FormatInt(*f.Limit, 10)
}

// entitlementsCommand asks what a tenant may use.
func entitlementsCommand(ctx context.Context, p Process, args []string) int {
	if len(args) > 0 && isHelp(args[0]) {
		fmt.Fprint(p.Stdout, entitlementsUsage)
		return exitOK
	}
	if len(args) < 1 || len(args) > 2 {
		return p.misused("usher entitlements takes a tenant, and optionally a feature: usher entitlements TENANT [FEATURE]")
	}
	tenant, err := parseTenant(args[0])
	if err != nil {
		return p.misused("%v", err)
	}
	api, err := newAdminAPI(p.Environ)
	if err != nil {
		return p.failed(err)
	}
	query := tenant.query()
	if len(args) == 2 {
		query.Set("feature", args[1])
	}
	var g granted
	if _, err := api.call(ctx, http.MethodGet, "/api/entitlements?"+query.Encode(), nil, &g); err != nil {
		return p.failed(err)
	}
	if len(args) == 1 {
		p.printGranted(&g)
		return exitOK
	}
	who := visible(showTenant(g.Platform, g.Tenant))
	if !g.Enabled {
		fmt.Fprintf(p.Stdout, "%s may not use %s\n", who, visible(args[1]))
		return exitFailed
	}
	fmt.Fprintf(p.Stdout, "%s may use %s, limit %s\n", who, visible(args[1]), g.limit())
	return exitOK
}

func (p *Process) printGranted(g *granted) {
	fmt.Fprintf(p.Stdout, "%s, as of %s, by webhook %s\n", visible(showTenant(g.Platform, g.Tenant)), g.AsOf.UTC().Format(time.RFC3339), visible(g.Webhook))
	if len(g.Features) == 0 {
		fmt.Fprintln(p.Stdout, "This tenant may not use any feature.")
		return
	}
	t := tabwriter.NewWriter(p.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FEATURE\tLIMIT\tVALUE\tNAME")
	for _, f := range g.Features {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", visible(f.Feature), f.limit(), visible(f.Value), visible(f.Name))
	}
	t.Flush()
}
