package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"time"
)

// roles are what this program can be besides the bench: it runs itself as another
// process in these, so that each can have a core of its own.
var roles = map[string]func(args []string) error{
	"service":      serviceRole,
	"reverseproxy": reverseProxyRole,
	"load":         loadRole,
}

// serviceRole is the billing service, at one address for each way to reach it.
func serviceRole(args []string) error {
	flags := flag.NewFlagSet("service", flag.ExitOnError)
	token := flags.String("token", "", "the token it hands out")
	certFile := flags.String("cert", "", "its certificate")
	keyFile := flags.String("key", "", "and the key")
	addresses := map[string]*string{
		plain: flags.String("plain", "", "listens here"), tls1: flags.String("tls1", "", "and here"),
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	cert, err := tls.LoadX509KeyPair(*certFile, *keyFile)
	if err != nil {
		return err
	}
	s := newService(*token)
	failed := make(chan error)
	for way, address := range addresses {
		l, err := net.Listen("tcp", *address)
		if err != nil {
			return err
		}
		go func() { failed <- s.serve(l, way, cert) }()
	}
	return <-failed
}

// reverseProxyRole is the proxy that one writes with the standard library in a few
// lines: a fixed header, and all else as it comes. With idle, its pool keeps so many
// connections. (It has Rewrite, as NewSingleHostReverseProxy is built on what is
// deprecated since Go 1.26.)
func reverseProxyRole(args []string) error {
	flags := flag.NewFlagSet("reverseproxy", flag.ExitOnError)
	listen := flags.String("listen", "", "its address")
	to := flags.String("to", "", "where it sends what it gets")
	token := flags.String("token", "", "with this token")
	idle := flags.Int("idle", 0, "idle connections that it keeps")
	if err := flags.Parse(args); err != nil {
		return err
	}
	target, err := url.Parse(*to)
	if err != nil {
		return err
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Header.Set("Authorization", "Bearer "+*token)
	}}
	if *idle > 0 {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, *idle
		proxy.Transport = transport
	}
	return http.ListenAndServe(*listen, proxy)
}

// loadRole is the load, where wrk is not installed or can't do it. It prints its run.
func loadRole(args []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	connections := flags.Int("connections", 1, "at once")
	duration := flags.Duration("duration", time.Second, "so long")
	addresses := flags.String("addresses", "", "to these, separated by commas")
	target := flags.String("target", "", "the path and what follows")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r, err := call(context.Background(), strings.Split(*addresses, ","), *connections, *duration, *target)
	if err != nil {
		return err
	}
	out, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(os.Stdout, string(out))
	return err
}
