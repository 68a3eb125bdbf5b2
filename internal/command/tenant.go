package command

import "usher/internal/inbox/store"

// tenantName is a tenant as people write it; see store.ParseTenant.
type tenantName store.TenantName

func parseTenant(text string) (tenantName, error) {
	name, err := store.ParseTenant(text)
	return tenantName(name), err
}

// showTenant writes a tenant as parseTenant reads it.
func showTenant(platform, tenant string) string { return store.ShowTenant(platform, tenant) }

// String writes it as it was read.
func (n *tenantName) String() string {
	if n.Platform == nil {
		return store.ShowTenant("", n.Tenant)
	}
	return store.Exact(*n.Platform, n.Tenant)
}
