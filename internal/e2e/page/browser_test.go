package page

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/chromedp"

	"usher/internal/testkit"
)

// tab is one of a real Chromium's.
type tab struct {
	t   *testing.T
	ctx context.Context
}

// browser is the Chromium of all tests. closeBrowser ends it. It takes evil.test for this machine.
var (
	closeBrowser = func() {}
	browser      = sync.OnceValues(func() (context.Context, error) {
		path, err := exec.LookPath("chromium-headless-shell") // without windows it takes half of the time
		if err != nil {
			path, err = exec.LookPath("chromium")
		}
		if err != nil {
			return nil, err
		}
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
			chromedp.NoSandbox,                           // tests may run as root, where Chromium's does not work
			chromedp.Flag("disable-dev-shm-usage", true), // containers have a small one
			// What nobody sees here takes most of Chromium's time: an address bar's suggestions in each
			// window, processes that wait for a next site, pages kept for a way back, trials and parts of its
			// own that it loads or looks for.
			chromedp.Flag("disable-features", "Translate,WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup,SpareRendererForSitePerProcess"),
			chromedp.Flag("disable-back-forward-cache", true), chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-field-trial-config", true),
			chromedp.Flag("force-prefers-reduced-motion", true), // nor does the browser's own window move
			chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-component-extensions-with-background-pages", true),
			chromedp.Flag("host-resolver-rules", "MAP evil.test 127.0.0.1"))
		if os.Getenv("USHER_SCREENSHOT") == "" { // nobody looks: what is laid out need not be painted
			options = append(options, chromedp.Flag("enable-begin-frame-control", true), chromedp.Flag("run-all-compositor-stages-before-draw", true))
		}
		allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
		closeBrowser = end
		ctx, _ := chromedp.NewContext(allocator) // ends with it
		return ctx, chromedp.Do(ctx)
	})
)

// tabs are those that no test has. A tab takes Chromium about a second of a core, and each more that is
// busy slows the others down.
var tabs = make(chan context.Context, 3)

func init() {
	for range cap(tabs) {
		tabs <- nil // not opened yet
	}
}

// newTab is an empty tab of the test's own, for as long as it runs. Each test has a site of its own: its usher's ports.
func newTab(t *testing.T) *tab {
	t.Helper()
	if testing.Short() {
		t.Skip("short: it is about the page; the tests of internal/admin look for races behind it")
	}
	t.Parallel()
	parent, err := browser()
	if errors.Is(err, exec.ErrNotFound) {
		testkit.Missing(t, "there is no chromium here: the page is not tried in a browser (Debian: apt-get install chromium-headless-shell)")
	} else if err != nil {
		t.Fatal("chromium can't be started: ", err)
	}
	ctx := <-tabs
	t.Cleanup(func() {
		if t.Failed() {
			ctx = nil // it may be what is broken
		}
		tabs <- ctx
	})
	if ctx == nil {
		ctx, _ = chromedp.NewContext(parent, chromedp.WithNewBrowserContext()) // ends with Chromium
	}
	// The first step opens it, and must have no limit: that would end it. What another test has set there is over.
	err = chromedp.Do(ctx, chromedp.EmulateViewport(1200, 800), chromedp.Navigate("about:blank"), chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: false})
		if err == nil {
			_, err = chromedp.Call(ctx, cdplog.Clear, cdp.Empty{})
		}
		return err
	}))
	if err != nil {
		t.Fatal("no tab: ", err)
	}
	return &tab{t, ctx}
}

// do does things one after the other, each of which may take a while.
func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("%v\nThe page shows:\n%s", err, b.text("body"))
	}
}

func (b *tab) open(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url))
}

// click clicks on what a selector finds, once it is there.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.insist(selector, chromedp.Click(chromedp.CSS(selector), calmly))
}

// press types keys into what a selector finds, once it is there.
func (b *tab) press(selector, keys string) {
	b.t.Helper()
	b.insist(selector, chromedp.SendKeys(chromedp.CSS(selector), keys, calmly))
}

// calmly: Chromium is not asked 200 times a second whether something is there.
var calmly = chromedp.RetryInterval(100 * time.Millisecond)

// insist does a step with an element. The page is live, so an element that was found may be replaced before
// anything is done with it: then once more.
func (b *tab) insist(selector string, step chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	var err error
	for range 2 {
		ctx, cancel := context.WithTimeout(b.ctx, 20*time.Second)
		err = chromedp.Do(ctx, step)
		cancel()
		if err == nil {
			return
		}
	}
	b.t.Fatalf("%s can't be used: %v\nThe page shows:\n%s", selector, err, b.text("body"))
}

// evaluate returns what a JavaScript expression comes to.
func evaluate[T any](b *tab, expression string, options ...chromedp.EvaluateOption) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, options...))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// text is what can be read in the first element that a selector finds.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return evaluate[string](b, `document.querySelector("`+selector+`")?.innerText ?? ""`)
}

// until waits for a JavaScript expression to become true. One that fails is not true: the
// next page may just be on its way.
func (b *tab) until(what, expression string) {
	b.t.Helper()
	pause := 50 * time.Millisecond
	for began := time.Now(); time.Since(began) < time.Minute; pause = min(pause*3/2, 400*time.Millisecond) {
		if ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`!!(`+expression+`)`)); err == nil && ok {
			return
		}
		time.Sleep(pause) // a real browser: nothing to wait on
	}
	b.t.Fatalf("in a minute: not %s\nThe page shows:\n%s", what, b.text("body"))
}

// complaints gathers what Chromium has to complain of: a script that fails, or
// something that the page's own policy forbids.
func (b *tab) complaints() func() []string {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.ctx)
	events := chromedp.Events(ctx, cdplog.EntryAdded)
	b.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, cdplog.Enable, cdp.Empty{})
		return err
	}))
	var all []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e, err := range events {
			if err != nil {
				return
			}
			all = append(all, e.Entry.Text)
		}
	}()
	return func() []string {
		cancel()
		<-done
		return all
	}
}
