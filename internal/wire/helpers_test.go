package wire

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func TestMain(m *testing.M) {
	poison = true
	log.SetOutput(io.Discard) // http.Transport prints what comes unasked
	os.Exit(m.Run())
}

// script is what a server does with one connection, the nth, from 0.
type script func(conn net.Conn, from *bufio.Reader, nth int)

// serve runs do on each connection to a server, and returns its address and how many
// there were. Connections are closed when do returns.
func serve(t testing.TB, do script) (addr string, count func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().String(), serveOn(t, l, do)
}

func serveOn(t testing.TB, l net.Listener, do script) (count func() int) {
	t.Helper()
	var mu sync.Mutex
	var open []net.Conn
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			nth := len(open)
			open = append(open, conn)
			mu.Unlock()
			running.Go(func() {
				defer conn.Close()
				do(conn, bufio.NewReader(conn), nth)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, conn := range open {
			conn.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return func() int { mu.Lock(); defer mu.Unlock(); return len(open) }
}

// readCall reads one request to its end.
func readCall(from *bufio.Reader) (*http.Request, string, error) {
	req, err := http.ReadRequest(from)
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(req.Body)
	return req, string(body), err
}

// reset ends a TCP connection with a RST.
func reset(conn net.Conn) {
	if tlsConn, ok := conn.(*tls.Conn); ok {
		conn = tlsConn.NetConn()
	}
	conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}

func newClient(t testing.TB, change ...func(*Config)) *Client {
	t.Helper()
	cfg := Config{Timeout: 5 * time.Second, MaxIdle: 100, IdleTimeout: time.Minute, MaxHead: 16 << 10}
	for _, f := range change {
		f(&cfg)
	}
	cl := New(cfg)
	t.Cleanup(cl.CloseIdleConnections)
	return cl
}

func newTransport(t testing.TB) *http.Transport {
	t.Helper()
	tr := &http.Transport{
		DisableCompression: true, ResponseHeaderTimeout: 5 * time.Second, MaxResponseHeaderBytes: 16 << 10,
		MaxIdleConnsPerHost: 100, Protocols: new(http.Protocols),
	}
	tr.Protocols.SetHTTP1(true)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func request(t testing.TB, ctx context.Context, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.GetBody = nil
	req.Header["User-Agent"] = []string{""}
	return req
}

// outcome is what a caller sees of a call, in words; errors by their kind alone.
func outcome(rt http.RoundTripper, req *http.Request) string {
	var early []string
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			early = append(early, fmt.Sprint(code, h["Link"]))
			return nil
		},
	})
	resp, err := rt.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return strings.Join(append(early, "failed"), "; ")
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	words := append(early, fmt.Sprintf("%d, length %d, %q", resp.StatusCode, resp.ContentLength, body))
	for _, name := range slices.Sorted(maps.Keys(resp.Header)) {
		words = append(words, fmt.Sprintf("%s: %q", name, resp.Header[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(resp.Trailer)) {
		words = append(words, fmt.Sprintf("trailer %s: %q", name, resp.Trailer[name]))
	}
	if err != nil {
		words = append(words, "broke off")
	}
	return strings.Join(words, "; ")
}

// call makes a call and returns its status and body.
func call(rt http.RoundTripper, req *http.Request) (int, string, error) {
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// certificates returns a server's, and who trusts it. Its key signs fast: an RSA key, as httptest has, takes
// most of the time of tests with many connections.
func certificates(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, DNSNames: []string{"example.com"}}
	der, err := x509.CreateCertificate(crand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"h2", "http/1.1"}}, &tls.Config{RootCAs: roots}
}

var errBroken = errors.New("the caller's body broke")

// resolver knows every name at these addresses, in this order.
func resolver(t testing.TB, addresses []string) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		for buf := make([]byte, 512); ; {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			var msg dnsmessage.Message
			if err := msg.Unpack(buf[:n]); err != nil {
				t.Error(err)
			}
			msg.Header.Response, msg.Additionals = true, nil
			if q := msg.Questions[0]; q.Type == dnsmessage.TypeA {
				for _, address := range addresses {
					msg.Answers = append(msg.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
						Body:   &dnsmessage.AResource{A: netip.MustParseAddr(address).As4()},
					})
				}
			}
			packed, err := msg.Pack()
			if err != nil {
				t.Error(err)
			}
			server.WriteTo(packed, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}
