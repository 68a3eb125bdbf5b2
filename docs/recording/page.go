package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"html"
	"os/exec"
	"strings"
	"time"

	"github.com/chromedp/chromedp"
)

const (
	pageWidth, pageHeight = 664, 676 // as the terminal, less the bar with the address
	barHeight             = 28
	shrink                = 1.5             // so that a desktop's layout fits; the text stays readable
	pageTime              = 2 * time.Second // for each picture
)

// shown are the pages at the end: of the admin page, while the demo runs on.
var shown = []string{"/", "/webhooks", "/tenant?platform=crm&code=acme"}

// picture is a page as Chromium shows it.
type picture struct {
	url string
	png []byte
}

// photograph takes the pages in a Chromium.
func photograph(ctx context.Context, admin string) (pictures []picture, err error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, fmt.Errorf("%w (Debian: apt-get install chromium)", err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
		chromedp.NoSandbox,                           // Chromium's own does not work for root
		chromedp.Flag("disable-dev-shm-usage", true)) // containers have a small one
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(pageWidth*shrink, pageHeight*shrink, chromedp.EmulateScale(1.25))); err != nil {
		return nil, err
	}
	for _, page := range shown {
		if err := chromedp.Do(ctx, chromedp.Navigate(admin+page), chromedp.WaitVisible(chromedp.CSS(".follow.good"))); err != nil {
			return nil, fmt.Errorf("%s: %w", page, err)
		}
		png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", page, err)
		}
		pictures = append(pictures, picture{admin + page, png})
	}
	return pictures, nil
}

// drawPages draws the pictures over the terminal: the first at the given time, then one after
// the other.
func drawPages(pictures []picture, at time.Duration) (styles, body string) {
	var css, svg strings.Builder
	for i, p := range pictures {
		from := 100 * float64(at+time.Duration(i)*pageTime) / float64(length)
		fmt.Fprintf(&css, "@keyframes p%d{0%%{opacity:0}%.2f%%{opacity:1}100%%{opacity:1}}\n", i, from)
		fmt.Fprintf(&svg, `<g class="p" style="animation-name:p%d">`, i)
		fmt.Fprintf(&svg, `<rect width="%d" height="%d" rx="8" fill="#dfe1e5"/>`, pageWidth, barHeight+pageHeight)
		fmt.Fprintf(&svg, `<rect x="12" y="5" width="%d" height="18" rx="9" fill="#fff"/>`, pageWidth-24)
		fmt.Fprintf(&svg, `<text class="u" x="24" y="18" style="animation:none">%s</text>`, html.EscapeString(p.url))
		fmt.Fprintf(&svg, `<image y="%d" width="%d" height="%d" href="data:image/png;base64,%s"/></g>`+"\n",
			barHeight, pageWidth, pageHeight, base64.StdEncoding.EncodeToString(p.png))
	}
	return css.String(), svg.String()
}
