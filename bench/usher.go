package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// build makes a binary that is measured, of a package of this module: with the
// toolchain that go.mod names, where the go command can take it, else with the one
// there is.
func build(ctx context.Context, dir, pkg string) (string, error) {
	path := filepath.Join(dir, filepath.Base(pkg))
	// Where git can't say, the results say that it is unknown.
	commit, _ := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	compile := func(toolchain string) ([]byte, error) {
		c := exec.CommandContext(ctx, "go", "build", "-trimpath",
			"-ldflags=-X usher/internal/version.commit="+strings.TrimSpace(string(commit)), "-o", path, pkg)
		c.Env = append(os.Environ(), "GOTOOLCHAIN="+toolchain, "CGO_ENABLED=0") // static, as it is shipped
		return c.CombinedOutput()
	}
	mod := struct{ Toolchain string }{}
	if out, err := exec.CommandContext(ctx, "go", "mod", "edit", "-json").Output(); err == nil {
		_ = json.Unmarshal(out, &mod) // then there is none
	}
	if mod.Toolchain != "" {
		if _, err := compile(mod.Toolchain); err == nil {
			return path, nil
		}
	}
	if out, err := compile(cmp.Or(os.Getenv("GOTOOLCHAIN"), "local")); err != nil {
		return "", fmt.Errorf("%s does not build: %s", pkg, out)
	}
	return path, nil
}

func versionOf(ctx context.Context, path string) string {
	out, err := exec.CommandContext(ctx, path, "version").Output()
	if err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(string(out)), " ")
}

// usher is one that runs.
type usher struct {
	*process
	local string // the addresses of its ports
	gate  string
	admin string
	inbox string // the setting; empty: it passes through
}

// start runs usher with this inbox, if any, and these settings, besides those that every
// one here has, and returns when it is ready.
func (b *bench) start(ctx context.Context, inbox string, settings ...string) (*usher, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	u := &usher{local: ports[0], gate: ports[1], admin: ports[2], inbox: inbox}
	env := append([]string{
		"USHER_LISTEN=" + u.local, "USHER_WEBHOOK_LISTEN=" + u.gate, "USHER_ADMIN_LISTEN=" + u.admin,
		"USHER_LOG_LEVEL=" + b.log, "USHER_WEBHOOK_INBOX=" + inbox,
		// A place in flight is given back after the answer, so that 256 senders
		// hold more than 256 for moments.
		"USHER_WEBHOOK_MAX_INFLIGHT=1024",
	}, settings...)
	if u.process, err = b.launch([]string{b.usher}, env); err != nil {
		return nil, err
	}
	if err := u.ready(ctx); err != nil {
		u.stop()
		return nil, err
	}
	return u, nil
}

// tried is how many ports freePorts has looked at.
var tried atomic.Uint32

// freePorts returns loopback addresses that nobody listened on a moment ago. They are below those that the system
// gives to connections: thousands come and go here, and one of them could have it before who is to listen.
func freePorts(n int) (addresses []string, err error) {
	for range 100 * n {
		var l net.Listener
		port := 16000 + (uint32(os.Getpid())*100+tried.Add(1))%16000
		if l, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err != nil {
			continue
		}
		l.Close()
		if addresses = append(addresses, l.Addr().String()); len(addresses) == n {
			return addresses, nil
		}
	}
	return nil, err
}

func (u *usher) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if resp, err := http.Get("http://" + u.admin + "/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-u.ended:
			return errors.New("usher ended at once; -v shows what it says")
		case <-ctx.Done():
			return errors.New("usher does not become ready; -v shows what it says")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// metric returns one of usher's figures, one without labels.
func (u *usher) metric(name string) (float64, error) {
	resp, err := http.Get("http://" + u.admin + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("usher has no metric %s", name)
}

// pending is how many webhooks wait in the inbox.
func (u *usher) pending() (int, error) {
	n, err := u.metric("usher_inbox_pending")
	return int(n), err
}

// drained waits until no webhook waits in the inbox any more, and says since when. That has to hold for a fifth of
// a second: figures may be some time old.
func (u *usher) drained(ctx context.Context) (since time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for since = time.Now(); time.Since(since) < 200*time.Millisecond; {
		n, err := u.pending()
		if err != nil {
			return since, err
		}
		if n > 0 {
			since = time.Now()
		}
		select {
		case <-ctx.Done():
			return since, fmt.Errorf("%d webhooks still wait in the inbox", n)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return since, nil
}
