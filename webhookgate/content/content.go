// Package content reads the body of a webhook: strict JSON, then type and shape. The lane is
// taken from the very value that was checked, so that usher and the receiver cannot read two
// different tenants out of one body.
package content

import (
	"strings"

	"usher/internal/clip"
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
	return clip.Text(p.String(), maxShown)
}

var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")

// StringAt returns the string at a path of names in a parsed value, or the empty string. The
// names must match exactly: the struct fields of encoding/json would match in upper and lower
// case. The string is a copy, because lanes are remembered and must not keep the whole body in
// memory.
func StringAt(value any, path ...string) string {
	for _, name := range path {
		object, _ := value.(map[string]any)
		value = object[name]
	}
	s, _ := value.(string)
	return strings.Clone(s)
}
