package main

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"os"
	"slices"
)

// roles are what this program can be besides the bench: it runs itself as another
// process in these, so that each can have a core, or a death, of its own. What one has to
// know is the JSON of its only argument.
var roles = map[string]func(config []byte) error{
	"service": asRole(serviceRole.run),
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
