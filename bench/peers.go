package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// peer is a program that puts a token on calls, usher or what people would use
// instead.
type peer struct {
	name string
	// program must be installed; empty: it is built here.
	program string
	// pool marks a variant that differs from its neighbour above in the size of its
	// pool alone, and so only where many call at once.
	pool    bool
	command command
	// version asks the program for its version.
	version []string
}

// command is how to run a peer: listening there, calling the service by this way.
type command func(o *court, listen, way string) (args, env []string, err error)

const (
	ours     = "usher"
	before   = "usher, before" // see -beside
	asItIs   = "ReverseProxy"
	keptPool = 1024 // idle connections, where a peer has to be told
)

var peers = []peer{
	{name: ours, command: usherCommand},
	{name: asItIs, command: reverseProxyCommand(0)},
	{name: asItIs + ", pool", pool: true, command: reverseProxyCommand(keptPool)},
	{name: "Caddy", program: "caddy", command: caddyCommand(0), version: []string{"version"}},
	{name: "Caddy, pool", program: "caddy", pool: true, command: caddyCommand(keptPool)},
	{name: "nginx", program: "nginx", command: nginxCommand, version: []string{"-v"}},
	{name: "haproxy", program: "haproxy", command: haproxyCommand, version: []string{"-v"}},
}

// court is where the outbound half is measured.
type court struct {
	*bench
	pins         pins
	wrk          string            // makes the load
	reverseProxy string            // built like usher
	token        string            // that the service hands out
	cert         string            // the service's, and whom to trust
	service      map[string]string // its addresses, by the way to reach it
	programs     map[string]string // the peers' programs that are installed
}

// installed are the peers that can be measured.
func (o *court) installed() []peer {
	return slices.DeleteFunc(slices.Clone(peers), func(p peer) bool {
		return p.program != "" && o.programs[p.program] == ""
	})
}

// missing are the programs that would be peers, but are not installed.
func (o *court) missing() []string {
	var names []string
	for _, p := range peers {
		if p.program != "" && o.programs[p.program] == "" && !slices.Contains(names, p.program) {
			names = append(names, p.program)
		}
	}
	return names
}

var versionNumber = regexp.MustCompile(`\d+\.\d+\.\d+\S*`)

// versions says what is measured beside usher.
func (o *court) versions(ctx context.Context) string {
	var all []string
	for _, p := range peers {
		if path := o.programs[p.program]; path != "" && p.version != nil {
			out, _ := exec.CommandContext(ctx, path, p.version...).CombinedOutput() // then there is none to be seen
			all = append(all, p.program+" "+versionNumber.FindString(string(out)))
		}
	}
	return strings.Join(all, ", ")
}

// running is a peer that runs.
type running struct {
	peer
	*process
	address string
	started time.Duration // until its first 200
}

// run starts a peer on the core of what is measured, and returns when it has answered
// a call with 200.
func (o *court) run(ctx context.Context, p peer, way string) (*running, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	args, env, err := p.command(o, ports[0], way)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	started, err := o.launch(slices.Concat(o.pins.measured, args), append(env, "GOMAXPROCS=1"))
	if err != nil {
		return nil, err
	}
	r := &running{peer: p, process: started, address: ports[0]}
	if err := r.answers(ctx); err != nil {
		r.stop()
		return nil, fmt.Errorf("%s, %s: %w", p.name, way, err)
	}
	r.started = time.Since(began)
	return r, nil
}

func (r *running) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	client := http.Client{Transport: new(http.Transport)} // a pool of its own: nothing of it is left
	defer client.CloseIdleConnections()
	for {
		resp, err := client.Post("http://"+r.address+target(sizes[0]), "application/json", strings.NewReader(query))
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-r.ended:
			return errors.New("it ended at once; -v shows what it says")
		case <-ctx.Done():
			return errors.New("it does not answer with 200; -v shows what it says")
		case <-time.After(500 * time.Microsecond):
		}
	}
}

// base is the service's address as a URL.
func (o *court) base(way string) string {
	scheme := "https://"
	if way == plain {
		scheme = "http://"
	}
	return scheme + o.service[way]
}

func usherCommand(o *court, listen, way string) (args, env []string, err error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, nil, err
	}
	env = []string{
		"USHER_CLIENT_ID=bench", "USHER_CLIENT_SECRET=bench", "USHER_BASE_URL=" + o.base(way),
		"USHER_LISTEN=" + listen, "USHER_ADMIN_LISTEN=" + ports[0], "USHER_LOG_LEVEL=" + o.log,
	}
	if way != plain {
		env = append(env, "SSL_CERT_FILE="+o.cert)
	}
	return []string{o.usher}, env, nil
}

// beforeCommand is the same with another binary.
func beforeCommand(binary string) command {
	return func(o *court, listen, way string) (args, env []string, err error) {
		_, env, err = usherCommand(o, listen, way)
		return []string{binary}, env, err
	}
}

func reverseProxyCommand(idle int) command {
	return func(o *court, listen, way string) (args, env []string, err error) {
		args = []string{
			o.reverseProxy, "-listen", listen, "-to", o.base(way), "-token", o.token, "-idle", strconv.Itoa(idle),
		}
		return args, []string{"SSL_CERT_FILE=" + o.cert}, nil
	}
}

// file is one of a peer's own, by the address that it listens on.
func (o *court) file(listen, name string) string {
	return filepath.Join(o.dir, strings.ReplaceAll(listen, ":", "-")+"-"+name)
}
