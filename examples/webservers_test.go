package examples

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"usher/internal/testkit"
)

// tenantApp is an app that knows its visitors by their cookie, and says what it got.
func tenantApp(t *testing.T, escape func(string) string) (address string) {
	t.Helper()
	sessions := map[string]string{"s-acme": "acme", "s-small": "small", "s-nobody": "nobody", "s-brücke": "brücke & söhne"}
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/session" {
			io.WriteString(w, "app "+r.URL.Path)
			return
		}
		cookie, err := r.Cookie("session")
		if err != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		plain, _ := url.QueryUnescape(cookie.Value)
		tenant, ok := sessions[plain]
		if !ok {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("X-Tenant", escape(tenant))
	}))
	t.Cleanup(app.Close)
	return strings.TrimPrefix(app.URL, "http://")
}

// configured copies an example's configuration with the addresses of this test, and
// returns its folder. Each of them must be in it.
func configured(t *testing.T, file string, replace map[string]string) (dir string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := string(text)
	for from, to := range replace {
		if !strings.Contains(changed, from) {
			t.Fatalf("%s: no %q", file, from)
		}
		changed = strings.ReplaceAll(changed, from, to)
	}
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// An app behind a web server is reached, or not, as usher says.
func TestWebServers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, file string
		escape     func(string) string
		gone       int // what a visitor sees when usher is gone
		command    func(dir string) []string
	}{
		{"nginx", "nginx/nginx.conf", url.QueryEscape, 500, func(dir string) []string {
			return []string{"nginx", "-p", dir, "-c", "nginx.conf", "-g", "daemon off;"}
		}},
		{"caddy", "caddy/Caddyfile", func(s string) string { return s }, 502, func(dir string) []string {
			return []string{"caddy", "run", "--config", filepath.Join(dir, "Caddyfile")}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			needs(t, tc.name)
			port := entitled(t)
			site := testkit.FreeAddress(t)
			dir := configured(t, tc.file, map[string]string{
				"127.0.0.1:3000": tenantApp(t, tc.escape), "127.0.0.1:8070": strings.TrimPrefix(port.url, "http://"),
				"127.0.0.1:8000": site, "change-me": theKey,
			})
			get := func(path, session string, header ...string) int {
				t.Helper()
				r, _ := http.NewRequest("POST", "http://"+site+path, strings.NewReader("a=b"))
				if session != "" {
					r.Header.Set("Cookie", "session="+url.QueryEscape(session))
				}
				for _, h := range header {
					name, value, _ := strings.Cut(h, ": ")
					r.Header.Add(name, value)
				}
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					return -1
				}
				defer resp.Body.Close()
				body, _ := io.ReadAll(resp.Body)
				if got := string(body) == "app "+path; got != (resp.StatusCode == 200) {
					t.Errorf("%s: %s %s", path, resp.Status, body)
				}
				return resp.StatusCode
			}
			// One that stands still when it starts, as Caddy once did for a minute, is started again.
			for tries := 1; ; tries++ {
				out, stop := serve(t, tc.command(dir)...)
				if answers(20*time.Second, func() bool { return get("/", "s-acme") == 200 }) {
					break
				}
				if stop(); tries == 3 {
					t.Fatalf("%s does not answer:\n%s", tc.name, out)
				}
			}
			expect := func(want int, path, session string, header ...string) {
				t.Helper()
				if got := get(path, session, header...); got != want {
					t.Errorf("%s of %s, %q: %d, want %d", path, session, header, got, want)
				}
			}
			expect(200, "/reports/1", "s-acme")
			expect(200, "/reports/1", "s-brücke")
			expect(403, "/reports/1", "s-small")
			expect(200, "/other", "s-small")
			expect(401, "/reports/1", "")
			expect(401, "/other", "s-wrong")
			expect(200, "/reports/1", "s-nobody") // as on day one
			// What the visitor sends changes nothing: not its tenant, nor its key.
			expect(403, "/reports/1", "s-small", "X-Tenant: acme", "X-Usher-Key: wrong", "Authorization: Bearer visitors-own")
			expect(401, "/reports/1", "", "X-Tenant: acme")
			expect(403, "/reports/1?tenant=acme&feature=reports", "s-small")
			expect(200, "/reports/1", "s-acme", "X-Tenant: small", "Origin: http://site.example", "Sec-Fetch-Site: cross-site", "Authorization: Bearer visitors-own")

			port.webhook(t, "eu", "small", `{"code":"reports"}`)
			expect(200, "/reports/1", "s-small")
			port.webhook(t, "eu", "small", ``)
			expect(403, "/reports/1", "s-small")
			port.usher.End()
			expect(tc.gone, "/reports/1", "s-acme") // nobody is let in on a guess
		})
	}
}

// answers waits for so long, and at least for some looks.
func answers(limit time.Duration, f func() bool) bool {
	for began, looks := time.Now(), 0; looks < 20 || time.Since(began) < limit; looks++ {
		if f() {
			return true
		}
		time.Sleep(50 * time.Millisecond) // a real program: nothing to wait on
	}
	return false
}
