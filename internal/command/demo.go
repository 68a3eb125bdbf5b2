package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"usher/internal/sandbox"
	"usher/internal/settings"
	"usher/internal/stdlog"
)

const (
	demoTokenLife    = 30 * time.Second // short, to show renewals
	demoToken        = "demo-webhook-token"
	demoEntitlements = "127.0.0.1:8070" // by default this part is off
)

// demo is usher demo: it serves between a billing service and two receivers of its own.
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
	s, ok := p.settings(environ)
	if !ok {
		return exitUsage
	}
	log, level := demoLog(p, s)
	defer stdlog.TakeOver(log)()
	u, err := build(s, log)
	if err != nil {
		return p.failed(err)
	}
	if err := u.open(); err != nil {
		u.close()
		return p.failed(err)
	}
	say := &narrator{out: p.Stdout, colour: isTerminal(p.Stdout) && !s.Admin.NoColour}
	say.welcome(u, replaced)

	playing, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		told := newStory(world, u, say, level)
		if told.tell(playing, func() { running.Go(func() { legacyProgram(playing, u.outbound.ports[0].listener) }) }) {
			say.hints(u, p.called())
			told.goOn(playing)
		}
	})
	err = u.run(ctx)
	stop()
	running.Wait()
	if err != nil {
		return p.failed(err)
	}
	return exitOK
}

// demoLog leaves the screen to the story: it shows only warnings and errors, unless the user asks
// for more. Then the level is nil.
func demoLog(p Process, s *settings.Settings) (*slog.Logger, *slog.LevelVar) {
	if settings.Environment(p.Environ)["USHER_LOG_LEVEL"] != "" {
		return newLog(p.Stderr, &s.Admin), nil
	}
	level := new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	return newLogAt(p.Stderr, &s.Admin, level), level
}

// demoWorld is what is around usher in the demo.
type demoWorld struct {
	billing   *sandbox.Billing
	receivers [len(demoPlatforms)]*sandbox.Receiver
	servers   []*http.Server
	urls      []string // of the billing service, then of the receivers
}

// demoPlatforms are the platforms of the built-in billing service; each has a receiver.
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

// receiver returns the receiver of a platform.
func (w *demoWorld) receiver(platform string) *sandbox.Receiver {
	return w.receivers[slices.Index(demoPlatforms[:], platform)]
}

// applied returns the ids of the webhooks that the receivers have accepted, for each receiver
// in the order of arrival.
func (w *demoWorld) applied() []string {
	var ids []string
	for _, receiver := range w.receivers {
		for _, d := range receiver.Deliveries() {
			if d.Applied && d.Status == http.StatusOK {
				ids = append(ids, d.WebhookID)
			}
		}
	}
	return ids
}

// demoKeeps are the user's settings that the demo uses. It ignores the others, so that it
// works also where the environment has settings for a real service.
var demoKeeps = []string{
	"USHER_LISTEN", "USHER_INSECURE", "USHER_ALLOWED_HOSTS", "USHER_WEBHOOK_LISTEN", "USHER_ENTITLEMENTS_LISTEN",
	"USHER_ADMIN_LISTEN", "USHER_ADMIN_TOKEN", "USHER_ADMIN_TOKEN_FILE",
	"USHER_LOG_LEVEL", "USHER_LOG_FORMAT", "USHER_SHUTDOWN_DELAY", "USHER_SHUTDOWN_GRACE", "NO_COLOR",
}

// environment returns the demo's own environment. If a default port is taken, it uses a
// free one and returns the default in replaced.
func (w *demoWorld) environment(environ []string, inboxDir string) (demo, replaced []string) {
	given := settings.Environment(environ)
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
	for _, name := range []string{"USHER_LISTEN", "USHER_WEBHOOK_LISTEN", "USHER_ENTITLEMENTS_LISTEN", "USHER_ADMIN_LISTEN"} {
		if given[name] != "" {
			continue
		}
		addr := cmp.Or(settings.Default(name), demoEntitlements)
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
		} else {
			replaced = append(replaced, addr)
			addr = "127.0.0.1:0"
		}
		demo = append(demo, name+"="+addr)
	}
	return demo, replaced
}

// legacyProgram calls as a program without OAuth would: a few calls a second, sometimes more
// and sometimes fewer, so that the page has something to show.
func legacyProgram(ctx context.Context, port *listener) {
	client, base := port.client()
	defer client.CloseIdleConnections()
	for n := 0; pause(ctx, 300*time.Millisecond+time.Duration(200*math.Sin(float64(n)/150))*time.Millisecond); n++ {
		const query = `{"query":"{ accounts(limit: 3) { id name } }"}`
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/graphql", strings.NewReader(query))
		if err != nil {
			return
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			continue // usher is shutting down, or will answer the next call
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// called returns how the user calls this program, for a hint. 'go run' builds into a
// temporary folder, so its path is of no use.
func (p *Process) called() string {
	if p.Self == "" {
		return "usher"
	}
	if strings.Contains(filepath.ToSlash(p.Self), "/go-build") {
		return "go run ."
	}
	if found, err := exec.LookPath("usher"); err == nil && sameFile(found, p.Self) {
		return "usher"
	}
	if here, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(here, p.Self); err == nil && filepath.IsLocal(rel) {
			return "./" + filepath.ToSlash(rel)
		}
	}
	return p.Self
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
