package store

import (
	"fmt"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// TenantName is a tenant as people write it: platform/tenant, or tenant alone where the platform
// does not matter. A slash or a percent sign within a code is percent-encoded, and so is what
// cannot be seen.
type TenantName struct {
	Platform *string // nil: any
	Tenant   string
}

// ParseTenant reads what ShowTenant writes, and "/tenant" for one without a platform.
func ParseTenant(text string) (TenantName, error) {
	platform, tenant, both := strings.Cut(text, "/")
	if !both {
		platform, tenant = "", text
	}
	code, err := url.PathUnescape(tenant)
	p, err2 := url.PathUnescape(platform)
	if err != nil || err2 != nil || code == "" || strings.Contains(tenant, "/") {
		return TenantName{}, fmt.Errorf("invalid tenant %q: write platform/tenant or tenant, with a slash or percent sign within a code as %%2F or %%25", text)
	}
	name := TenantName{Tenant: code}
	if both {
		name.Platform = &p
	}
	return name, nil
}

// escapeCode leaves nothing in a code that could be taken for something else: not a slash, and nothing that cannot be
// seen, moves a cursor or turns the writing around.
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

// ShowTenant writes a tenant as ParseTenant reads it.
func ShowTenant(platform, tenant string) string {
	if platform == "" {
		return escapeCode(tenant)
	}
	return escapeCode(platform) + "/" + escapeCode(tenant)
}

// Exact writes a tenant so that no other can be meant: one without a platform as "/tenant".
func Exact(platform, tenant string) string { return escapeCode(platform) + "/" + escapeCode(tenant) }

// How many bytes of an attempt are remembered. An error can be long, too: one about a certificate names all hosts that
// this is for.
const (
	maxAnswer = 1 << 10
	maxError  = 512
)

// readable is what a receiver said as one line that no terminal and no page takes for
// anything but text: foreign bytes may hold escape sequences, or turn the writing around.
func readable(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsGraphic(r):
			return r
		}
		return -1
	}, strings.ToValidUTF8(s, "\uFFFD"))
	s = strings.TrimSpace(s)
	if len(s) <= most {
		return s
	}
	end := most
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
