package command

import (
	"net/url"

	"usher/internal/inbox/record"
)

// tenantName is a tenant as people write it; see record.ParseTenant.
type tenantName record.TenantName

func parseTenant(text string) (tenantName, error) {
	name, err := record.ParseTenant(text)
	return tenantName(name), err
}

// showTenant writes a tenant as parseTenant reads it.
func showTenant(platform, tenant string) string { return record.ShowTenant(platform, tenant) }

// String writes it as it was read.
func (n *tenantName) String() string {
	if n.Platform == nil {
		return record.ShowTenant("", n.Tenant)
	}
	return record.Exact(*n.Platform, n.Tenant)
}

// query returns the tenant as parameters of the admin port's API.
func (n *tenantName) query() url.Values {
	q := url.Values{"tenant": {n.Tenant}}
	if n.Platform != nil {
		q.Set("platform", *n.Platform)
	}
	return q
}
