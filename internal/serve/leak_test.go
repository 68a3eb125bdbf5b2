package serve_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"usher/internal/sandbox"
)

// The test makes everything go wrong that can. Then it follows all links and fetches every page and every answer of the
// API. None of them, no answer to a caller or sender, and no line of the log at debug level may contain a secret, a
// token or a part of one, or, without an inbox, a contact's address.
func TestNothingSecretShows(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"inbox", "pass-through"} {
		t.Run(mode, func(t *testing.T) { crawlForSecrets(t, mode == "inbox") })
	}
}

const leakSecret = "t0psecret" // of the client, as newService has it

func crawlForSecrets(t *testing.T, withInbox bool) {
	var mu sync.Mutex
	secrets := map[string]bool{leakSecret: true} // guarded by mu
	b := sandbox.NewBilling(sandbox.Client{ID: "app", Secret: leakSecret, Scopes: []string{"standard:read", "standard:write"}})
	billing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
			mu.Lock()
			secrets[token] = true
			for part := range strings.SplitSeq(token, ".") {
				secrets[part] = true
			}
			mu.Unlock()
		}
		b.ServeHTTP(w, r)
	}))
	t.Cleanup(billing.Close)
	receiver := sandbox.NewReceiver()
	receiving := httptest.NewServer(receiver)
	t.Cleanup(receiving.Close)

	const key, hook, mac, adminToken = "k3yOfTheCallers", "h00kToken", "m4cOfTheBodies", "adm1nToken"
	sign := "whsec_" + base64.StdEncoding.EncodeToString([]byte("s1gningSecretOfUs"))
	for _, secret := range []string{key, hook, mac, adminToken, sign, strings.TrimPrefix(sign, "whsec_"), "r3ceiversPassword", "r3ceiversQuery", "r3ceiversPath", "s3ndersCookie", "s3ndersApiKey"} {
		secrets[secret] = true
	}
	if !withInbox {
		secrets["ada@customer.example"] = true
	}
	forward := strings.Replace(receiving.URL, "http://", "http://user:r3ceiversPassword@", 1) + "/r3ceiversPath?token=r3ceiversQuery"
	environ := []string{
		"USHER_BASE_URL=" + billing.URL, "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=" + leakSecret,
		"USHER_LISTEN=127.0.0.1:0", "USHER_KEY=" + key, "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_ADMIN_TOKEN=" + adminToken,
		"USHER_WEBHOOK_FORWARD_URL=" + forward, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_TOKEN=" + hook,
		"USHER_WEBHOOK_SIGNING_KEY=" + mac, "USHER_WEBHOOK_FORWARD_SIGNING_KEY=" + sign, "USHER_WEBHOOK_TRIES=1",
		"USHER_LOG_LEVEL=debug", "USHER_LOG_FORMAT=json",
	}
	if withInbox {
		environ = append(environ, "USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"))
	}
	p := start(t, environ)
	p.Ready(t)

	answers := "" // to callers and senders
	calls := func() {
		req, err := http.NewRequest("POST", p.URL(t, "main")+"/graphql", strings.NewReader(query))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Usher-Key", key)
		resp, err := http.DefaultClient.Do(req)
		resp, body := whole(t, resp, err)
		answers += fmt.Sprint(resp.Header) + body
	}
	calls()
	b.Revoke()
	calls()

	gate := p.URL(t, "webhooks") + "/webhooks"
	send := func(url, body string) {
		h := hmac.New(sha1.New, []byte(mac))
		h.Write([]byte(body))
		signature := hex.EncodeToString(h.Sum(nil))
		secrets[signature] = true
		_, _, answer := post(t, url, body, "X-Bunny-Signature", signature, "Authorization", "Bearer "+hook, "Cookie", "s3ndersCookie", "X-Api-Key", "s3ndersApiKey")
		answers += answer
	}
	contact := strings.Replace(snapshot("acme", 5), `"name":"T"`, `"name":"T","account":{"id":1,"name":"A","billing_day":1,"contacts":[{"id":1,"first_name":"Ada","last_name":"K","email":"ada@customer.example"}]}`, 1)
	send(gate+"/"+hook, contact)
	send(gate, contact)
	send(gate, snapshot("acme", 6))
	send(gate, `{"type":"Other"}`)
	send(gate+"/"+hook+"/"+hook, `{}`)
	post(t, gate+"/"+hook, "{}", "X-Bunny-Signature", "wrong")
	receiver.Fail(sandbox.Fault{Status: 422, Body: "no"})
	send(gate, snapshot("acme", 7))
	receiver.Fail(sandbox.Fault{HangUp: true})
	send(gate, snapshot("acme", 8))
	b.EditClient("app", func(c *sandbox.Client) { c.Secret = "an0therSecret" })
	secrets["an0therSecret"] = true
	b.Revoke()
	calls()

	pages := crawl(t, p.URL(t, "admin"), adminToken)
	if len(pages) < 20 {
		t.Errorf("only %d pages were found: %v", len(pages), pages)
	}
	p.End()
	pages["an answer"], pages["the log"] = answers, p.Stdout.String()+p.Stderr.String()
	mu.Lock()
	defer mu.Unlock()
	if len(secrets) < 18 {
		t.Errorf("only %d secrets are known: the tokens are not among them", len(secrets))
	}
	for where, content := range pages {
		for secret := range secrets {
			for _, form := range []string{secret, url.QueryEscape(secret), html.EscapeString(secret), base64.StdEncoding.EncodeToString([]byte(secret))} {
				if strings.Contains(content, form) {
					t.Errorf("%s shows %s", where, secret)
					break
				}
			}
		}
	}
	if all := strings.Join([]string{pages["/"], pages["/webhooks"]}, ""); !strings.Contains(all, "acme") || !strings.Contains(all, "invalid_client") || !strings.Contains(all, "USHER_CLIENT_SECRET: ") || !strings.Contains(pages["the log"], "long before it expired") {
		t.Error("the pages, or the log, don't show what happened")
	}
}

var link = regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)

// crawl follows all links from the front page, and returns the header and body of each answer.
func crawl(t *testing.T, base, token string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	todo := []string{"/", "/metrics", "/healthz", "/readyz", "/api/status", "/api/webhooks", "/api/webhooks?limit=500",
		"/api/tenant?platform=crm&code=acme", "/nowhere", "/webhooks?state=lost", "/tenants?search=acme"}
	for id := range 8 {
		for _, prefix := range []string{"", "d"} {
			n := prefix + string(rune('1'+id))
			todo = append(todo, "/api/webhooks/"+n, "/webhooks/"+n)
		}
	}
	for len(todo) > 0 && len(found) < 300 {
		path := todo[0]
		todo = todo[1:]
		if found[path] != "" {
			continue
		}
		req, err := http.NewRequest("GET", base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("me", token)
		req.Header.Set("Accept", "text/html")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var header strings.Builder
		_ = resp.Header.Write(&header)
		body, err := io.ReadAll(resp.Body)
		if resp.Body.Close(); err != nil {
			t.Error(err)
		}
		found[path] = header.String() + string(body)
		if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(found[path], -1) {
			if to := html.UnescapeString(m[1]); strings.HasPrefix(to, "/") {
				todo = append(todo, to)
			} else if !strings.HasPrefix(to, "#") {
				t.Errorf("%s points to %s", path, to)
			}
		}
	}
	return found
}
