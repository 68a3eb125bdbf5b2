package inbox

import (
	"fmt"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// TenantName is a tenant as people write it: platform/tenant, or tenant alone if the platform does not matter. Within
// a code slashes, percent signs and characters that cannot be seen are percent-encoded.
type TenantName struct {
	Platform *string // nil: any
	Tenant   string
}

// String writes the name as ParseTenant reads it.
func (n TenantName) String() string {
	if n.Platform == nil {
		return escapeCode(n.Tenant)
	}
	return ShowTenant(*n.Platform, n.Tenant)
}

// ParseTenant reads the text that ShowTenant writes, or a tenant's code alone.
func ParseTenant(text string) (TenantName, error) {
	platform, tenant, both := strings.Cut(text, "/")
	if !both {
		platform, tenant = "", text
	}
	code, err := url.PathUnescape(tenant)
	p, err2 := url.PathUnescape(platform)
	if err != nil || err2 != nil || code == "" || strings.Contains(tenant, "/") || !storable(code) || !storable(p) {
		return TenantName{}, fmt.Errorf("invalid tenant %q: write platform/tenant or tenant, "+
			"with a slash or percent sign within a code as %%2F or %%25", text)
	}
	name := TenantName{Tenant: code}
	if both {
		name.Platform = &p
	}
	return name, nil
}

// storable says whether the inbox can have such a code. The gate rejects all others.
func storable(code string) bool {
	return len(code) <= 255 && utf8.ValidString(code) && !strings.Contains(code, "\x00")
}

// escapeCode escapes characters in a code that would mislead a reader: slashes, and those that cannot be seen, move
// the cursor or turn the direction of the text around.
func escapeCode(code string) string {
	special := func(r rune) bool { return r == '/' || r == '%' || !unicode.IsPrint(r) }
	if !strings.ContainsFunc(code, special) {
		return code
	}
	var out strings.Builder
	for _, r := range code {
		if special(r) {
			out.WriteString(url.PathEscape(string(r)))
		} else {
			out.WriteRune(r)
		}
	}
	return out.String()
}

// ShowTenant writes a tenant as ParseTenant reads it: with its platform, also if that is empty ("/tenant"), so that
// no other tenant of that code can be meant.
func ShowTenant(platform, tenant string) string {
	return escapeCode(platform) + "/" + escapeCode(tenant)
}

// A TenantRef names a tenant.
type TenantRef struct {
	Platform string `json:"platform"`
	Tenant   string `json:"tenant"`
}
