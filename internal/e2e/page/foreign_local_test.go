package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"usher/internal/testkit"
)

// A page in a browser on the same machine reaches the local port, but no call of it
// reaches the service: not from another origin, in whatever way it is sent, nor through a
// redirect of an address that somebody typed, nor under a name that was made to point here.
func TestForeignPageOnALocalPort(t *testing.T) {
	b := newTab(t)
	s := newService(t)
	p := start(t, s.Environ())
	p.Ready(t)
	local := p.URL(t, "main")
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<title>foreign</title><form method="post" enctype="text/plain" action="%s/graphql"><input name='{"query":"{__typename}","x":"' value='"}'><button>win</button></form>`, local)
	}))
	defer foreign.Close()
	for _, origin := range []string{foreign.URL, strings.Replace(foreign.URL, "127.0.0.1", "localhost", 1)} {
		b.open(origin)
		for _, script := range []string{
			`fetch(A, {method: "POST", headers: {"Content-Type": "application/json"}, body: Q}).then(r => r.text(), () => "failed")`,
			`fetch(A, {method: "POST", mode: "no-cors", body: Q}).then(r => r.text(), () => "failed")`,
			`fetch(A+"?query={__typename}", {mode: "no-cors"}).then(r => r.text(), () => "failed")`,
			`new Promise(done => { const i = new Image(); i.onload = () => done("loaded"); i.onerror = () => done("failed"); i.src = A+"?query={__typename}"; })`,
			`navigator.sendBeacon(A, Q) ? "failed" : "failed"`, // there is no answer to it: what counts is that it gets nowhere
		} {
			script = strings.NewReplacer("A+", fmt.Sprintf("%q+", local+"/graphql"), "A,", fmt.Sprintf("%q,", local+"/graphql"), "Q", "'"+testkit.Query+"'").Replace(script)
			if got := await(b, script); got != "failed" {
				t.Errorf("from %s, %s: %.200q", origin, script, got)
			}
		}
		b.click("form button")
		b.until("refused", `document.body.innerText.includes("BROWSER_REFUSED")`)
		b.open(origin + "?to=" + url.QueryEscape(local+"/graphql?query={__typename}"))
		if text := b.text("body"); !strings.Contains(text, "BROWSER_REFUSED") {
			t.Errorf("after a redirect of %s the page shows:\n%s", origin, text)
		}
	}

	u, err := url.Parse(local)
	if err != nil {
		t.Fatal(err)
	}
	b.open("http://evil.test:" + u.Port() + "/graphql?query={__typename}")
	if text := b.text("body"); !strings.Contains(text, "HOST_REFUSED") {
		t.Errorf("the page shows:\n%s", text)
	}
	for _, script := range []string{
		`fetch("/graphql", {method: "POST", headers: {"Content-Type": "application/json"}, body: Q}).then(r => r.text())`,
		`fetch("/graphql?query={__typename}").then(r => r.text())`,
	} {
		if got := await(b, strings.ReplaceAll(script, "Q", "'"+testkit.Query+"'")); !strings.Contains(got, "HOST_REFUSED") {
			t.Errorf("under another name, %s: %.200q", script, got)
		}
	}
	if ok, unauthorized := s.Calls(); ok+unauthorized != 0 {
		t.Errorf("%d calls reached the service", ok+unauthorized)
	}
	// The check that all of that can fail: a call of a program does.
	wantCall(t, local, 200, "accounts")
	if ok, _ := s.Calls(); ok != 1 {
		t.Errorf("%d calls of a program reached the service", ok)
	}
}

// The pages that people read open when they type the address, or follow a redirect to it.
func TestTypedAddress(t *testing.T) {
	b := newTab(t)
	w := startWatched(t, "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0")
	w.send(t, "acme", 5)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, r.URL.Query().Get("to"), http.StatusFound)
	}))
	defer elsewhere.Close()
	for address, part := range map[string]string{
		w.admin + "/webhooks":                              "acme",
		w.URL(t, "entitlements") + "/v1/entitlements/acme": `"users"`,
	} {
		for _, typed := range []string{address, elsewhere.URL + "?to=" + url.QueryEscape(address)} {
			b.open(typed)
			if text := b.text("body"); !strings.Contains(text, part) {
				t.Errorf("%s shows:\n%s", typed, text)
			}
		}
	}
}
