// Reverseproxy is the proxy that one writes with the standard library in a few lines: a
// fixed header, and all else as it comes. Bench measures usher beside it. (It has Rewrite, as NewSingleHostReverseProxy is built on
// what is deprecated since Go 1.26.)
package main

import (
	"flag"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
)

func main() {
	listen := flag.String("listen", "", "its address")
	to := flag.String("to", "", "where it sends what it gets")
	token := flag.String("token", "", "with this token")
	flag.Parse()
	target, err := url.Parse(*to)
	if err != nil {
		log.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Header.Set("Authorization", "Bearer "+*token)
	}}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 1024
	proxy.Transport = transport
	log.Fatal(http.ListenAndServe(*listen, proxy))
}
