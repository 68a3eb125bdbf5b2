package serve_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"usher/internal/testkit"
)

// tunnel is an HTTP proxy that opens tunnels to one address, whatever address the client requests.
type tunnel struct {
	target string

	mu          sync.Mutex
	asked       []string // what it was asked for; guarded by mu
	credentials string   // that it was shown last; guarded by mu
}

func (p *tunnel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host)
	p.credentials = r.Header.Get("Proxy-Authorization")
	p.mu.Unlock()
	there, err := net.Dial("tcp", p.target)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	here, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = io.WriteString(here, "HTTP/1.1 200 Connection established\r\n\r\n")
	var both sync.WaitGroup
	for _, ends := range [][2]net.Conn{{here, there}, {there, here}} {
		both.Go(func() {
			_, _ = io.Copy(ends[0], ends[1])
			here.Close()
			there.Close()
		})
	}
	both.Wait()
}

// usher uses HTTPS_PROXY and NO_PROXY, for tokens and for calls. The service is at a name that only the proxy
// knows, or at 0.0.0.0, which is this machine but does not count as loopback in the rules for proxies.
func TestHTTPSProxy(t *testing.T) {
	t.Parallel()
	certFile, keyFile := testkit.Certificate(t, "billing.invalid", "0.0.0.0", "127.0.0.1")
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t)
	srv := httptest.NewUnstartedServer(s.Billing)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())

	for _, tc := range []struct {
		name, base  string
		environ     []string // {proxy} is its address
		want        string   // what the proxy is asked for; empty: nothing
		credentials string
	}{
		{"a name", "https://billing.invalid", []string{"https_proxy={proxy}", "NO_PROXY=example.com"}, "CONNECT billing.invalid:443", ""},
		{"with a password", "https://billing.invalid", []string{"HTTPS_PROXY=http://me:pr0xy-pass@{proxy}"}, "CONNECT billing.invalid:443", "Basic bWU6cHIweHktcGFzcw=="},
		{"NO_PROXY, a network", "https://0.0.0.0:" + port, []string{"HTTPS_PROXY=http://{proxy}", "no_proxy=0.0.0.0/8"}, "", ""},
		{"loopback", "https://127.0.0.1:" + port, []string{"HTTPS_PROXY=http://{proxy}"}, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			proxy := &tunnel{target: srv.Listener.Addr().String()}
			way := httptest.NewServer(proxy)
			defer way.Close()
			environ := (&testkit.Service{Billing: s.Billing, URL: tc.base}).Environ("SSL_CERT_FILE=" + certFile)
			for _, variable := range tc.environ {
				environ = append(environ, strings.Replace(variable, "{proxy}", way.Listener.Addr().String(), 1))
			}
			cmd := exec.Command(testkit.Binary(t)) // the certificates to trust are read once in each process
			cmd.Env = environ
			p := testkit.Start(t, cmd)
			p.Ready(t)
			wantCall(t, p.URL(t, "main"), 200, "accounts")
			s.Revoke()
			wantCall(t, p.URL(t, "main"), 200, "accounts")
			proxy.mu.Lock()
			defer proxy.mu.Unlock()
			if tc.want == "" && proxy.asked != nil || tc.want != "" && (!slices.Contains(proxy.asked, tc.want) || len(slices.Compact(proxy.asked)) != 1) {
				t.Errorf("the proxy was asked for %q, want %q", proxy.asked, tc.want)
			}
			if proxy.credentials != tc.credentials {
				t.Errorf("the proxy was shown %q", proxy.credentials)
			}
			if strings.Contains(p.Stderr.String(), "pr0xy-pass") {
				t.Errorf("the proxy's password is in the log:\n%s", p.Stderr.String())
			}
		})
	}
}
