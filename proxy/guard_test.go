package proxy

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"usher/internal/guard"
)

func TestGuard(t *testing.T) {
	var calls atomic.Int64
	graphql := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) })
	open := newRig(t, graphql)
	named := func(c *Config) { c.Hosts = guard.NewHosts("127.0.0.1:0", []string{"usher.internal"}, c.Key != nil) }
	key := func(c *Config) { c.Key = func() string { return "sesame, open-please" } }
	listed, keyed, keyedAndListed := newRig(t, graphql, named), newRig(t, graphql, key), newRig(t, graphql, key, named)
	for _, tc := range []struct {
		name   string
		rig    *rig
		method string
		path   string
		host   string
		header http.Header
		status int
		code   string
	}{
		{"plain", open, "POST", "/graphql", "", nil, 200, ""},
		{"authorization of the caller's own", open, "POST", "/graphql", "", http.Header{"Authorization": {"Basic abc"}}, 200, ""},
		{"token endpoint", open, "GET", "/oauth/token", "", nil, 404, "NOT_FOUND"},
		{"token endpoint, no key", keyed, "GET", "/oauth/token", "", nil, 401, "KEY_REQUIRED"},
		{"escaped", open, "POST", "/%67raphql", "", nil, 404, "NOT_FOUND"},
		{"other case", open, "POST", "/GraphQL", "", nil, 404, "NOT_FOUND"},
		{"trace", open, "TRACE", "/graphql", "", nil, 405, "METHOD_REFUSED"},
		{"rebound", open, "POST", "/graphql", "evil.example", nil, 421, "HOST_REFUSED"},
		{"page", open, "POST", "/graphql", "", http.Header{"Origin": {"https://evil.example"}}, 403, "BROWSER_REFUSED"},
		{"address bar", open, "GET", "/graphql", "", http.Header{"Sec-Fetch-Site": {"none"}}, 200, ""},
		{"address bar, or a page's redirect", open, "GET", "/graphql?query={x}", "", http.Header{"Sec-Fetch-Site": {"none"}, "Sec-Fetch-Mode": {"navigate"}}, 403, "BROWSER_REFUSED"},
		{"GET of a rebound page", listed, "GET", "/graphql?query={x}", "usher.internal:8080", nil, 403, "BROWSER_REFUSED"},
		{"HEAD of a rebound page", listed, "HEAD", "/graphql?query={x}", "usher.internal", nil, 403, ""},
		{"GET of this machine", listed, "GET", "/graphql?query={x}", "localhost:8080", nil, 200, ""},
		{"GET with the key", keyedAndListed, "GET", "/graphql?query={x}", "usher.internal", http.Header{"X-Usher-Key": {"sesame"}}, 200, ""},
		{"no key", keyed, "POST", "/graphql", "", nil, 401, "KEY_REQUIRED"},
		{"wrong key", keyed, "POST", "/graphql", "", http.Header{"X-Usher-Key": {"sesam"}}, 401, "KEY_REQUIRED"},
		{"key as basic", keyed, "POST", "/graphql", "", http.Header{"Authorization": {"Basic sesame"}}, 401, "KEY_REQUIRED"},
		{"wrong password", keyed, "POST", "/graphql", "", basic("sesame", "sesam"), 401, "KEY_REQUIRED"},
		{"both keys", keyed, "POST", "/graphql", "", http.Header{"X-Usher-Key": {"sesame, open-please"}}, 401, "KEY_REQUIRED"},
		{"key as password", keyed, "POST", "/graphql", "", basic("whoever", "sesame"), 200, ""},
		{"the second key", keyed, "POST", "/graphql", "", http.Header{"X-Usher-Key": {"open-please"}}, 200, ""},
		{"the second key as bearer, another in its header", keyed, "POST", "/graphql", "", http.Header{"Authorization": {"Bearer open-please"}, "X-Usher-Key": {"x"}}, 200, ""},
		{"key as bearer", keyed, "POST", "/graphql", "", http.Header{"Authorization": {"bearer sesame"}}, 200, ""},
		{"page that knows the key", keyed, "POST", "/graphql", "", http.Header{"X-Usher-Key": {"sesame"}, "Origin": {"x"}}, 403, "BROWSER_REFUSED"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := calls.Load()
			req, err := http.NewRequest(tc.method, tc.rig.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.URL.Opaque = tc.path // as it is, on the request line
			req.Host = tc.host
			for k, v := range tc.header {
				req.Header[k] = v
			}
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			status, answer := read(t, resp)
			if status != tc.status {
				t.Fatalf("%d, want %d: %s", status, tc.status, answer)
			}
			if tc.code != "" && code(t, answer) != tc.code {
				t.Errorf("got %s", answer)
			}
			if passed := calls.Load() > before; passed != (tc.status == 200) {
				t.Errorf("reached the service: %v", passed)
			}
		})
	}
	if strings.Contains(keyed.log.String(), "sesame") {
		t.Error("the key is in the log")
	}
}

func basic(user, password string) http.Header {
	req := http.Request{Header: http.Header{}}
	req.SetBasicAuth(user, password)
	return req.Header
}
