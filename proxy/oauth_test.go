package proxy

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"usher/internal/guard"
)

// A program whose library fetches tokens gets one from usher itself, which is worth something at this port alone. What
// it sends is neither logged nor passed on.
func TestOAuthToken(t *testing.T) {
	var calls atomic.Int64
	service := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) })
	open := newRig(t, service)
	keyed := newRig(t, service, func(c *Config) { c.Key = func() string { return "sesame, 0pen please" } })
	form := func(pairs ...string) string {
		v := make(url.Values)
		for i := 0; i < len(pairs); i += 2 {
			v.Set(pairs[i], pairs[i+1])
		}
		return v.Encode()
	}
	grant := []string{"grant_type", "client_credentials", "client_id", "whoever", "scope", "all:everything"}
	with := func(secret string) string { return form(append(grant, "client_secret", secret)...) }
	var multi bytes.Buffer
	parts := multipart.NewWriter(&multi)
	_ = parts.WriteField("grant_type", "client_credentials")
	_ = parts.WriteField("client_secret", "sesame")
	parts.Close()
	basicAuth := func(password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte("app:"+password))
	}
	for _, tc := range []struct {
		name   string
		rig    *rig
		header map[string]string
		body   string
		status int
		want   string // the token, or the error
	}{
		{"no key, any secret", open, nil, with("n0-matter"), 200, localToken},
		{"no key, no credentials", open, nil, form("grant_type", "client_credentials"), 200, localToken},
		{"no key, another grant", open, nil, form("grant_type", "password", "password", "n0-matter"), 400, "unsupported_grant_type"},
		{"no key, no grant", open, nil, "", 400, "unsupported_grant_type"},
		{"no form", open, nil, "client_secret=%zz&n0-matter", 400, "invalid_request"},
		{"no JSON", open, map[string]string{"Content-Type": "application/json"}, `{"client_secret":"n0-matter"`, 400, "invalid_request"},
		{"no parts", open, map[string]string{"Content-Type": "multipart/form-data"}, "n0-matter", 400, "invalid_request"},
		{"too large", open, nil, with(strings.Repeat("n0-matter", 10000)), 400, "invalid_request"},
		{"the key", keyed, nil, with("sesame"), 200, "sesame"},
		{"the second key", keyed, nil, with("0pen please"), 200, "0pen please"},
		{"both keys", keyed, nil, with("sesame, 0pen please"), 401, "invalid_client"},
		{"the service's real secret", keyed, nil, with("s3cret"), 401, "invalid_client"},
		{"no secret", keyed, nil, form(grant...), 401, "invalid_client"},
		{"empty secret", keyed, nil, with(""), 401, "invalid_client"},
		{"nothing", keyed, nil, "", 401, "invalid_client"},
		{"wrong secret, another grant", keyed, nil, form("grant_type", "password"), 400, "unsupported_grant_type"},
		{"the key, another grant", keyed, nil, form("grant_type", "refresh_token", "client_secret", "sesame"), 400, "unsupported_grant_type"},
		{"JSON", keyed, map[string]string{"Content-Type": "application/json; charset=utf-8"}, `{"grant_type":"client_credentials","client_secret":"sesame","n":1}`, 200, "sesame"},
		{"JSON, a number", keyed, map[string]string{"Content-Type": "application/json"}, `{"grant_type":"client_credentials","client_secret":1}`, 401, "invalid_client"},
		{"multipart", keyed, map[string]string{"Content-Type": parts.FormDataContentType()}, multi.String(), 200, "sesame"},
		{"Basic", keyed, map[string]string{"Authorization": basicAuth("sesame")}, form(grant...), 200, "sesame"},
		{"Basic, escaped", keyed, map[string]string{"Authorization": basicAuth("0pen+please")}, form(grant...), 200, "0pen please"},
		{"Basic, wrong", keyed, map[string]string{"Authorization": basicAuth("s3cret")}, form(grant...), 401, "invalid_client"},
		{"the key in another place", keyed, map[string]string{"X-Usher-Key": "sesame"}, with("s3cret"), 401, "invalid_client"},
		{"a web page", open, map[string]string{"Origin": "https://evil.example"}, with("n0-matter"), 403, "BROWSER_REFUSED"},
		{"a web page, with the key", keyed, map[string]string{"Sec-Fetch-Site": "cross-site"}, with("sesame"), 403, "BROWSER_REFUSED"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req, err := http.NewRequest("POST", tc.rig.URL+"/oauth/token?client_secret=n0-matter", strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			for name, value := range tc.header {
				req.Header.Set(name, value)
			}
			req.Host = tc.header["Host"]
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			said, err := io.ReadAll(resp.Body)
			var got struct {
				Token string `json:"access_token"`
				Type  string `json:"token_type"`
				Life  int    `json:"expires_in"`
				Error string
			}
			if resp.StatusCode != tc.status || err != nil || json.Unmarshal(said, &got) != nil {
				t.Fatalf("%d %s %v, want %d", resp.StatusCode, said, err, tc.status)
			}
			switch {
			case tc.status == 200 && (got.Token != tc.want || got.Type != "Bearer" || got.Life != 7200),
				tc.status < 402 && tc.status > 200 && got.Error != tc.want,
				!strings.Contains(string(said), tc.want), strings.Contains(string(said), "n0-matter"),
				resp.Header.Get("Cache-Control") != "no-store":
				t.Errorf("%v %s, want %s", resp.Header, said, tc.want)
			}
		})
	}
	for _, path := range []string{"/oauth/token/", "/oauth/Token", "/oauth//token", "/oauth/%74oken", "/oauth"} {
		resp, err := http.Post(open.URL+path, "application/x-www-form-urlencoded", strings.NewReader(with("n0-matter")))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 404 {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
	if n := calls.Load(); n != 0 {
		t.Errorf("%d calls reached the service", n)
	}
	for _, log := range []string{open.log.String(), keyed.log.String()} {
		for _, word := range []string{"n0-matter", "s3cret", "sesame", "0pen", "everything", localToken} {
			if strings.Contains(log, word) {
				t.Errorf("the log has %q", word)
			}
		}
	}
	if !strings.Contains(keyed.log.String(), "code=invalid_client") {
		t.Error("a refused secret is not in the log")
	}
}

// The token that a caller got opens the port that gave it.
func TestOAuthTokenOpensThePort(t *testing.T) {
	r := newRig(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(c *Config) { c.Key = func() string { return "sesame" } })
	for _, token := range []string{"sesame", localToken} {
		req, _ := http.NewRequest("POST", r.URL+"/graphql", strings.NewReader(query))
		req.Header.Set("Authorization", "bearer "+token) // as the service's own client writes it
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if ok := guard.Equal(token, "sesame"); (resp.StatusCode == 200) != ok {
			t.Errorf("%s: %d", token, resp.StatusCode)
		}
	}
}
