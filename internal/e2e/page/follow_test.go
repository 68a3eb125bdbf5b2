package page

import (
	"context"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

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
