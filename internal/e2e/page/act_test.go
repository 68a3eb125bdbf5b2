package page

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// One night on the page, with each of its buttons: a tenant is held up, and tried now; its poisoned webhook is discarded;
// deliveries are paused, which every page says, and resumed; what is parked is sent again at once; a tenant is erased; an
// invalid webhook is accepted; and one is found by its tenant, read, and sent again although it is old. What comes
// meanwhile shows without a reload.
func TestPageInABrowser(t *testing.T) {
	b := newTab(t)
	w := startWatched(t)
	complaints := b.complaints()
	quietPage(t, b, w)
	w.receiver.FailFor("harbour-ltd", sandbox.Fault{Status: http.StatusInternalServerError, Body: "8 users are in use"})
	for _, tenant := range []string{"mill-co", "quay-inc"} {
		w.receiver.FailFor(tenant, sandbox.Fault{Status: http.StatusUnprocessableEntity, Body: "unknown tenant"})
	}
	for i, tenant := range []string{"harbour-ltd", "harbour-ltd", "mill-co", "quay-inc"} {
		post(t, w.gate, snapshot(tenant, i+1))
	}
	b.until("told who is held up", `/crm\/harbour-ltd is held up by webhook 1 \(500: 8 users are in use, \d+ tr(y|ies), next try .*; 1 waits behind it\)/.test(document.querySelector("#wrong").innerText)`)
	b.open(w.admin + "/webhooks/2")
	b.until("it waits behind 1", `document.querySelector("#stand").innerText.includes("behind 1")`)
	before := len(w.receiver.Deliveries())
	release := w.holdUp(t)
	b.click(`form[action="/redeliver"] button`)
	b.until("told that it is tried", `location.pathname == "/webhooks/1" && document.querySelector(".notice")?.innerText == "You asked usher to redeliver it: see its state below."`)
	stay(b)
	release()
	b.until("tried", `document.querySelectorAll(".tried tbody tr").length > 1`)
	b.until("not told any more, though it waits again", `!document.querySelector(".notice")`)
	stayed(b)
	if after := len(w.receiver.Deliveries()); after < before {
		t.Errorf("%d deliveries, then %d", before, after)
	}

	// All is paused, and every page says so.
	b.open(w.admin + "/")
	b.click(`a[href="/?ask=pause"]`)
	b.until("asked", `document.querySelector(".ask h1").innerText == "Pause all deliveries?"`)
	b.click(".ask form button")
	b.until("the banner", `location.pathname == "/" && document.querySelector("#paused").innerText.includes("Paused: all deliveries since ")`)
	b.until("the receiver", `document.querySelector("#receiver-main").innerText.includes("paused")`)
	b.until("why the tenant is held up", `document.querySelector("#wrong").innerText.includes("paused; 1 waits behind it)")`)
	for _, path := range []string{"/webhooks", "/webhooks/2", "/tenant?platform=crm&code=harbour-ltd"} {
		if text := w.words(t, path); !strings.Contains(text, "Paused: all deliveries since ") {
			t.Errorf("no banner on %s:\n%s", path, text)
		}
	}
	b.open(w.admin + "/webhooks/1?ask=discard")
	b.until("asked", `document.querySelector(".ask h1").innerText == "Discard webhook 1?" && document.querySelector(".ask").innerText.includes("never gets this snapshot of crm/harbour-ltd")`)
	b.click(".ask form button.danger")
	b.until("discarded", `document.querySelector("#stand .badge")?.innerText == "discarded" && document.querySelector(".notice")?.innerText == "It is discarded."`)
	stay(b)
	b.click("#paused form button")
	b.until("resumed", `location.pathname == "/" && document.querySelector(".notice")?.innerText == "Resumed." && !document.querySelector("#paused li")`)
	w.receiver.FailFor("harbour-ltd", sandbox.Fault{})
	testkit.Eventually(t, "the next one is delivered, and compared with nothing that was taken", func() bool {
		text := w.words(t, "/webhooks/2")
		return strings.Contains(text, " delivered ") && strings.Contains(text, "has not accepted any earlier snapshot")
	})

	// One receiver, then one tenant; what somebody else does shows without a reload.
	stay(b)
	// A menu that was opened with a right click does not hold up what comes: its end is not told.
	evaluate[bool](b, `["pointerdown", "contextmenu"].every((name) => document.body.dispatchEvent(new PointerEvent(name, {bubbles: true})))`)
	// Whoever is at something is not disturbed by what comes.
	evaluate[bool](b, `document.querySelector("#w-3 .id a").focus(), document.querySelector("#calls-main-table").open = true`)
	p := start(t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(w.admin, "http://")}, "inbox", "pause", "--tenant", "crm/harbour-ltd")
	<-p.Ended
	b.until("the tenant is paused", `document.querySelector("#paused").innerText.includes("Paused: tenant crm/harbour-ltd since ")`)
	if !evaluate[bool](b, `document.activeElement === document.querySelector("#w-3 .id a") && document.querySelector("#calls-main-table").open`) {
		t.Errorf("the focus, or the opened table, is lost: %s", evaluate[string](b, `document.activeElement.outerHTML`))
	}
	stayed(b)
	b.click(`a[href="/?ask=pause&receiver=main"]`)
	b.click(".ask form button")
	b.until("the receiver is, too", `document.querySelector("#paused").innerText.includes("Paused: receiver main since ")`)
	for _, left := range []int{1, 0} {
		b.click("#paused form button")
		b.until("resumed", fmt.Sprintf(`document.querySelector(".notice")?.innerText == "Resumed." && document.querySelectorAll("#paused li").length == %d`, left))
	}

	// From "mill-co cannot use single sign-on" to the mended customer, in four clicks.
	clicks := 0
	click := func(selector string) { clicks++; b.click(selector) }
	w.receiver.FailFor("mill-co", sandbox.Fault{})
	w.receiver.FailFor("quay-inc", sandbox.Fault{})
	b.until("told who is parked, and why", `document.querySelector("#wrong").innerText.includes("2 webhooks of crm/quay-inc and crm/mill-co are parked") && document.querySelector("#wrong").innerText.includes("the receiver answered: 422: unknown tenant")`)
	click(`nav a[href="/tenants"]`)
	click(`section[aria-labelledby="troubled"] a[href*="code=mill-co"]`)
	b.until("told what is wrong", `/^usher has answered this since .*, by webhook 3/.test(document.querySelector("#since").innerText) && /^The receiver does not have it: webhook 3 is parked \(since .*\)\. Show 3\s+422: unknown tenant\. Fix the receiver, then redeliver it\./.test(document.querySelector("#receipt").innerText)`)
	click("#receipt a.button")
	b.until("asked", `document.querySelector(".ask h1")?.innerText == "Redeliver webhook 3?"`)
	click(".ask form button")
	b.until("delivered", `document.querySelector("#stand .badge")?.innerText == "delivered"`)
	if clicks > 4 {
		t.Errorf("%d clicks", clicks)
	}
	b.click(`.facts a[href^="/tenant"]`)
	b.until("the customer has it", `/^The receiver has it, since /.test(document.querySelector("#receipt").innerText)`)

	// What is parked, all at once.
	b.open(w.admin + "/webhooks?state=parked")
	b.click(`a[href="/webhooks?ask=redeliver&state=parked"]`)
	b.until("asked", `document.querySelector(".ask h1")?.innerText == "Redeliver 1 webhook?"`)
	release = w.holdUp(t)
	b.click(".ask form button")
	b.until("told so", `document.querySelector(".notice")?.innerText == "usher redelivers them."`)
	release()
	b.until("delivered", `document.querySelector("#w-4").innerText.includes("delivered")`)
	b.open(w.admin + "/tenant?platform=crm&code=harbour-ltd")
	b.click(`a[href^="/tenant?ask=erase"]`)
	b.until("asked what is lost", `document.querySelector(".ask")?.innerText.includes("It has 2 webhooks") && document.querySelector(".ask").innerText.includes("can't be undone")`)
	b.click(".ask form button.danger")
	b.until("erased", `document.querySelector(".notice")?.innerText == "The tenant is erased." && document.querySelectorAll(".rows tbody tr").length == 2`)
	invalidOnThePage(t, b, w)
	foundOnThePage(t, b, w)
	for _, complaint := range complaints() {
		if !strings.Contains(complaint, "409") { // the warning before an old one is sent again
			t.Errorf("the browser complains: %s", complaint)
		}
	}
	if status, body := get(t, w.admin+"/api/tenant?platform=crm&code=harbour-ltd"); status != 404 {
		t.Errorf("%d %s", status, body)
	}
}

