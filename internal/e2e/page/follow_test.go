package page

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// stay marks the page that is open; stayed finds out whether it still is.
func stay(b *tab) { evaluate[bool](b, `window.stays = true`) }

func stayed(b *tab) {
	b.t.Helper()
	if !evaluate[bool](b, `window.stays === true`) {
		b.t.Error("the page was loaded again")
	}
}

// The gate's decisions are numbered anew after a restart. A page that shows one of before
// says that it is out of date; and when there is another one of its number, all of the
// page is about that.
func TestPageAfterARestart(t *testing.T) {
	b := newTab(t)
	address := "USHER_ADMIN_LISTEN=" + testkit.FreeAddress(t)
	w := startWatched(t, address, "USHER_WEBHOOK_INBOX=")
	post(t, w.gate, `{"type":"TenantProvisioningChange"}`)
	b.open(w.admin + "/webhooks/d1")
	b.until("live", `document.querySelector(".follow.good")`)
	if text := b.text("main"); !strings.Contains(text, "/payload") {
		t.Fatalf("the page does not say what is wrong with it:\n%s", text)
	}
	stay(b)
	w.Stop()
	<-w.Ended
	b.until("told that usher is away", `/^not connected: as of \d\d:\d\d:\d\d UTC$/.test(document.querySelector("#follow").innerText) && document.querySelector("[data-live].stale")`)
	w = startWatched(t, address, "USHER_WEBHOOK_INBOX=")
	b.until("told that it is gone", `document.querySelector("#follow").innerText.startsWith("out of date: as of ")`)
	post(t, w.gate, "{")
	b.until("live again", `document.querySelector(".follow.good") && !document.querySelector(".stale")`)
	if text := b.text("main"); strings.Contains(text, "/payload/change") {
		t.Errorf("two webhooks are mixed:\n%s", text)
	}
	stayed(b)
}

// A connection over which nothing comes any more, though nobody was told of its end, is
// given up: a laptop slept, or a network changed.
func TestPageOverADeadConnection(t *testing.T) {
	b := newTab(t)
	w := startWatched(t)
	b.open(w.admin + "/")
	b.until("live", `document.querySelector(".follow.good")`)
	stay(b)
	// From now on no answer comes, and time is short.
	evaluate[bool](b, `(() => {
		const timeout = AbortSignal.timeout.bind(AbortSignal);
		AbortSignal.timeout = (ms) => timeout(ms / 100);
		window.works = fetch;
		window.asked = 0;
		window.fetch = (_, {signal}) => new Promise((_, fail) => { asked++; signal.onabort = () => fail(signal.reason); });
		return true;
	})()`)
	b.until("another try", `asked > 2`)
	b.until("told so", `/^not connected: as of \d\d:\d\d:\d\d UTC$/.test(document.querySelector("#follow").innerText) && document.querySelector("[data-live].stale")`)
	evaluate[bool](b, `!!(fetch = works)`)
	b.until("live again", `document.querySelector(".follow.good")`)
	stayed(b)
}

// Without its script the page can be read, and what it offers be done.
func TestPageWithoutScript(t *testing.T) {
	b := newTab(t)
	w := startWatched(t)
	w.send(t, "acme", 5, 10)
	b.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	}))
	b.open(w.admin + "/webhooks?tenant=acme")
	if text := b.text(".rows"); !strings.Contains(text, "users 5 → 10") {
		t.Errorf("the list says:\n%s", text)
	}
	b.open(w.admin + "/webhooks/2?ask=redeliver")
	b.click(".ask form button")
	b.until("redelivered", `location.href.endsWith("/webhooks/2?did=redeliver")`)
	testkit.Eventually(t, "delivered again", func() bool { return len(w.receiver.Deliveries()) == 3 })
	b.until("told that the page stands still", `document.querySelector("footer").innerText.includes("Without JavaScript")`)
}

