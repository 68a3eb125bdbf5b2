package main

import (
	"bufio"
	"context"
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

// A process is a program that runs beside this one.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// launch runs a program with this environment and nothing else but the path.
func (b *bench) launch(args, env []string) (*process, error) {
	p := &process{cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	if b.loud {
		p.cmd.Stdout, p.cmd.Stderr = os.Stderr, os.Stderr
	}
	if _, err := p.cmd.StdinPipe(); err != nil { // the service ends with us, however we end
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // how it ended is of no interest: we ended it
	}()
	return p, nil
}

// stop ends the program, and returns when it has ended.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// answers waits until a request to the program is answered with 200.
func (p *process) answers(ctx context.Context, method, url, body string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	client := http.Client{Transport: new(http.Transport)} // a pool of its own: nothing of it is left
	defer client.CloseIdleConnections()
	for {
		req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.ended:
			return errors.New("it ended at once; -v shows what it says")
		case <-ctx.Done():
			return errors.New("it does not answer with 200; -v shows what it says")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (p *process) status(name string) int64 {
	value := field(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid), name)
	n, _ := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 64)
	return n << 10
}

func (p *process) memory() int64 { return p.status("VmRSS") }

// mostMemory is the most that it ever held.
func (p *process) mostMemory() int64 { return p.status("VmHWM") }

// cpu is the CPU time that the process has used, in seconds.
func (p *process) cpu() float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(b), ") ") // the name before it may hold anything
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return float64(user+system) / 100 // the unit is the same on every Linux in practice
}

// build makes a binary of a package of this module.
func build(ctx context.Context, dir, pkg string) (string, error) {
	path := filepath.Join(dir, filepath.Base(pkg))
	commit, _ := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	c := exec.CommandContext(ctx, "go", "build", "-trimpath",
		"-ldflags=-X usher/internal/version.commit="+strings.TrimSpace(string(commit)), "-o", path, pkg)
	c.Env = append(os.Environ(), "CGO_ENABLED=0") // static, as it is shipped
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s does not build: %s", pkg, out)
	}
	return path, nil
}

func versionOf(ctx context.Context, path string) string {
	out, err := exec.CommandContext(ctx, path, "version").Output()
	if err != nil {
		return err.Error()
	}
	return strings.TrimPrefix(strings.Join(strings.Fields(string(out)), " "), "usher (devel), ")
}

// tried is how many ports freePorts has looked at.
var tried atomic.Uint32

// freePorts returns loopback addresses that nobody listened on a moment ago. They are below those that the system
// gives to connections: thousands come and go here, and one of them could get it.
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

// An usher that runs.
type usher struct {
	*process
	gate, admin, entitlements string // addresses
}

// start runs an usher with this inbox, if any, and returns when it is ready.
func (b *bench) start(ctx context.Context, inbox string, settings ...string) (*usher, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	u := &usher{gate: ports[0], admin: ports[1], entitlements: ports[2]}
	env := append([]string{
		"USHER_WEBHOOK_LISTEN=" + u.gate, "USHER_ADMIN_LISTEN=" + u.admin, "USHER_WEBHOOK_INBOX=" + inbox,
		"USHER_WEBHOOK_MAX_INFLIGHT=1024", "USHER_WEBHOOK_INBOX_MAX_BYTES=65536MiB", "USHER_SHUTDOWN_GRACE=2s",
	}, settings...)
	if inbox != "" {
		env = append(env, "USHER_ENTITLEMENTS_LISTEN="+u.entitlements)
	}
	if u.process, err = b.launch([]string{b.usher}, env); err != nil {
		return nil, err
	}
	if err := u.answers(ctx, http.MethodGet, "http://"+u.admin+"/readyz", ""); err != nil {
		u.stop()
		return nil, err
	}
	return u, nil
}

// pending is how many webhooks wait in the inbox.
func (u *usher) pending() (int, error) {
	resp, err := http.Get("http://" + u.admin + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "usher_inbox_pending "); ok {
			n, err := strconv.ParseFloat(value, 64)
			return int(n), err
		}
	}
	return 0, errors.New("usher has no usher_inbox_pending")
}