// invalidOnThePage: the overview leads to a webhook that is invalid, whose page has each fault and its
// place; it is taken in there.
func invalidOnThePage(t *testing.T, b *tab, w *watched) {
	w.send(t, "quay-inc", 5)
	b.open(w.admin + "/")
	stay(b)
	body := strings.Replace(strings.Replace(snapshot("quay-inc", 5), `"subscriptions":[]`, `"subscriptions":[{"plan":{"code":1}}]`, 1), `"features":[`, `"features":[{"code":"sso","name":"SSO"},`, 1)
	if status, _, answer := post(t, w.gate, body); status != 422 {
		t.Fatalf("%d %s", status, answer)
	}
	b.until("told whose, and what is wrong", `/usher rejected 1 webhook of crm\/quay-inc[^]*\/payload\/change\/subscriptions\/0\/plan\/code/.test(document.querySelector("#wrong").innerText)`)
	stayed(b)
	b.click(`#wrong a[href^="/webhooks/"]`)
	b.until("on its page", `document.querySelector("#stand .badge")?.innerText == "invalid"`)
	b.until("the fault and its place", `/\/subscriptions\/0\/plan\/code\s+must be/.test(document.querySelector("#webhook").innerText)`)
	b.until("what it would have changed", `document.querySelector("#diff").innerText.startsWith("would have added sso")`)
	id := strings.TrimPrefix(evaluate[string](b, "location.pathname"), "/webhooks/")
	if text := w.words(t, "/tenant?platform=crm&code=quay-inc"); !strings.Contains(text, "usher rejected webhook "+id+" of this tenant") {
		t.Errorf("no line on the tenant's page:\n%s", text)
	}
	b.click(`a[href="/webhooks/` + id + `?ask=accept"]`)
	b.until("asked", `document.querySelector(".ask h1")?.innerText == "Accept webhook `+id+`?"`)
	b.click(".ask form button")
	b.until("taken in", `document.querySelector("#stand .badge")?.innerText == "replaced" && document.querySelector(".notice")?.innerText.startsWith("It is accepted")`)
	if text := w.words(t, "/tenant?platform=crm&code=quay-inc"); strings.Contains(text, "usher rejected") || !strings.Contains(text, " replaced ") {
		t.Errorf("the tenant's page afterwards:\n%s", text)
	}
	testkit.Eventually(t, "no trouble any more", func() bool { return !strings.Contains(testkit.Wrong(w.words(t, "/")), "usher rejected") })
	b.click(`nav a[href="/actions"]`)
	b.until("who did what", `/accept\s+1\s.*\s`+id+`$/.test(document.querySelector("#actions tbody tr").innerText)`)
}

