//go:build unix

package e2e

import (
	"encoding/base64"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"usher/internal/testkit"
)

// The key in each of its places, and the Hosts that are answered, on every port: with a key any
// address is fine, without one the plain names of loopback are, and USHER_ALLOWED_HOSTS always.
func TestKeysAndHosts(t *testing.T) {
	t.Parallel()
	inbox := func() string { return "USHER_WEBHOOK_INBOX=file:" + filepath.Join(t.TempDir(), "inbox.db") }
	common := []string{"USHER_ALLOWED_HOSTS=usher.test,other.test:81", "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_LISTEN=127.0.0.1:0"}
	open := run(t, testkit.NewService(t).Environ(append(common, inbox())...))
	keyed := run(t, testkit.NewService(t).Environ(append(common, inbox(), "USHER_KEY=0ne-key,an0ther", "USHER_PORTS_0_LISTEN=127.0.0.1:0",
		"USHER_ENTITLEMENTS_KEY=0ne-key, an0ther", "USHER_ADMIN_TOKEN=0ne-key")...))
	open.Ready(t)
	keyed.Ready(t)
	basic := func(pair string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(pair)) }
	// A page of each port, and what a caller gets who is let in.
	pages := []struct {
		listener, method, path, body string
		status                       int
	}{
		{"main", "POST", "/graphql", testkit.Query, 200},
		{"0", "POST", "/graphql", testkit.Query, 200},
		{"entitlements", "GET", "/v1/entitlements/nobody", "", 404},
		{"admin", "GET", "/metrics", "", 200},
	}
	for _, page := range pages {
		try := func(u *testkit.Usher, want int, header ...string) {
			t.Helper()
			header = append(header, "Content-Type", "application/json")
			if r := asked(t, page.method, u.URL(t, page.listener)+page.path, page.body, header...); r.status != want {
				t.Errorf("%s with %q: %d %s, want %d", page.listener, header, r.status, r.body, want)
			}
		}
		if page.listener != "0" {
			for host, want := range map[string]int{
				"usher.test": page.status, "usher.test:99": page.status, "other.test:81": page.status, "localhost": page.status, "[::1]": page.status, "127.1.2.3": page.status,
				"other.test": 421, "evil.test": 421, "10.0.0.7": 421, "0.0.0.0": 421, "[::ffff:127.0.0.1]": 421,
			} {
				try(open, want, "Host", host)
			}
		}
		bearer := []string{"Authorization", "Bearer 0ne-key"}
		try(keyed, page.status, append(bearer, "Host", "10.0.0.7:8080")...)
		try(keyed, page.status, append(bearer, "Host", "usher.test")...)
		try(keyed, 421, append(bearer, "Host", "evil.test")...)
		try(keyed, page.status, bearer...)
		try(keyed, page.status, "Authorization", basic("anyone:0ne-key"))
		try(keyed, 401, "Authorization", basic("0ne-key:"))
		try(keyed, 401, "Authorization", "Bearer wrong")
		try(keyed, 401)
		if page.listener != "admin" {
			try(keyed, page.status, "X-Usher-Key", "0ne-key")
			try(keyed, page.status, "X-Usher-Key", "an0ther")
			try(keyed, page.status, "Authorization", "Bearer an0ther")
		}
	}
	// The gate is for the world: it does not look at the Host, unless it is on loopback and nothing says who may send.
	checked := run(t, gateAlone(newReceiver(t, 200).url, "USHER_WEBHOOK_TOKEN=w3bhook"))
	for _, tc := range []struct {
		gate   *testkit.Usher
		header []string
		want   int
	}{
		{open, nil, 200}, {open, []string{"Host", "usher.test"}, 200}, {open, []string{"Host", "evil.test"}, 421}, {open, []string{"Origin", "http://evil.test"}, 403},
		{checked, []string{"Host", "evil.test"}, 200}, {checked, []string{"Origin", "http://evil.test"}, 200},
	} {
		if r := asked(t, "POST", hooks(t, tc.gate), testkit.Snapshot("acme", 5), append(tc.header, "X-Webhook-Token", "w3bhook")...); r.status != tc.want {
			t.Errorf("the gate with %q: %d %s, want %d", tc.header, r.status, r.body, tc.want)
		}
	}
	// A web page never calls with the key.
	for _, page := range pages[:3] {
		if page.listener == "0" {
			continue
		}
		for _, header := range [][]string{{"Origin", "http://evil.test"}, {"Sec-Fetch-Site", "same-origin"}} {
			if r := asked(t, page.method, open.URL(t, page.listener)+page.path, page.body, header...); r.status != 403 {
				t.Errorf("%s for a page: %d %s", page.listener, r.status, r.body)
			}
		}
		// An address that somebody types opens, but not where a redirect to it could act.
		want := page.status
		if page.listener == "main" {
			want = 403
		}
		if r := asked(t, page.method, open.URL(t, page.listener)+page.path, page.body, "Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"); r.status != want {
			t.Errorf("%s for a typed address: %d %s", page.listener, r.status, r.body)
		}
	}
}

// What every port refuses, the entitlements port refuses, too. (The others have TestProbes.)
func TestEntitlementsProbes(t *testing.T) {
	t.Parallel()
	u := run(t, gateAlone("http://127.0.0.1:1", "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"), "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0"))
	p := &port{name: "entitlements", addr: strings.TrimPrefix(u.URL(t, "entitlements"), "http://"), path: "/v1/entitlements/nobody", auth: "X-Odd: 1"}
	for name, tc := range map[string][2]string{
		"a good request":    {"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n", "404"},
		"CONNECT":           {"CONNECT evil.test:443 HTTP/1.1\r\nHost: {host}\r\n\r\n" + smuggled, "405 closed"},
		"TRACE":             {"TRACE {path} HTTP/1.1\r\nHost: {host}\r\n\r\n", "405 closed"},
		"two lengths":       {"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", "400 closed"},
		"length and chunks": {"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, "405 closed"},
		"a head too large":  {"GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Large: " + strings.Repeat("x", 2<<20) + "\r\n\r\n", "431 closed"},
		"an upgrade":        {"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", "404"},
	} {
		if got := exchange(t, p, p.fill(tc[0])); got != tc[1] {
			t.Errorf("%s: %s, want %s", name, got, tc[1])
		}
	}
}

