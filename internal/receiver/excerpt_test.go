package receiver

import (
	"encoding/base64"
	"html"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"usher/internal/secret"
	"usher/internal/text"
)

// Receivers repeat what usher sends them, in many ways. People see no secret of it, and no piece of the
// address's path or query.
func TestExcerptShowsNoSecret(t *testing.T) {
	address, err := url.Parse("http://app:pa%26ss@receiver/hooks/Zk39aQx7Lm%2FPw2t/fromBilling?token=q8Yb.T0ken~x&n=1")
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{
		"Content-Type": {"application/json"}, "Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		"Cookie": {"session=k00kie; theme=1"}, "X-Webhook-Token": {"the gate's own t0ken"},
	}
	spellers := map[string]func(string) string{ // package secret tests more of them
		"plain":   func(s string) string { return s },
		"2 lines": func(s string) string { return s[:len(s)/2] + "\n" + s[len(s)/2:] },
		"decoded": func(s string) string { u, _ := url.PathUnescape(s); return u },
		"html":    html.EscapeString,
		"base64":  func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
	}
	// What the receiver repeats, and what must not be seen of it, however it is written.
	echoes := []struct {
		part   string
		hidden []string
	}{
		{"/hooks/Zk39aQx7Lm%2FPw2t/fromBilling", []string{"zk39aqx7", "aqx7lm/p", "frombill"}},
		{"token=q8Yb.T0ken~x&n=1", []string{"q8yb.t0k", "t0ken~x&"}},
		{"Zk39aQx7Lm", []string{"zk39aqx7"}},
		{"user app, password pa&ss, of app", []string{"pa&ss", "pa%26ss"}},
		{"Basic " + base64.StdEncoding.EncodeToString([]byte("app:pa&ss")), []string{"yxbwonbh"}},
		{"session=k00kie; theme=1", []string{"k00kie"}},
		{"your cookie is k00kie", []string{"k00kie"}},
		{"it is the gate's own t0ken!", []string{"own t0ken", "t0ken!"}},
	}
	for name, spell := range spellers {
		for _, echo := range echoes {
			r := &Receiver{URL: address, Timeout: time.Minute, Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 500, Header: make(http.Header), Body: io.NopCloser(strings.NewReader("there is no " + spell(echo.part)))}, nil
			})}
			got := r.Try(t.Context(), "id", header, nil).Excerpt
			for _, seen := range []string{got, text.Plain(got), text.Plain("<p>" + got), unescapedAll(got)} {
				seen = strings.ToLower(seen)
				for _, h := range echo.hidden {
					if strings.Contains(seen, h) || strings.Contains(seen, strings.ToLower(spell(h))) && len(spell(h)) >= 8 {
						t.Errorf("%s of %s: %q shows %q", name, echo.part, got, h)
					}
				}
			}
			if !strings.HasPrefix(got, "there is no ") && got != "(not shown: it repeats a secret)" && !strings.Contains(got, "[redacted]") {
				t.Errorf("%s of %s: %q says nothing", name, echo.part, got)
			}
		}
	}
	// The whole request.
	r := &Receiver{URL: address, Timeout: time.Minute, Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
		dump, err := httputil.DumpRequestOut(req, true)
		return &http.Response{StatusCode: 500, Header: make(http.Header), Body: io.NopCloser(strings.NewReader("no such plan\n" + string(dump)))}, err
	})}
	got := r.Try(t.Context(), "id", header, []byte("{}")).Excerpt
	for _, hidden := range []string{"aQx7", "q8Yb", "YXBw", "k00kie", "own t0ken"} {
		if strings.Contains(got, hidden) {
			t.Errorf("%q shows %q", got, hidden)
		}
	}
	for _, seen := range []string{"no such plan", "Traceparent: 00-0af7651916cd43dd8448eb211c80319c", "Content-Type"} {
		if !strings.Contains(got, seen) {
			t.Errorf("%q does not show %q", got, seen)
		}
	}
}

func unescapedAll(s string) string {
	for range 3 {
		if u, err := url.QueryUnescape(html.UnescapeString(s)); err == nil {
			s = u
		}
	}
	return s
}

// An answer that repeats nothing stays as it is, also if a word of it stands in the address, or the end of a
// secret is beyond what is searched.
func TestExcerptStaysReadable(t *testing.T) {
	address, err := url.Parse("https://user:tenant-password@receiver/v1/hooks?a=b")
	if err != nil {
		t.Fatal(err)
	}
	for said, want := range map[string]string{
		"no such user, see https://receiver/admin":                           "no such user, see https://receiver/admin",
		"500: hooks of v1 are closed for acme":                               "500: hooks of v1 are closed for acme",
		`{"error":"no tenant acme","at":"/v1"}`:                              `{"error":"no tenant acme","at":"/v1"}`,
		"<html><h1>No tenant</h1><p>Nothing here.":                           "<html><h1>No tenant</h1><p>Nothing here.",
		strings.Repeat("tenant-password", 273) + "tenant-password and so on": strings.Repeat("[redacted]", 102) + "[red…",
	} {
		settings := []*secret.Value{secret.New("admin:t0ken"), secret.New("https://chat/hook")}
		r := &Receiver{URL: address, Secrets: settings, Timeout: time.Minute, Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 500, Header: make(http.Header), Body: io.NopCloser(strings.NewReader(said))}, nil
		})}
		if got := r.Try(t.Context(), "id", make(http.Header), nil).Excerpt; got != want {
			t.Errorf("%.60q: %.200q", said, got)
		}
	}
}