// quietPage: all is well, and the page says so. One that is open all day costs a browser nothing between two looks at
// usher, also for somebody who likes motion.
func quietPage(t *testing.T, b *tab, w *watched) {
	b.open(w.admin + "/")
	b.until("all is well", `document.querySelector("#wrong").innerText.includes("All is well")`)
	b.until("live", `document.querySelector(".follow.good")`)
	motion := func(features ...*emulation.MediaFeature) {
		b.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
			_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features})
			return err
		}))
	}
	motion(&emulation.MediaFeature{Name: "prefers-reduced-motion", Value: "no-preference"})
	if n := evaluate[int](b, `document.getAnimations().length`); n != 0 {
		t.Errorf("%d animations run on the page", n)
	}
	motion()
	if text := b.text("#ports-live"); !strings.Contains(text, "token valid for ") || !strings.Contains(text, "fingerprint ") {
		t.Errorf("the port is described so:\n%s", text)
	}
}

// foundOnThePage: a webhook is found by its tenant, and what it changed is read; the one before it, which would undo it,
// is sent again only after a warning.
func foundOnThePage(t *testing.T, b *tab, w *watched) {
	for users := 5; users <= 10; users += 5 {
		post(t, w.gate, snapshot("acme", users))
	}
	b.click(`nav a[href="/webhooks"]`)
	b.press("input[name=tenant]", "crm/acme\r")
	b.until("two webhooks", `document.querySelectorAll(".rows tbody tr").length == 2`)
	b.until("both delivered, the newer one in front", `document.querySelector(".rows tbody tr").innerText.includes("users 5 → 10") && [...document.querySelectorAll(".rows tbody tr")].every((row) => row.innerText.includes("delivered"))`)
	older := evaluate[string](b, `new URL(document.querySelectorAll(".rows tbody tr")[1].querySelector(".id a").href).pathname`)
	b.click(".rows tbody tr .id a")
	b.until("the webhook", `document.querySelector("#diff")?.innerText == "users 5 → 10"`)
	if payload := b.text("#body"); !strings.Contains(payload, `"quantity": 10`) {
		t.Errorf("the payload is %q", payload)
	}
	newer := strings.TrimPrefix(evaluate[string](b, "location.pathname"), "/webhooks/")

	b.open(w.admin + older + "?ask=redeliver")
	b.until("warned", `document.querySelector(".ask .troubles")?.innerText.includes("Webhook `+newer+` of the same tenant is newer: this would overwrite it.")`)
	b.press(".ask form button.danger", "\r") // by keyboard
	b.until("sent all the same", `location.pathname == "`+older+`"`)
	b.until("delivered, so that nothing moves any more", `document.querySelector("#stand .badge")?.innerText == "delivered"`)
	b.click(`.who`)
	b.until("the tenant", `document.querySelector("#timeline-live") && document.querySelector(".features")`)
	if text := b.text("#timeline-live"); strings.Count(text, "delivered") < 2 {
		t.Errorf("the timeline says:\n%s", text)
	}
	if text := b.text(".features"); !strings.Contains(text, "users") || !strings.Contains(text, "10") {
		t.Errorf("the features are:\n%s", text)
	}
}
