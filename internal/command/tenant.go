package command

import (
	"fmt"
	"net/url"
	"strings"
)

// tenantName is a tenant as people write it: platform/tenant, or tenant alone where the platform
// does not matter. A slash or a percent sign within a code is percent-encoded.
type tenantName struct {
	platform *string // nil: any
	tenant   string
}

func parseTenant(text string) (tenantName, error) {
	platform, tenant, both := strings.Cut(text, "/")
	if !both {
		platform, tenant = "", text
	}
	bad := func() (tenantName, error) {
		return tenantName{}, fmt.Errorf("invalid tenant %q: write platform/tenant or tenant, with a slash or percent sign within a code as %%2F or %%25", text)
	}
	code, err := url.PathUnescape(tenant)
	if err != nil || code == "" || strings.Contains(tenant, "/") {
		return bad()
	}
	name := tenantName{tenant: code}
	if both {
		p, err := url.PathUnescape(platform)
		if err != nil {
			return bad()
		}
		name.platform = &p
	}
	return name, nil
}

// showTenant writes a tenant as parseTenant reads it.
func showTenant(platform, tenant string) string {
	escape := strings.NewReplacer("%", "%25", "/", "%2F").Replace
	if platform == "" {
		return escape(tenant)
	}
	return escape(platform) + "/" + escape(tenant)
}

// query has the tenant as the admin port's API wants it.
func (n *tenantName) query() url.Values {
	q := url.Values{"tenant": {n.tenant}}
	if n.platform != nil {
		q.Set("platform", *n.platform)
	}
	return q
}
