//go:build unix

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/testkit"
)

// natsNode makes this test's own binary a NATS server: a process that can be killed.
const natsNode = "NATS_NODE"

// node is one server of a cluster.
type node struct {
	Name, Client, Route, Dir string
	Routes                   []string // of all

	cmd *exec.Cmd
}

// runNode is what such a process does.
func runNode(config string) {
	var n node
	if err := json.Unmarshal([]byte(config), &n); err != nil {
		panic(err)
	}
	host, port := split(n.Client)
	routeHost, routePort := split(n.Route)
	opts := &server.Options{
		ServerName: n.Name, Host: host, Port: port, JetStream: true, StoreDir: n.Dir, SyncAlways: true, NoSigs: true,
	}
	if len(n.Routes) > 1 {
		// Clients are to use the addresses that they were given: wires that can be cut.
		opts.Cluster = server.ClusterOpts{Name: "test", Host: routeHost, Port: routePort, NoAdvertise: true}
	} else {
		n.Routes = nil
	}
	for _, r := range n.Routes {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: r})
	}
	s, err := server.NewServer(opts)
	if err != nil {
		panic(err)
	}
	s.Start()
	// Nobody is left behind when the test is gone.
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func split(addr string) (string, int) {
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		panic(err)
	}
	return a.IP.String(), a.Port
}

// cluster is three NATS servers, each a process.
type cluster struct {
	t     *testing.T
	nodes []*node
}

// clusters has two of them run at a time: it takes much of a small machine, and servers that
// get no time lose their leaders.
var clusters = make(chan struct{}, 2)

func newCluster(t *testing.T, nodes int) *cluster {
	if testing.Short() {
		t.Skip("short: it is about processes, in which nothing looks for races")
	}
	clusters <- struct{}{}
	t.Cleanup(func() { <-clusters })
	c := &cluster{t: t}
	var routes []string
	for i := range nodes {
		n := &node{Name: fmt.Sprint("n", i), Client: testkit.FreeAddress(t), Route: testkit.FreeAddress(t), Dir: t.TempDir()}
		c.nodes = append(c.nodes, n)
		routes = append(routes, n.Route)
	}
	for i, n := range c.nodes {
		n.Routes = routes
		c.start(i)
	}
	c.wait()
	return c
}

func (c *cluster) start(i int) {
	c.t.Helper()
	n := c.nodes[i]
	config, err := json.Marshal(n)
	if err != nil {
		c.t.Fatal(err)
	}
	n.cmd = exec.Command(os.Args[0])
	n.cmd.Env = append(os.Environ(), natsNode+"="+string(config))
	if _, err := n.cmd.StdinPipe(); err != nil {
		c.t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { c.kill(i) })
}

func (c *cluster) kill(i int) {
	if cmd := c.nodes[i].cmd; cmd.ProcessState == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// wait returns when the cluster can be used.
func (c *cluster) wait() {
	c.t.Helper()
	c.ask(func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.AccountInfo(ctx)
		return err
	})
}

// leader is the node that leads the stream.
func (c *cluster) leader() (leader int) {
	c.t.Helper()
	c.ask(func(ctx context.Context, js jetstream.JetStream) error {
		stream, err := js.Stream(ctx, "USHER")
		if err != nil {
			return err
		}
		_, err = fmt.Sscanf(stream.CachedInfo().Cluster.Leader, "n%d", &leader)
		return err
	})
	return leader
}

// leaderless says whether a node tells of the stream, and of no leader.
func (c *cluster) leaderless(i int) bool {
	nc, err := nats.Connect(c.nodes[i].Client)
	if err != nil {
		return false
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
	defer cancel()
	stream, err := js.Stream(ctx, "USHER")
	return err == nil && stream.CachedInfo().Cluster.Leader == ""
}

// ask asks until there is an answer.
func (c *cluster) ask(question func(context.Context, jetstream.JetStream) error) {
	c.t.Helper()
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.Client)
	}
	nc, err := nats.Connect(strings.Join(addrs, ","), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		c.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		c.t.Fatal(err)
	}
	testkit.Eventually(c.t, "an answer of the cluster", func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		return question(ctx, js) == nil
	})
}

// wires are one usher's way to the servers, and can be cut.
type wires struct {
	listeners []net.Listener

	mu    sync.Mutex // guards what follows
	cut   bool
	conns map[net.Conn]bool
}

func (c *cluster) wires() *wires {
	c.t.Helper()
	w := &wires{conns: make(map[net.Conn]bool)}
	for _, n := range c.nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			c.t.Fatal(err)
		}
		w.listeners = append(w.listeners, l)
		go w.serve(l, n.Client)
	}
	c.t.Cleanup(func() {
		w.set(true)
		for _, l := range w.listeners {
			l.Close()
		}
	})
	return w
}

// url is the inbox's address at the end of the wires.
func (w *wires) url() string {
	var hosts []string
	for _, l := range w.listeners {
		hosts = append(hosts, l.Addr().String())
	}
	return fmt.Sprintf("nats://%s?replicas=%d", strings.Join(hosts, ","), len(hosts))
}

func (w *wires) serve(l net.Listener, to string) {
	for {
		near, err := l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", to)
		if err != nil || !w.add(near, far) {
			near.Close()
			continue
		}
		for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
			go func() {
				_, _ = io.Copy(pair[0], pair[1])
				pair[0].Close()
			}()
		}
	}
}

func (w *wires) add(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		if w.cut {
			c.Close()
		} else {
			w.conns[c] = true
		}
	}
	return !w.cut
}

func (w *wires) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if cut {
		for c := range w.conns {
			c.Close()
		}
		clear(w.conns)
	}
}