// With a token, every page and call of the admin port needs it, but for the probes.
func TestAdminTokenGuardsAll(t *testing.T) {
	t.Parallel()
	u := run(t, gateAlone("http://127.0.0.1:1", "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"), "USHER_ADMIN_TOKEN=adm1n"))
	admin := u.URL(t, "admin")
	calls := [][]string{
		{"", "GET", "/api/status"}, {"", "GET", "/api/webhooks"}, {"", "GET", "/api/webhooks/1"}, {"", "GET", "/api/tenants"},
		{"", "GET", "/api/tenant"}, {"", "GET", "/api/actions"}, {"", "POST", "/api/webhooks/1/redeliver"}, {"", "POST", "/api/redeliver"},
		{"", "POST", "/api/discard"}, {"", "POST", "/api/accept"}, {"", "POST", "/api/pause"}, {"", "POST", "/api/resume"},
		{"", "POST", "/api/erase"}, {"", "POST", "/api/reconcile"},
	}
	for _, page := range []string{"/", "/metrics", "/webhooks", "/tenant", "/nowhere"} {
		calls = append(calls, []string{"", "GET", page})
	}
	for _, call := range calls {
		path := call[2]
		if r := asked(t, call[1], admin+path, ""); r.status != 401 || r.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s %s: %d %s", call[1], path, r.status, r.body)
		}
		if r := asked(t, call[1], admin+path, "", "Authorization", "Bearer adm1n"); r.status == 401 {
			t.Errorf("%s %s with the token: %d %s", call[1], path, r.status, r.body)
		}
	}
	for probe, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/readyz/gate": 200, "/readyz/outbound": 404, "/readyz/entitlements": 404} {
		if r := asked(t, "GET", admin+probe, "", "Host", "10.0.0.7"); r.status != want {
			t.Errorf("%s: %d %s", probe, r.status, r.body)
		}
	}
}

// Whatever is measured is usher's, Go's or the process's; and what can be counted is there from
// the start, with zeros.
func TestMetricsAreOurs(t *testing.T) {
	t.Parallel()
	u := run(t, testkit.NewService(t).Environ("USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_LISTEN=127.0.0.1:0"))
	u.Ready(t)
	_, metrics := testkit.Get(t, u.URL(t, "admin")+"/metrics")
	for line := range strings.Lines(metrics) {
		if !regexp.MustCompile(`^(#|usher_|go_|process_)`).MatchString(line) {
			t.Errorf("whose is it? %s", line)
		}
	}
	for _, decision := range []string{"forwarded", "duplicate", "queued", "rejected", "failed"} {
		if want := `usher_webhook_received_total{decision="` + decision + `"} 0`; !strings.Contains(metrics, want) {
			t.Errorf("no %s", want)
		}
	}
}

// A form of another origin's page is a link that somebody follows, as browsers see it: the links
// into usher's pages that are fine must not let it act. With the password at hand the browser adds it.
func TestForeignFormsDoNothing(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, 422)
	u := run(t, gateAlone(rc.url, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"), "USHER_ADMIN_TOKEN=adm1n"))
	testkit.Post(t, hooks(t, u), testkit.Snapshot("acme", 5))
	admin := u.URL(t, "admin")
	parked := func() bool {
		return asked(t, "GET", admin+"/api/webhooks/1", "", "Authorization", "Bearer adm1n").status == 200 && rc.count() == 1
	}
	testkit.Eventually(t, "parked", parked)
	for _, path := range []string{
		"/webhooks/1/redeliver", "/webhooks/1/discard", "/redeliver", "/discard", "/pause", "/resume", "/tenant/forget", "/tenant/erase",
		"/api/webhooks/1/redeliver", "/api/webhooks/1/discard", "/api/redeliver?state=parked", "/api/discard?state=parked", "/api/pause", "/api/resume", "/api/forget", "/api/erase",
	} {
		for _, header := range [][]string{
			{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Origin", "http://evil.test"},
			{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
			{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
			{"Origin", "http://evil.test"},
			{"Origin", "null"},
		} {
			header = append(header, "Authorization", "Bearer adm1n", "Content-Type", "application/x-www-form-urlencoded")
			if r := asked(t, "POST", admin+path, "platform=crm&code=acme&tenant=crm/acme", header...); r.status != 403 {
				t.Errorf("%s with %q: %d %s", path, header[:4], r.status, r.body)
			}
		}
	}
	if !parked() {
		t.Error("something was done")
	}
}

// usher is ready when every local port has had a token, not when the first has.
func TestReadyWithEveryPort(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	u := run(t, s.Environ("USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_0_NAME=second", "USHER_PORTS_0_CLIENT_SECRET=wr0ng"))
	admin := u.URL(t, "admin")
	testkit.Eventually(t, "the first port has a token", func() bool { resp, _ := testkit.Call(t, u.URL(t, "main")); return resp.StatusCode == 200 })
	for _, path := range []string{"/readyz", "/readyz/outbound"} {
		if status, body := testkit.Get(t, admin+path); status != 503 || !strings.Contains(body, "port second has had no token yet") || strings.Contains(body, "port main") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}
