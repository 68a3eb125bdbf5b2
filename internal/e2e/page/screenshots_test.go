package page

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// TestScreenshots takes those in docs/screenshots from a running demo:
//
//	USHER_SCREENSHOTS=docs/screenshots USHER_SCREENSHOTS_OF=http://127.0.0.1:9095 go test -run TestScreenshots ./internal/e2e/page
func TestScreenshots(t *testing.T) {
	dir, url := os.Getenv("USHER_SCREENSHOTS"), os.Getenv("USHER_SCREENSHOTS_OF")
	if dir == "" || url == "" {
		t.Skip("USHER_SCREENSHOTS and USHER_SCREENSHOTS_OF do not say where to put them, and of what")
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join("..", "..", "..", dir) // as seen from where the command above is given
	}
	b := newTab(t)
	for _, shot := range []struct {
		name, path, click string
		phone, dark       bool
	}{
		{"overview-light", "/", "", false, false},
		{"overview-dark", "/", "", false, true},
		{"overview-phone-light", "/", "", true, false},
		{"overview-phone-dark", "/", "", true, true},
		{"webhooks-light", "/webhooks", "", false, false},
		{"webhooks-phone-dark", "/webhooks", "", true, true},
		{"webhook-light", "/webhooks?state=delivered", ".rows .when a", false, false},
		{"webhook-phone-light", "/webhooks?state=delivered", ".rows .when a", true, false},
		{"tenant-dark", "/webhooks?state=delivered", ".rows .tenant a", false, true},
		{"tenant-phone-light", "/webhooks?state=delivered", ".rows .tenant a", true, false},
	} {
		height := int64(800)
		if shot.path == "/" {
			height = 1400
		}
		b.do(emulate(shot.phone, shot.dark, height))
		b.open(url + shot.path)
		if shot.click != "" {
			b.click(shot.click)
			b.until("on the page", `document.querySelector(".crumbs")`)
		}
		b.until("live", `document.querySelector(".follow.good")`)
		if shot.path == "/" {
			// In the dark something is wrong: the demo's receiver is down now and then.
			trouble := `!!document.querySelector("#wrong .troubles")`
			if shot.dark {
				trouble = `!!document.querySelector("#wrong .troubles") && !!document.querySelector("#held-up")`
			}
			for tries := 0; tries < 900 && evaluate[bool](b, trouble) != shot.dark; tries++ {
				time.Sleep(200 * time.Millisecond)
			}
		}
		time.Sleep(300 * time.Millisecond) // a moment for the icon
		png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, shot.name+".png"), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func emulate(phone, dark bool, height int64) chromedp.Action[chromedp.Void] {
	viewport, scheme := chromedp.EmulateViewport(1200, height), "light"
	if phone {
		viewport = chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(1.5), chromedp.EmulateMobile)
	}
	if dark {
		scheme = "dark"
	}
	return chromedp.Steps(viewport, chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	}))
}
