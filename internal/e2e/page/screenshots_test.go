package page

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// TestScreenshot takes the README's, of the page while something is wrong: the receiver does not know one
// tenant, and takes the webhooks of the others.
//
//	USHER_SCREENSHOT=docs/screenshot.png go test -run TestScreenshot ./internal/e2e/page
func TestScreenshot(t *testing.T) {
	file := os.Getenv("USHER_SCREENSHOT")
	if file == "" {
		t.Skip("USHER_SCREENSHOT does not say where to put it")
	}
	w := startWatched(t)
	for n, tenant := range []string{"harbour-ltd", "quay-inc", "acme"} {
		w.send(t, tenant, 5+n, 10*n+8)
	}
	for range 20 {
		wantCall(t, w.URL(t, "main"), 200, "accounts")
	}
	w.receiver.Fail(sandbox.Fault{Status: http.StatusUnprocessableEntity, Body: "unknown tenant: please create it first"})
	post(t, w.gate, snapshot("mill-co", 3))
	testkit.Eventually(t, "it is parked", func() bool { return strings.Contains(w.words(t, "/"), "parked") })
	b := newTab(t)
	b.do(chromedp.EmulateViewport(1200, 640))
	b.open(w.admin)
	b.until("live", `document.querySelector(".follow.good")`)
	b.until("it says so", `document.querySelector("#wrong .troubles")`)
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("..", "..", "..", file), png, 0o644); err != nil {
		t.Fatal(err)
	}
}
