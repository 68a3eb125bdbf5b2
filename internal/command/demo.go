package command

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"usher/internal/sandbox"
	"usher/internal/stdlog"
)

const (
	demoTokenLife    = 30 * time.Second
	demoWebhookEvery = 4 * time.Second
	demoToken        = "demo-webhook-token"
	demoEntitlements = "127.0.0.1:8070" // by default this part is off
)

// demo serves as ever, in front of a billing service and two receivers of its own.
func demo(ctx context.Context, p Process) int {
	world, err := newDemoWorld()
	if err != nil {
		return p.failed(err)
	}
	defer world.close()
	inboxDir, err := os.MkdirTemp("", "usher-demo-")
	if err != nil {
		return p.failed(err)
	}
	defer os.RemoveAll(inboxDir)
	environ, replaced := world.environment(p.Environ, inboxDir)
	s, ok := p.settings(environ, needAny)
	if !ok {
		return exitUsage
	}
	log := newLog(p.Stderr, &s.Admin)
	defer stdlog.TakeOver(log)()
	h, err := build(s, environ, log)
	if err != nil {
		return p.failed(err)
	}
	if err := h.open(); err != nil {
		h.close()
		return p.failed(err)
	}
	say := &narrator{out: p.Stdout, colour: isTerminal(p.Stdout) && !s.Admin.noColour}
	say.welcome(h, world, replaced)

	playing, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { world.play(playing, h, say) })
	running.Go(func() { legacyProgram(playing, h.doors[0].url()+"/graphql") })
	err = h.run(ctx)
	stop()
	running.Wait()
	if err != nil {
		return p.failed(err)
	}
	return exitOK
}

// demoWorld is what usher stands between in the demo.
type demoWorld struct {
	billing   *sandbox.Billing
	receivers [len(demoPlatforms)]*sandbox.Receiver
	servers   []*http.Server
	urls      []string // of the billing service, then of the receivers
}

// demoPlatforms are those of the built-in billing service; each has a receiver.
var demoPlatforms = [...]string{"crm", "docs"}

func newDemoWorld() (*demoWorld, error) {
	w := &demoWorld{
		billing: sandbox.NewBilling(sandbox.Client{
			ID: "demo", Secret: "demo-secret", Scopes: []string{"standard:read", "standard:write"}, TokenLife: demoTokenLife,
		}),
	}
	handlers := []http.Handler{w.billing}
	for i := range w.receivers {
		w.receivers[i] = sandbox.NewReceiver()
		handlers = append(handlers, w.receivers[i])
	}
	for _, handler := range handlers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			w.close()
			return nil, err
		}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
		w.servers = append(w.servers, server)
		w.urls = append(w.urls, "http://"+l.Addr().String())
		go func() { _ = server.Serve(l) }()
	}
	return w, nil
}

func (w *demoWorld) close() {
	for _, s := range w.servers {
		s.Close()
	}
}

// demoKeeps are the caller's settings that the demo heeds; for the rest it has its
// own, so that it works whatever the environment says of a real service.
var demoKeeps = []string{
	"USHER_LISTEN", "USHER_INSECURE", "USHER_ALLOWED_HOSTS", "USHER_WEBHOOK_LISTEN", "USHER_ENTITLEMENTS_LISTEN",
	"USHER_ADMIN_LISTEN", "USHER_ADMIN_TOKEN", "USHER_ADMIN_TOKEN_FILE",
	"USHER_LOG_LEVEL", "USHER_LOG_FORMAT", "USHER_SHUTDOWN_DELAY", "USHER_SHUTDOWN_GRACE", "NO_COLOR",
}

// environment is the demo's own. Of the default ports, those that are taken are
// replaced by free ones.
func (w *demoWorld) environment(environ []string, inboxDir string) (demo, replaced []string) {
	given := newReader(environ).env
	demo = []string{
		"USHER_BASE_URL=" + w.urls[0], "USHER_CLIENT_ID=demo", "USHER_CLIENT_SECRET=demo-secret",
		"USHER_WEBHOOK_TOKEN=" + demoToken,
		"USHER_WEBHOOK_INBOX=file:" + filepath.Join(inboxDir, "inbox.db"),
	}
	for i, platform := range demoPlatforms {
		prefix := fmt.Sprintf("USHER_WEBHOOK_RECEIVERS_%d_", i)
		demo = append(demo, prefix+"NAME="+platform, prefix+"PLATFORMS="+platform, prefix+"FORWARD_URL="+w.urls[1+i]+"/provisioning")
	}
	for _, name := range demoKeeps {
		demo = append(demo, name+"="+given[name])
	}
	for _, v := range variables() {
		if v.Name == "USHER_ENTITLEMENTS_LISTEN" {
			v.Default = demoEntitlements
		}
		if !strings.HasSuffix(v.Name, "_LISTEN") || v.Default == "" || given[v.Name] != "" {
			continue
		}
		addr := v.Default
		if l, err := net.Listen("tcp", v.Default); err == nil {
			l.Close()
		} else {
			addr = "127.0.0.1:0"
			replaced = append(replaced, v.Default)
		}
		demo = append(demo, v.Name+"="+addr)
	}
	return demo, replaced
}

// play has a webhook sent every few seconds until ctx ends: mostly a change, now
// and then one that was sent before; and now and then one of the receivers is down for
// a while, and what came for it meanwhile is delivered when it is back.
func (w *demoWorld) play(ctx context.Context, h *house, say *narrator) {
	sender := sandbox.NewSender(h.webhooks.url()+h.settings.Webhook.Path, uint64(time.Now().UnixNano()))
	sender.Header = http.Header{"Authorization": {"Bearer " + demoToken}}
	tick := time.NewTicker(demoWebhookEvery)
	defer tick.Stop()
	var seen [len(demoPlatforms)]time.Time // up to when the deliveries of each receiver are told
	for i := range seen {
		seen[i] = time.Now()
	}
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for i, platform := range demoPlatforms {
			seen[i] = say.deliveries(platform, w.receivers[i].Deliveries(), seen[i])
		}
		which := n / 12 % len(demoPlatforms)
		switch n % 12 {
		case 6:
			w.receivers[which].Behave(sandbox.Fault{Status: http.StatusServiceUnavailable})
			say.receiver(demoPlatforms[which], "31", "down", "what comes for it now waits in the inbox: usher inbox ls shows it")
		case 9:
			w.receivers[which].Behave(sandbox.Fault{})
			say.receiver(demoPlatforms[which], "32", "back", "")
		}
		entry, err := sender.Next(ctx)
		if ctx.Err() == nil {
			say.webhook(entry, err)
		}
	}
}

// legacyProgram is one that knows nothing of OAuth: a few calls a second, now more and now
// fewer, so that there is something to see on the page.
func legacyProgram(ctx context.Context, url string) {
	if !strings.HasPrefix(url, "http") {
		return // a socket: whoever asked for one has something to call it with
	}
	client := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	for n := 0; ; n++ {
		pause := 300*time.Millisecond + time.Duration(200*math.Sin(float64(n)/150))*time.Millisecond
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		const query = `{"query":"{ accounts(limit: 3) { id name } }"}`
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(query))
		if err != nil {
			return
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			continue // usher ends, or will answer the next one
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}
