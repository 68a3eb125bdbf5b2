// Package content reads the body of a webhook: strict JSON first, then type and schema. usher takes the
// tenant from the same value that it has checked. So usher and the receiver cannot read two
// different tenants out of one body.
package content

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"usher/internal/text"
)

// TenantProvisioningChange is the only event type that the billing service documents. The
// built-in schema describes it.
const TenantProvisioningChange = "TenantProvisioningChange"

const (
	// maxShown is how many bytes of a path or name that others chose are shown, and maxMessage how many of a
	// message, which may quote them.
	maxShown   = 200
	maxMessage = 300

	// MaxFaults is how many faults of a body people see. It can have a hundred thousand.
	MaxFaults = 50
)

// A Fault is one thing that is wrong with a body.
type Fault struct {
	Path    string `json:"path"` // a JSON pointer; empty: the body as a whole
	Message string `json:"message"`
	More    int    `json:"more,omitempty"` // not 0: it stands for so many faults that are not listed
}

// String returns the fault as a sentence, such as "/payload/tenant is missing".
func (f Fault) String() string { return cmp.Or(f.Path, "the body") + " " + f.Message }

// Summary describes faults in one sentence, because some webhook logs show only one line: it has the
// first fault, and says how many more there are.
func Summary(faults []Fault) string {
	switch n := Count(faults); n {
	case 0:
		return ""
	case 1:
		return faults[0].String()
	default:
		return fmt.Sprintf("%v, and %d more", faults[0], n-1)
	}
}

// Count returns how many faults these are, with those that are not listed.
func Count(faults []Fault) (n int) {
	for _, f := range faults {
		n += max(1, f.More)
	}
	return n
}

// First returns the first n faults. If there are more, the last of the n says how many.
func First(faults []Fault, n int) []Fault {
	if len(faults) <= n {
		return faults
	}
	more := Count(faults[n-1:])
	return append(faults[:n-1:n-1], Fault{Message: fmt.Sprintf("has %d more faults", more), More: more})
}

// pointer writes the path of a fault as a JSON pointer. It copies no more than is shown: a body can
// have a name of a megabyte, and a hundred thousand faults below it.
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

// GuessType returns the event type that a body seems to have which Parse does not accept, or the empty string. The
// billing service writes the type first.
func GuessType(body []byte) string {
	found := typeMember.FindSubmatch(body[:min(len(body), 4<<10)])
	if found == nil {
		return ""
	}
	return string(found[1])
}

var typeMember = regexp.MustCompile(`"type"\s*:\s*"([^"\\]*)"`)

// CertainTenant returns the codes of the platform and of the tenant that a parsed body is about. A code
// is empty if it is missing. certain is false if there is no tenant, or if one of the codes cannot be
// read. The codes are copies: lanes are remembered, and must not keep whole bodies in memory.
func CertainTenant(value any) (platform, tenant string, certain bool) {
	platform, tenant, faults := codes(value)
	return strings.Clone(platform), strings.Clone(tenant), tenant != "" && len(faults) == 0
}

// codes returns the codes of the platform and of the tenant, and a fault for each that cannot be read.
// If such a code counted as missing, two tenants could become one. Null counts as missing, and a number
// as its text.
func codes(value any) (platform, tenant string, faults []Fault) {
	const at = "/payload/tenant"
	valid := func(path, code string) string {
		if !ValidCode(code) {
			faults = append(faults, codeFaults(path+"/code", code)...)
		}
		return code
	}
	codeOf := func(path string, object any) string {
		switch code := Member(object, "code").(type) {
		case nil:
		case string:
			return valid(path, code)
		case json.Number:
			return valid(path, code.String())
		default:
			faults = append(faults, Fault{Path: path + "/code", Message: "must be a string or a number"})
		}
		return ""
	}
	t := Member(Member(value, "payload"), "tenant")
	tenant = codeOf(at, t)
	switch p := Member(t, "platform").(type) {
	case nil:
	case map[string]any:
		platform = codeOf(at+"/platform", p)
	default:
		faults = append(faults, Fault{Path: at + "/platform", Message: "must be an object"})
	}
	return platform, tenant, faults
}

// maxCode is how many bytes a code may have. Codes are keys of a database's index.
const maxCode = 255

// ValidCode reports whether a code of a tenant, a platform or a feature, or an event's type, is
// one that usher takes in.
func ValidCode(code string) bool { return codeFaults("", code) == nil }

func codeFaults(path, code string) (faults []Fault) {
	if len(code) > maxCode {
		faults = append(faults, Fault{Path: path, Message: fmt.Sprintf("must have at most %d bytes", maxCode)})
	}
	if strings.Contains(code, "\x00") {
		faults = append(faults, Fault{Path: path, Message: "must not contain the character U+0000"})
	}
	return faults
}

// featureFaults returns a fault for each code in change.features that usher does not take in.
func featureFaults(value any) (faults []Fault) {
	list, _ := Member(Member(Member(value, "payload"), "change"), "features").([]any)
	for i, feature := range list {
		if code, ok := Member(feature, "code").(string); ok && !ValidCode(code) {
			faults = append(faults, codeFaults(fmt.Sprintf("/payload/change/features/%d/code", i), code)...)
		}
	}
	return faults
}

// Member returns the member of an object with exactly this name, or nil. (Struct fields of
// encoding/json would match a name in upper or lower case, too.)
func Member(value any, name string) any {
	object, _ := value.(map[string]any)
	return object[name]
}
