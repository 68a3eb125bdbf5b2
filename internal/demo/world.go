package demo

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"usher/internal/sandbox"
	"usher/internal/settings"
)

const (
	tokenLife          = 30 * time.Second // short, to show renewals
	webhookToken       = "demo-webhook-token"
	entitlementsListen = "127.0.0.1:8070" // by default this part is off
)

// world is what is around usher in the demo.
type world struct {
	billing   *sandbox.Billing
	receivers [len(platforms)]*sandbox.Receiver
	servers   []*http.Server
	urls      []string // of the billing service, then of the receivers
}

// platforms are the platforms of the built-in billing service; each has a receiver.
var platforms = [...]string{"crm", "docs"}

func newWorld() (*world, error) {
	w := &world{
		billing: sandbox.NewBilling(sandbox.Client{
			ID: "demo", Secret: "demo-secret", Scopes: []string{"standard:read", "standard:write"}, TokenLife: tokenLife,
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

func (w *world) close() {
	for _, s := range w.servers {
		s.Close()
	}
}

// receiver returns the receiver of a platform.
func (w *world) receiver(platform string) *sandbox.Receiver {
	return w.receivers[slices.Index(platforms[:], platform)]
}

// applied returns the ids of the webhooks that the receivers have accepted, for each receiver
// in the order of arrival.
func (w *world) applied() []string {
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

// keeps are the user's settings that the demo uses. It ignores the others, so that it
// works also where the environment has settings for a real service.
var keeps = []string{
	"USHER_LISTEN", "USHER_INSECURE", "USHER_ALLOWED_HOSTS", "USHER_WEBHOOK_LISTEN", "USHER_ENTITLEMENTS_LISTEN",
	"USHER_ADMIN_LISTEN", "USHER_ADMIN_TOKEN", "USHER_ADMIN_TOKEN_FILE",
	"USHER_LOG_LEVEL", "USHER_LOG_FORMAT", "USHER_SHUTDOWN_DELAY", "USHER_SHUTDOWN_GRACE", "NO_COLOR",
}

// environment returns the demo's own environment. If a default port is taken, it uses a
// free one and returns the default in replaced.
func (w *world) environment(environ []string, inboxDir string) (demo, replaced []string) {
	given := settings.Environment(environ)
	demo = []string{
		"USHER_BASE_URL=" + w.urls[0], "USHER_CLIENT_ID=demo", "USHER_CLIENT_SECRET=demo-secret",
		"USHER_WEBHOOK_TOKEN=" + webhookToken,
		"USHER_WEBHOOK_INBOX=file:" + filepath.Join(inboxDir, "inbox.db"),
	}
	for i, platform := range platforms {
		prefix := fmt.Sprintf("USHER_WEBHOOK_RECEIVERS_%d_", i)
		demo = append(demo, prefix+"NAME="+platform, prefix+"PLATFORMS="+platform, prefix+"FORWARD_URL="+w.urls[1+i]+"/provisioning")
	}
	for _, name := range keeps {
		demo = append(demo, name+"="+given[name])
	}
	for _, name := range []string{"USHER_LISTEN", "USHER_WEBHOOK_LISTEN", "USHER_ENTITLEMENTS_LISTEN", "USHER_ADMIN_LISTEN"} {
		if given[name] != "" {
			continue
		}
		addr := cmp.Or(settings.Default(name), entitlementsListen)
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
