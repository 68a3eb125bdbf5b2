package entitlements

import (
	"encoding/base64"
	"testing"

	"usher/internal/guard"
)

func basic(user, password string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// Callers can send the key in several headers. Nothing replaces it.
func TestKey(t *testing.T) {
	const (
		feature = "/v1/entitlements/acme/users"
		check   = "/v1/check?tenant=acme&feature=users"
		flag    = "/ofrep/v1/evaluate/flags/users"
		good    = "first-key-0123456789"
		second  = "second-key-987654321"
	)
	cfg := config(t)
	cfg.Key = func() string { return good + ", " + second }
	h := New(cfg)
	for _, tc := range []struct {
		name   string
		header []string
		pages  string // that let it in: e, c, f
	}{
		{"none", nil, ""},
		{"bearer", []string{"Authorization: Bearer " + good}, "ecf"},
		{"bearer, the second key", []string{"authorization: bearer " + second}, "ecf"},
		{"basic", []string{basic("anyone", good)}, "ecf"},
		{"header", []string{"X-Usher-Key: " + good}, "ecf"},
		{"API key", []string{"X-API-Key: " + good}, "f"},
		{"API key, wrong", []string{"X-API-Key: wrong"}, ""},
		{"wrong bearer", []string{"Authorization: Bearer wrong"}, ""},
		{"empty header", []string{"X-Usher-Key: "}, ""},
		{"look-alike", []string{"X_Usher_Key: " + good}, ""},
		// In a check, Authorization is that of the visitor.
		{"header, and a visitor's bearer", []string{"X-Usher-Key: " + good, "Authorization: Bearer visitors-own"}, "ecf"},
		{"header, and a visitor's password", []string{"X-Usher-Key: " + good, basic("visitor", "own")}, "ecf"},
		{"wrong header, and the right bearer", []string{"X-Usher-Key: wrong", "Authorization: Bearer " + good}, "ef"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pages := ""
			for _, page := range []struct{ name, method, target, body string }{
				{"e", "GET", feature, ""}, {"c", "GET", check, ""}, {"f", "POST", flag, `{"context":{"targetingKey":"acme"}}`},
			} {
				resp := ask(t, h, page.method, page.target, page.body, tc.header...)
				switch code := errorCode(t, resp); {
				case resp.StatusCode < 300:
					pages += page.name
				case resp.StatusCode != 401 || code != "KEY_REQUIRED" && page.name != "f" || code != "GENERAL" && page.name == "f":
					t.Errorf("%s: %s %s", page.target, resp.Status, code)
				// A web server would pass on the challenge, and the visitor's browser would ask for the key.
				case (resp.Header.Get("Www-Authenticate") == "") != (page.name == "c"):
					t.Errorf("%s: challenge %q", page.target, resp.Header.Get("Www-Authenticate"))
				}
			}
			if pages != tc.pages {
				t.Errorf("lets in on %q, want %q", pages, tc.pages)
			}
		})
	}
	// A key file that is empty or cannot be read lets nobody in.
	for _, keys := range []string{"", ",", " , "} {
		cfg.Key = func() string { return keys }
		for _, header := range []string{"X-Usher-Key: ", "X-Other: 1", "Authorization: Bearer", basic("", ""), "X-API-Key: "} {
			if resp := ask(t, New(cfg), "GET", feature, "", header); resp.StatusCode != 401 {
				t.Errorf("keys %q, %s: %s", keys, header, resp.Status)
			}
		}
	}
	// A caller without the key learns nothing: not whether a tenant, a path or a method exists.
	cfg.Key = func() string { return good }
	for _, target := range []string{"/v1/entitlements/nobody", "/elsewhere", "/v1/check", "/v1/check?tenant=nobody&feature=x"} {
		for _, method := range []string{"GET", "DELETE"} {
			if resp := ask(t, New(cfg), method, target, ""); resp.StatusCode != 401 {
				t.Errorf("%s %s: %s", method, target, resp.Status)
			}
		}
	}
}

// Web pages are refused, except in a check, which carries the headers of a visitor.
func TestBrowsers(t *testing.T) {
	h := New(config(t))
	for _, tc := range []struct {
		header  string
		refused bool
	}{
		{"Origin: https://evil.example", true},
		{"Sec-Fetch-Mode: navigate", false},
	} {
		for _, page := range []struct{ method, target, body, code string }{
			{"GET", "/v1/entitlements/acme", "", "BROWSER_REFUSED"},
			{"GET", "/v1/entitlements/acme/users", "", "BROWSER_REFUSED"},
			{"POST", "/ofrep/v1/evaluate/flags/users", `{"context":{"targetingKey":"acme"}}`, "GENERAL"},
			{"POST", "/ofrep/v1/evaluate/flags", `{"context":{"targetingKey":"acme"}}`, "GENERAL"},
		} {
			resp := ask(t, h, page.method, page.target, page.body, tc.header)
			if code := errorCode(t, resp); (resp.StatusCode == 403 && code == page.code) != tc.refused || !tc.refused && resp.StatusCode != 200 {
				t.Errorf("%s, %s: %s %s", page.target, tc.header, resp.Status, code)
			}
		}
		if resp := ask(t, h, "GET", "/v1/check?tenant=acme&feature=users", "", tc.header); resp.StatusCode != 204 {
			t.Errorf("a check, %s: %s", tc.header, resp.Status)
		}
		// Only the exact path /v1/check is a check.
		if resp := ask(t, h, "GET", "/v1/%63heck?tenant=acme&feature=users", "", tc.header); tc.refused != (resp.StatusCode == 403) {
			t.Errorf("no check, %s: %s", tc.header, resp.Status)
		}
	}
}

// The Host is checked on every path, also for a check.
func TestHost(t *testing.T) {
	cfg := config(t)
	cfg.Hosts = guard.NewHosts("127.0.0.1:8070", []string{"usher.internal"}, false)
	h := New(cfg)
	for host, status := range map[string]int{"usher.internal": 204, "evil.example": 421} {
		// The host of an absolute target counts, not the Host header.
		resp := ask(t, h, "GET", "http://"+host+"/v1/check?tenant=acme&feature=users", "")
		if code := errorCode(t, resp); resp.StatusCode != status || (code == "HOST_REFUSED") != (status == 421) {
			t.Errorf("%s: %s %s", host, resp.Status, code)
		}
	}
}
