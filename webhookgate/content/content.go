// Package content reads the body of a webhook: strict JSON, then type and shape. The lane is
// taken from the very value that was checked, so that usher and the receiver cannot read two
// different tenants out of one body.
package content

import (
	"encoding/json"
	"fmt"
	"strings"

	"usher/internal/text"
)

// TenantProvisioningChange is the only event type that the billing service documents. The
// built-in schema describes it.
const TenantProvisioningChange = "TenantProvisioningChange"

// maxShown is how many bytes of a foreign path or name are shown.
const maxShown = 200

// A Fault is one thing that is wrong with a body.
type Fault struct {
	Path    string `json:"path"` // a JSON pointer; empty: the body as a whole
	Message string `json:"message"`
}

// Words says what the first of some faults is, and how many more there are.
func Words(faults []Fault) string {
	if len(faults) == 0 {
		return ""
	}
	words := strings.TrimSpace(faults[0].Path + " " + faults[0].Message)
	if n := len(faults) - 1; n > 0 {
		words += fmt.Sprintf(", and %d more", n)
	}
	return words
}

// pointer writes the path of a fault, and no more of it than is shown: a body can have a name of
// a megabyte, and a hundred thousand faults below it.
func pointer(path []string) string {
	var p strings.Builder
	for _, token := range path {
		p.WriteByte('/')
		p.WriteString(pointerEscape.Replace(token[:min(len(token), maxShown+1)]))
		if p.Len() > maxShown {
			break
		}
	}
	return text.Clip(p.String(), maxShown)
}

var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")

// TypeOf returns the event type of a parsed body, or the empty string.
func TypeOf(value any) string {
	s, _ := Member(value, "type").(string)
	return strings.Clone(s)
}

// CertainTenant returns whose webhook a parsed body is: the codes of the platform and of the tenant,
// each empty where there is none. A number counts as its text; Rules refuse all other types. certain is
// false if there is no tenant, or if one of the codes cannot be read. The strings are copies, because
// lanes are remembered and must not keep the whole body in memory.
func CertainTenant(value any) (platform, tenant string, certain bool) {
	t := Member(Member(value, "payload"), "tenant")
	platform, tenant = code(Member(t, "platform")), code(t)
	return platform, tenant, tenant != "" && len(codeFaults(value)) == 0
}

func code(of any) string {
	switch c := Member(of, "code").(type) {
	case string:
		return strings.Clone(c)
	case json.Number:
		return strings.Clone(string(c))
	}
	return ""
}

// codeFaults refuses codes that CertainTenant cannot read. To read them as none would make one tenant
// of two. Null counts as absent.
func codeFaults(value any) (faults []Fault) {
	const at = "/payload/tenant"
	check := func(path string, c any) {
		switch c.(type) {
		case nil, string, json.Number:
		default:
			faults = append(faults, Fault{path, "must be a string or a number"})
		}
	}
	t := Member(Member(value, "payload"), "tenant")
	check(at+"/code", Member(t, "code"))
	switch p := Member(t, "platform").(type) {
	case nil:
	case map[string]any:
		check(at+"/platform/code", p["code"])
	default:
		faults = append(faults, Fault{at + "/platform", "must be an object"})
	}
	return faults
}

// Member returns what an object has under exactly this name, or nil: the struct fields of
// encoding/json would match in upper and lower case.
func Member(value any, name string) any {
	object, _ := value.(map[string]any)
	return object[name]
}
