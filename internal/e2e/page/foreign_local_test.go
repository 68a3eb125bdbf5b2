package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"usher/internal/testkit"
)

// A page in a browser on the same machine reaches the local port, but no call of it
// reaches the service: not from another origin, in whatever way it is sent, nor under
// a name that was made to point here.
func TestForeignPageOnALocalPort(t *testing.T) {
	b := newTab(t, chromedp.Flag("host-resolver-rules", "MAP evil.test 127.0.0.1"))
	s := newService(t)
	p := start(t, s.Environ())
	p.Ready(t)
	local := p.URL(t, "main")
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<title>foreign</title><form method="post" enctype="text/plain" action="%s/graphql"><input name='{"query":"{__typename}","x":"' value='"}'><button>win</button></form>`, local)
	}))
	defer foreign.Close()
	for _, origin := range []string{foreign.URL, strings.Replace(foreign.URL, "127.0.0.1", "localhost", 1)} {
		for _, script := range []string{
			`fetch(A, {method: "POST", headers: {"Content-Type": "application/json"}, body: Q}).then(r => r.text(), () => "failed")`,
			`fetch(A, {method: "POST", mode: "no-cors", body: Q}).then(r => r.text(), () => "failed")`,
			`fetch(A+"?query={__typename}", {mode: "no-cors"}).then(r => r.text(), () => "failed")`,
			`new Promise(done => { const i = new Image(); i.onload = () => done("loaded"); i.onerror = () => done("failed"); i.src = A+"?query={__typename}"; })`,
			`navigator.sendBeacon(A, Q) ? "failed" : "failed"`, // there is no answer to it: what counts is that it gets nowhere
		} {
			b.open(origin)
			script = strings.NewReplacer("A+", fmt.Sprintf("%q+", local+"/graphql"), "A,", fmt.Sprintf("%q,", local+"/graphql"), "Q", "'"+testkit.Query+"'").Replace(script)
			if got := await(b, script); got != "failed" {
				t.Errorf("from %s, %s: %.200q", origin, script, got)
			}
		}
		b.open(origin)
		b.click("form button")
		b.until("refused", `document.body.innerText.includes("BROWSER_REFUSED")`)
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
