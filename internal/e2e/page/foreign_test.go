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

// nothingDone sees to it that nobody acted through the admin port.
func (w *watched) nothingDone(t *testing.T) {
	t.Helper()
	for _, line := range []string{"redelivered by hand", "erased by hand"} {
		if strings.Contains(w.Stderr.String(), line) {
			t.Errorf("the log says %q", line)
		}
	}
	if n := len(w.receiver.Deliveries()); n != 2 {
		t.Errorf("%d deliveries, want 2", n)
	}
}

// A page of another origin can neither read nor act: as the browser sees it, and as the
// server does. 127.0.0.1 with another port is the same site to a browser, localhost is
// another.
func TestForeignPage(t *testing.T) {
	b := newTab(t)
	w := startWatched(t)
	w.send(t, "acme", 5, 10)
	foreign := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(rw, `<title>foreign</title><form method="post" action="%s/redeliver"><input name="id" value="1"><input name="force" value="true"><button>win</button></form>`, w.admin)
	}))
	defer foreign.Close()
	for _, origin := range []string{foreign.URL, strings.Replace(foreign.URL, "127.0.0.1", "localhost", 1)} {
		b.open(origin)
		for _, attempt := range []struct{ name, script, want string }{
			{"read", `fetch(A+"/api/webhooks").then(r => r.text(), () => "failed")`, "failed"},
			{"read blindly", `fetch(A+"/api/status", {mode: "no-cors"}).then(r => r.text(), () => "failed")`, "failed"},
			{"act blindly", `fetch(A+"/api/erase", {method: "POST", mode: "no-cors", body: '{"tenant":"acme"}'}).then(r => r.text(), () => "failed")`, "failed"},
			{"act with a form's type", `fetch(A+"/erase", {method: "POST", mode: "no-cors", body: new URLSearchParams({platform: "crm", tenant: "acme"})}).then(r => r.text(), () => "failed")`, "failed"},
			{"load as a script", `new Promise(done => { const s = document.createElement("script"); s.onload = () => done("loaded"); s.onerror = () => done("failed"); s.src = A+"/static/usher.js"; document.head.append(s); })`, "failed"},
		} {
			script := strings.ReplaceAll(attempt.script, "A+", fmt.Sprintf("%q+", w.admin))
			if got := await(b, script); got != attempt.want {
				t.Errorf("%s from %s: %.200q", attempt.name, origin, got)
			}
		}
		// Framed it stays empty: there is nothing to click on unawares.
		refusals := func() int {
			return strings.Count(w.Stderr.String(), "a page of another origin can neither read nor act here")
		}
		before := refusals()
		if got := await(b, fmt.Sprintf(`new Promise(done => { const f = document.createElement("iframe"); f.onload = () => { try { done(f.contentDocument ? "own" : "foreign") } catch { done("foreign") } }; f.src = %q; document.body.append(f); })`, w.admin+"/webhooks/1?ask=redeliver")); got != "foreign" {
			t.Errorf("framed: %q", got)
		}
		testkit.Eventually(t, "the frame is refused", func() bool { return refusals() > before })
		b.click("form button")
		b.until("refused", `document.body.innerText.includes("a page of another origin can neither read nor act here")`)
		// A link is fine: people send each other addresses.
		b.open(origin)
		evaluate[bool](b, fmt.Sprintf(`location.href = %q, true`, w.admin+"/webhooks"))
		b.until("followed a link", `document.querySelector("h1")?.innerText == "Webhooks"`)
	}
	w.nothingDone(t)
}

// await returns what a promise comes to.
func await(b *tab, script string) string {
	b.t.Helper()
	return evaluate[string](b, `Promise.resolve(`+script+`).then(v => v || "failed")`, chromedp.EvalAwaitPromise)
}

// A name that was made to point to this machine (DNS rebinding) makes a page of its
// own origin; but it is not answered under that name.
func TestReboundName(t *testing.T) {
	b := newTab(t)
	w := startWatched(t)
	w.send(t, "acme", 5, 10)
	u, err := url.Parse(w.admin)
	if err != nil {
		t.Fatal(err)
	}
	evil := "http://evil.test:" + u.Port()
	b.open(evil + "/healthz") // answers any Host, and so is a place to try things from
	for _, attempt := range []string{
		`fetch("/api/webhooks")`, `fetch("/")`, `fetch("/metrics")`,
		`fetch("/api/webhooks/1/redeliver?force=true", {method: "POST"})`, `fetch("/redeliver", {method: "POST", body: new URLSearchParams({id: "1", force: "true"})})`,
		`fetch("/api/erase", {method: "POST", body: '{"tenant":"acme"}'})`,
	} {
		if got := await(b, attempt+`.then(async r => r.status + " " + await r.text())`); !strings.HasPrefix(got, "421 ") || strings.Contains(got, "acme") {
			t.Errorf("%s: %s", attempt, got)
		}
	}
	b.open(evil + "/webhooks")
	if text := b.text("body"); !strings.Contains(text, "this Host is not allowed") || strings.Contains(text, "acme") {
		t.Errorf("the page shows:\n%s", text)
	}
	w.nothingDone(t)
}

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
			`new Promise(done => { const i = new Image(); i.onload = () => done("loaded"); i.onerror = () => done("failed"); i.src = A+"?query={__typename}"; })`,
			// there is no answer to it: what counts is that it gets nowhere
			`navigator.sendBeacon(A, Q) ? "failed" : "failed"`,
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
