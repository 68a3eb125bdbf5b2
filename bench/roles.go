package main

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// roles are what this program can be besides the bench: it runs itself as another
// process in these, so that each can have a core, or a death, of its own. What one has to
// know is the JSON of its only argument.
var roles = map[string]func(config []byte) error{
	"service": asRole(serviceRole.run),
	"nats":    asRole(natsRole.run),
}

func asRole[T any](run func(T) error) func([]byte) error {
	return func(config []byte) error {
		var role T
		if err := json.Unmarshal(config, &role); err != nil {
			return err
		}
		return run(role)
	}
}

// launchRole runs this program in a role. under is the command to run it with, where there is
// one.
func (b *bench) launchRole(under []string, name string, role any, env ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(role)
	if err != nil {
		return nil, err
	}
	return b.launch(slices.Concat(under, []string{self, name, string(config)}), env)
}

// serviceRole is the billing service, at one address for each way to reach it.
type serviceRole struct {
	Token, CertFile, KeyFile string
	Addresses                map[string]string // by the way
}

func (r serviceRole) run() error {
	cert, err := tls.LoadX509KeyPair(r.CertFile, r.KeyFile)
	if err != nil {
		return err
	}
	s := newService(r.Token)
	failed := make(chan error)
	for way, address := range r.Addresses {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		go func() { failed <- s.serve(l, way, cert) }()
	}
	return <-failed
}

// natsRole is a NATS server. It syncs to disk before it acknowledges anything.
type natsRole struct {
	Name, Client, Route, Dir string
	Routes                   []string // of all servers of the cluster
}

func (r natsRole) run() error {
	client, err := net.ResolveTCPAddr("tcp", r.Client)
	if err != nil {
		return err
	}
	route, err := net.ResolveTCPAddr("tcp", r.Route)
	if err != nil {
		return err
	}
	opts := &server.Options{
		ServerName: r.Name, Host: client.IP.String(), Port: client.Port,
		JetStream: true, StoreDir: r.Dir, SyncAlways: true,
	}
	if len(r.Routes) > 1 {
		opts.Cluster = server.ClusterOpts{Name: "bench", Host: route.IP.String(), Port: route.Port}
	}
	for _, address := range r.Routes {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: address})
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.Start() // ends with a signal
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("it does not listen")
	}
	s.WaitForShutdown()
	return nil
}

// startNATS runs so many servers as a cluster, their data below the folder that is measured,
// and returns the setting that has usher keep its inbox there.
func (b *bench) startNATS(servers int) (inbox string, stop func(), err error) {
	clients, err := freePorts(servers)
	if err != nil {
		return "", nil, err
	}
	routes, err := freePorts(servers)
	if err != nil {
		return "", nil, err
	}
	var all []*process
	stop = func() {
		for _, p := range all {
			p.stop()
		}
	}
	for i := range servers {
		dir, err := os.MkdirTemp(b.dir, "nats-")
		if err == nil {
			var p *process
			p, err = b.launchRole(nil, "nats", natsRole{Name: fmt.Sprint("n", i), Client: clients[i], Route: routes[i], Dir: dir, Routes: routes})
			all = append(all, p)
		}
		if err != nil {
			all = all[:i]
			stop()
			return "", nil, err
		}
	}
	return "nats://" + strings.Join(clients, ","), stop, nil
}
