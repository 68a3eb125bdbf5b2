package entitlements

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// page is one of those that are served.
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
	ofrep   bool // it is below /ofrep/, served or not: errors have that protocol's form
	tenant  string
	feature string // of a flag, its key
}

const (
	checkPath  = "/v1/check"
	tenantPath = "/v1/entitlements/"
	flagsPath  = "/ofrep/v1/evaluate/flags"
)

// sentPath is the path letter by letter as it was sent. URL.EscapedPath is not: where
// a path has a letter that should be escaped and is not, it unescapes all of it and
// escapes it anew, and what was %2F within a tenant's code then divides it.
func sentPath(u *url.URL) string {
	if u.RawPath != "" {
		return u.RawPath
	}
	return u.EscapedPath()
}

// parsePath divides a path as it was sent, and only then unescapes its parts: a code
// may have a slash in it. Nothing is cleaned: ".." is a code like any other.
func parsePath(path string) target {
	to := target{ofrep: strings.HasPrefix(path, "/ofrep/")}
	switch {
	case path == checkPath:
		to.page = checkPage
	case path == flagsPath:
		to.page = flagsPage
	case strings.HasPrefix(path, flagsPath+"/"):
		// All the rest is the key: some providers escape a slash in it, others don't.
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

// unescape returns a code. No code is empty, nor anything but UTF-8.
func unescape(s string) (code string, ok bool) {
	code, err := url.PathUnescape(s)
	return code, err == nil && code != "" && utf8.ValidString(code)
}

// serves says whether a method may be used there.
func (to target) serves(method string) error {
	allow := ""
	switch to.page {
	case noPage:
		return nil // that is what is to be said
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

// query returns the parameters. Those that are not known are refused: they are a slip
// of the pen (quantiy), or the rest of a code that somebody put in unescaped, and then
// the question would be about another tenant ("tenant=acme&co"). So is one that is
// there twice.
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

// optional returns a parameter that may be empty, or nil when it is not there.
func optional(params url.Values, name string) *string {
	if v := params[name]; len(v) > 0 {
		return &v[0]
	}
	return nil
}