// With an admin token a browser asks for a password, and the page follows as ever.
func TestPageWithAPassword(t *testing.T) {
	b := newTab(t)
	w := startWatched(t, "USHER_ADMIN_TOKEN=adm1n")
	b.open(strings.Replace(w.admin, "http://", "http://me:adm1n@", 1) + "/webhooks")
	b.until("live", `document.querySelector(".follow.good")`)
	resp, err := http.Get(w.admin + "/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 401 || !strings.HasPrefix(resp.Header.Get("WWW-Authenticate"), "Basic ") {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}

// Long names, and no room: nothing hangs over the edge.
func TestPageOnAPhone(t *testing.T) {
	b := newTab(t)
	w := startWatched(t)
	long := strings.Repeat("a-tenant-with-a-very-long-name-", 6) + strings.Repeat("x", 60)
	w.send(t, long, 5, 10)
	w.receiver.Fail(sandbox.Fault{Status: http.StatusBadRequest})
	w.send(t, "parked", 1)
	post(t, w.gate, "{")
	b.do(emulate(true, false, 800))
	// Of the questions, which have one template, those with a name and with a list.
	for _, path := range []string{"/", "/webhooks", "/webhooks/2", "/webhooks/3", "/tenant?platform=crm&code=" + long,
		"/webhooks?ask=redeliver&state=parked", "/tenant?ask=erase&platform=crm&code=" + long, "/nowhere"} {
		b.open(w.admin + path)
		// What has waited for long. And not innerWidth: a phone makes that as wide as what hangs over.
		evaluate[bool](b, `document.querySelectorAll(".tiles dd").forEach((e, i) => { if (i == 1) e.textContent = "8m 36s"; }), true`)
		if over := evaluate[int](b, `document.documentElement.scrollWidth - screen.width`); over > 0 {
			t.Errorf("%s is %d pixels too wide", path, over)
		}
		if text := b.text("main"); text == "" {
			t.Errorf("%s is empty", path)
		}
	}
}

// A filter is applied once it is changed; a webhook's payload can be copied, and one goes from webhook to webhook of
// its tenant; a table of figures that is opened moves nothing.
func TestPageAtHand(t *testing.T) {
	b := newTab(t)
	w := startWatched(t)
	w.send(t, "acme", 5, 10)
	w.send(t, "other", 7)
	post(t, w.gate, "{")
	b.open(w.admin + "/webhooks")
	b.until("all of them", `document.querySelectorAll(".rows tbody tr").length >= 4`)
	evaluate[bool](b, `(() => { const s = document.querySelector("select[name=state]"); s.value = "invalid"; return s.dispatchEvent(new Event("change", {bubbles: true})); })()`)
	b.until("one of them, with nothing else in the address", `location.search == "?state=invalid" && document.querySelectorAll(".rows tbody tr").length == 1`)
	b.open(w.admin + "/webhooks?since=2001-01-01T00:00&until=2001-01-02T00:00")
	b.until("nothing in those days", `document.querySelector("#list").innerText.includes("No webhook matches")`)

	b.open(w.admin + "/webhooks/2")
	evaluate[bool](b, `!!(navigator.clipboard.writeText = async (text) => { window.copied = text; })`)
	b.click(`button[data-copy=body]`)
	b.until("the payload is copied", `JSON.parse(window.copied).payload.tenant.code == "acme"`)
	b.click(`.neighbours a[rel=prev]`)
	b.until("the one before it", `location.pathname == "/webhooks/1" && !document.querySelector(".neighbours a[rel=prev]")`)
	b.click(`.neighbours a[rel=next]`)
	b.until("and back", `location.pathname == "/webhooks/2"`)

	b.open(w.admin + "/")
	const place = `document.querySelector("#latest").getBoundingClientRect().top`
	before := evaluate[float64](b, place)
	evaluate[bool](b, `document.querySelector("#decisions-table").open = true`)
	if after := evaluate[float64](b, place); after != before || evaluate[float64](b, `document.querySelector("#decisions-table .scroll").getBoundingClientRect().height`) < 50 {
		t.Errorf("the table moves what is below it from %v to %v, or is not there", before, after)
	}
}
