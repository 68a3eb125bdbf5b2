package shared

import (
	"os"
	"testing"
	"time"

	"usher/internal/inbox/natstest"
)

// losing is a server that can lose the end of its log.
type losing struct {
	*natstest.Server
	t           *testing.T
	dir, backup string
}

func startLosing(t *testing.T) *losing {
	dir := t.TempDir()
	return &losing{Server: natstest.Start(dir), t: t, dir: dir, backup: t.TempDir()}
}

// end ends it within half a second, so that a lease may live on. All wires to it have been cut.
func (l *losing) end() {
	time.Sleep(time.Second / 4) // see natstest.Server.End
	l.Shutdown()
	l.WaitForShutdown()
	time.Sleep(time.Second / 4)
}

// save starts it again, and remembers what it has.
func (l *losing) save(replicas ...*replica) {
	l.t.Helper()
	l.cut(replicas)
	if err := os.CopyFS(l.backup, os.DirFS(l.dir)); err != nil {
		l.t.Fatal(err)
	}
	l.Server = natstest.Start(l.dir)
	l.connect(replicas...)
}

// lose starts it again with what it had then. Nobody is connected.
func (l *losing) lose(replicas ...*replica) {
	l.cut(replicas)
	l.Server = natstest.Start(l.backup)
}

func (l *losing) cut(replicas []*replica) {
	for _, r := range replicas {
		r.wire.Sever()
	}
	l.end()
}

// connect returns when replicas have reached it.
func (l *losing) connect(replicas ...*replica) {
	l.t.Helper()
	for _, r := range replicas {
		r.wire.Replace(l.Server)
	}
	for _, r := range replicas {
		until(l.t, "connected again", func() bool { return r.servers.Conn.IsConnected() && r.Err() == nil })
	}
}
