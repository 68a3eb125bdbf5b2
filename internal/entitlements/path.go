package entitlements

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// page is one of the pages of the port.
type page int

const (
	noPage page = iota
	tenantPage
	featurePage
	checkPage
	flagPage
	flagsPage
)

// target is where a request goes to.
type target struct {
	page    page
	ofrep   bool // it is below /ofrep/: errors have the form of that protocol
	tenant  string
	feature string // or the key of a flag
}

const (
	checkPath  = "/v1/check"
	tenantPath = "/v1/entitlements/"
	flagsPath  = "/ofrep/v1/evaluate/flags"
)

// sentPath returns the path exactly as it was sent. URL.EscapedPath alone does not: if a path has a
// letter that should be escaped and is not, it unescapes the whole path and escapes it again. A %2F
// inside a tenant's code would then split the code.
func sentPath(u *url.URL) string {
	if u.RawPath != "" {
		return u.RawPath
	}
	return u.EscapedPath()
}

// parsePath splits a path as it was sent, and then unescapes its parts, since a code may contain a
// slash. It cleans nothing: ".." is a code like any other.
func parsePath(path string) target {
	to := target{ofrep: strings.HasPrefix(path, "/ofrep/")}
	switch {
	case path == checkPath:
		to.page = checkPage
	case path == flagsPath:
		to.page = flagsPage
	case strings.HasPrefix(path, flagsPath+"/"):
		// The whole rest is the key: some providers escape a slash in it, others do not.
		if key, ok := unescape(path[len(flagsPath)+1:]); ok {
			to.page, to.feature = flagPage, key
		}
	case strings.HasPrefix(path, tenantPath):
		tenant, feature, both := strings.Cut(path[len(tenantPath):], "/")
		var ok, ok2 bool
		to.tenant, ok = unescape(tenant)
		to.feature, ok2 = unescape(feature)
		switch {
		case strings.Contains(feature, "/"):
		case !both && ok:
			to.page = tenantPage
		case both && ok && ok2:
			to.page = featurePage
		}
	}
	return to
}

// unescape returns a code. A code is not empty, and valid UTF-8.
func unescape(s string) (code string, ok bool) {
	code, err := url.PathUnescape(s)
	return code, err == nil && code != "" && utf8.ValidString(code)
}

// serves returns an error if the method is not allowed there.
func (to target) serves(method string) error {
	allow := ""
	switch to.page {
	case noPage:
		return nil // the answer is 404, not 405
	case flagPage, flagsPage:
		if method == http.MethodPost {
			return nil
		}
		allow = "POST"
	default:
		if method == http.MethodGet || method == http.MethodHead {
			return nil
		}
		allow = "GET, HEAD"
	}
	return &problem{status: http.StatusMethodNotAllowed, code: codeMethodRefused, allow: allow,
		message: "Use " + allow + " here."}
}

func notFound(to target) error {
	p := &problem{status: http.StatusNotFound, code: "NOT_FOUND",
		message: "Not found. Use " + tenantPath + "TENANT, " + tenantPath + "TENANT/FEATURE, " + checkPath + " or " + flagsPath +
			". Percent-encode the codes; a slash inside a code is %2F."}
	if to.ofrep {
		p.message = "Not found. Use " + flagsPath + " or " + flagsPath + "/KEY."
	}
	return p
}

// query returns the parameters. It refuses unknown ones: they are typing errors (quantiy), or the
// rest of a code that was not escaped, and then the question would be about another tenant
// ("tenant=acme&co"). It also refuses a parameter that occurs twice.
func query(r *http.Request, known ...string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("The query cannot be read. Percent-encode the values.")
	}
	for name, v := range values {
		switch {
		case !slices.Contains(known, name):
			return nil, badRequest("Unknown query parameter. Use " + strings.Join(known, ", ") + ", and percent-encode the values.")
		case len(v) > 1:
			return nil, badRequest("The query parameter " + name + " is given twice.")
		case !utf8.ValidString(v[0]):
			return nil, badRequest("The query parameter " + name + " is not UTF-8.")
		}
	}
	return values, nil
}

// optional returns a parameter, which may be empty, or nil if it is missing.
func optional(params url.Values, name string) *string {
	if v := params[name]; len(v) > 0 {
		return &v[0]
	}
	return nil
}
