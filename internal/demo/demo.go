// Package demo is 'usher demo': usher between a billing service and two receivers of its own. It
// tells a story of half a minute, which shows what usher does, and then lets webhooks come until it
// is stopped. The usher in it is the real one (see package serve), with settings of the demo's own.
package demo

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"usher/internal/logs"
	"usher/internal/serve"
	"usher/internal/settings"
	"usher/internal/stdlog"
	"usher/internal/terminal"
)

// Config is what the demo gets from its user.
type Config struct {
	Environ []string
	Stdout  io.Writer // the story
	Stderr  io.Writer // the log
	Self    string    // the program's own file, for hints; may be empty
}

// Run runs the demo until ctx ends or a signal comes.
func Run(ctx context.Context, c Config) error {
	world, err := newWorld()
	if err != nil {
		return err
	}
	defer world.close()
	inboxDir, err := os.MkdirTemp("", "usher-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(inboxDir)
	environ, replaced := world.environment(c.Environ, inboxDir)
	s, err := settings.Read(environ)
	if err != nil {
		return err
	}
	log, level := newLog(c, s)
	defer stdlog.TakeOver(log)()
	u, err := serve.Open(s, log)
	if err != nil {
		return err
	}
	at := u.Addresses()
	say := &narrator{out: c.Stdout, colour: terminal.Is(c.Stdout) && !s.Admin.NoColour}
	say.welcome(at, s.Webhook.Path, replaced)

	playing, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		told := newStory(world, u, s.Webhook.Path, say, level)
		if told.tell(playing, func() { running.Go(func() { legacyProgram(playing, at.Calls) }) }) {
			say.hints(at, called(c.Self))
			told.goOn(playing)
		}
	})
	err = u.Run(ctx)
	stop()
	running.Wait()
	return err
}

// newLog leaves the screen to the story: it shows only warnings and errors, unless the user asks
// for more. Then the level is nil.
func newLog(c Config, s *settings.Settings) (*slog.Logger, *slog.LevelVar) {
	if settings.Environment(c.Environ)["USHER_LOG_LEVEL"] != "" {
		return logs.New(c.Stderr, &s.Admin, s.Admin.Level), nil
	}
	level := new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	return logs.New(c.Stderr, &s.Admin, level), level
}

// called returns how the user calls this program, whose file is self, for a hint. 'go run' builds
// into a temporary folder, so its path is of no use.
func called(self string) string {
	if self == "" {
		return "usher"
	}
	if strings.Contains(filepath.ToSlash(self), "/go-build") {
		return "go run ."
	}
	if found, err := exec.LookPath("usher"); err == nil && sameFile(found, self) {
		return "usher"
	}
	if here, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(here, self); err == nil && filepath.IsLocal(rel) {
			return "./" + filepath.ToSlash(rel)
		}
	}
	return self
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
