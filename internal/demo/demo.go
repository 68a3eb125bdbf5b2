// Package demo is 'usher demo': it runs the real usher (package serve) between a billing service and a
// receiver of package sandbox, or in front of the user's own receiver. For half a minute it shows, step by
// step, what usher does. After that it sends webhooks until it is stopped.
package demo

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"usher/internal/logs"
	"usher/internal/sandbox"
	"usher/internal/serve"
	"usher/internal/settings"
	"usher/internal/text"
)

// Config configures the demo.
type Config struct {
	Program string // how the user can call usher
	Environ []string
	Stdout  io.Writer // gets the story
	Stderr  io.Writer // gets the log
}

const (
	tokenLife    = 30 * time.Second // short, to show renewals
	webhookToken = "demo-webhook-token"
)

// Run runs the demo until ctx ends or a signal arrives.
func Run(ctx context.Context, c Config) error {
	given := settings.Environment(c.Environ)
	config := sandbox.Config{Listen: "127.0.0.1:0", ReceiverListen: "127.0.0.1:0", TokenLife: tokenLife, LogEarlier: time.Minute}
	if given["USHER_WEBHOOK_FORWARD_URL"] != "" {
		config.ReceiverListen = "off"
	}
	box, err := sandbox.Open(config)
	if err != nil {
		return err
	}
	defer box.Close()
	inboxDir, err := os.MkdirTemp("", "usher-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(inboxDir)
	environ, replaced := environment(box, given, inboxDir)
	s, err := settings.Read(environ)
	if err != nil {
		return err
	}
	log, level := newLog(c, s)
	defer logs.TakeOver(log)()
	u, err := serve.Open(s, log)
	if err != nil {
		return err
	}
	at := u.Addresses()
	box.Sender.URLs = []string{serve.LocalURL + s.Webhook.Path}
	box.Sender.Client.Transport = serve.NewClient(at.Webhooks, "").Transport
	box.Sender.Token = webhookToken
	say := &narrator{out: c.Stdout, colour: text.IsTerminal(c.Stdout) && !s.Admin.NoColour}
	say.welcome(at, s.Webhook.Path, given["USHER_WEBHOOK_FORWARD_URL"], replaced)

	playing, stop := context.WithCancel(ctx)
	st := &story{
		ctx:          playing,
		box:          box,
		calls:        newClient(at.Calls, ""),
		entitlements: newClient(at.Entitlements, ""),
		admin:        newClient(at.Admin, s.Admin.Token.Get()),
		say:          say,
		level:        level,
	}
	var running sync.WaitGroup
	running.Go(func() {
		if st.ownReceiver() {
			st.muteWarnings()
		}
		if st.tell(func() { running.Go(func() { legacyProgram(playing, st.calls) }) }) {
			say.hints(at, box.URL, c.Program)
			st.sendUntilEnd()
		}
	})
	err = u.Run(ctx)
	stop()
	running.Wait()
	return err
}

// newLog returns a log that shows only warnings and errors, so that it does not disturb the story, and its
// level. If the user has chosen a level, that one applies and the returned level is nil.
func newLog(c Config, s *settings.Settings) (*slog.Logger, *slog.LevelVar) {
	if settings.Environment(c.Environ)["USHER_LOG_LEVEL"] != "" {
		return logs.New(c.Stderr, s.Admin.LogFormat, !s.Admin.NoColour, s.Admin.Level), nil
	}
	level := new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	return logs.New(c.Stderr, s.Admin.LogFormat, !s.Admin.NoColour, level), level
}

const entitlementsListen = "127.0.0.1:8070" // by default this part is off

// usedSettings are the user's settings that the demo uses, unless a port is off or a socket. It ignores all
// others, so that it works also where the environment has settings for a real service.
var usedSettings = []string{
	"USHER_LISTEN", "USHER_INSECURE", "USHER_ALLOWED_HOSTS", "USHER_WEBHOOK_LISTEN", "USHER_ENTITLEMENTS_LISTEN",
	"USHER_ADMIN_LISTEN", "USHER_ADMIN_TOKEN", "USHER_ADMIN_TOKEN_FILE",
	"USHER_ADMIN_READ_TOKEN", "USHER_ADMIN_READ_TOKEN_FILE",
	"USHER_LOG_LEVEL", "USHER_LOG_FORMAT", "USHER_SHUTDOWN_DELAY", "USHER_SHUTDOWN_GRACE", "NO_COLOR",
}

// receiverSettings are used in addition if the user has a receiver.
var receiverSettings = []string{
	"USHER_WEBHOOK_FORWARD_URL", "USHER_WEBHOOK_FORWARD_SIGNING_KEY", "USHER_WEBHOOK_FORWARD_SIGNING_KEY_FILE", "USHER_WEBHOOK_TIMEOUT",
}

// environment returns the environment for the demo's usher. If a default address is taken it uses a free port
// instead, and adds the address to replaced.
func environment(box *sandbox.Sandbox, given map[string]string, inboxDir string) (demo, replaced []string) {
	demo = []string{
		"USHER_BASE_URL=" + box.URL,
		"USHER_CLIENT_ID=" + sandbox.ClientID,
		"USHER_CLIENT_SECRET=" + sandbox.ClientSecret,
		"USHER_WEBHOOK_FORWARD_URL=" + box.ReceiverURL,
		"USHER_WEBHOOK_TOKEN=" + webhookToken,
		"USHER_WEBHOOK_INBOX=file:" + filepath.Join(inboxDir, "inbox.db"),
		"USHER_WEBHOOK_CATCH_UP_URL=" + serve.LocalURL,
	}
	used := usedSettings
	if box.Receiver == nil {
		used = slices.Concat(usedSettings, receiverSettings)
	}
	for _, name := range used {
		demo = append(demo, name+"="+given[name])
	}
	ports := []string{"USHER_LISTEN", "USHER_WEBHOOK_LISTEN", "USHER_ENTITLEMENTS_LISTEN", "USHER_ADMIN_LISTEN"}
	for _, name := range ports {
		// The story needs every port.
		if given[name] != "" && given[name] != "off" && !strings.HasPrefix(given[name], "unix:") {
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
