package serve_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// gated is a program with a gate in front of a receiver.
type gated struct {
	*testkit.Usher
	receiver *sandbox.Receiver
	url      string // of the webhooks
}

func startGate(t *testing.T, extra ...string) *gated {
	t.Helper()
	r := sandbox.NewReceiver()
	srv := httptest.NewServer(r)
	t.Cleanup(srv.Close)
	p := start(t, newService(t).Environ(append([]string{
		"USHER_WEBHOOK_FORWARD_URL=" + srv.URL + "/provisioning", "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
	}, extra...)...))
	return &gated{p, r, p.URL(t, "webhooks") + "/webhooks"}
}

// A sender that hangs up does not stop a delivery, and neither does a shutdown.
func TestGateDrains(t *testing.T) {
	t.Parallel()
	g := startGate(t, "USHER_SHUTDOWN_GRACE=10s")
	entered := make(chan struct{})
	g.receiver.OnDelivery = func(*http.Request, []byte) { close(entered) }
	g.receiver.Fail(sandbox.Fault{Delay: 400 * time.Millisecond})
	ctx, hangUp := context.WithCancel(t.Context())
	go func() {
		req, _ := http.NewRequestWithContext(ctx, "POST", g.url, strings.NewReader(snapshot("acme", 5)))
		_, _ = http.DefaultClient.Do(req)
	}()
	<-entered
	hangUp()
	g.Stop()
	<-g.Ended
	if d := g.receiver.Deliveries(); len(d) != 1 || d[0].Status != 200 {
		t.Errorf("%+v", d)
	}
}

// The senders of deliveries that are cut off at the end of the grace get an answer.
func TestGateCuts(t *testing.T) {
	t.Parallel()
	g := startGate(t, "USHER_SHUTDOWN_GRACE=100ms")
	const senders = 20
	entered := make(chan struct{}, senders)
	g.receiver.OnDelivery = func(*http.Request, []byte) { entered <- struct{}{} }
	g.receiver.Fail(sandbox.Fault{Hang: true})
	answers := make(chan string, senders)
	for i := range senders {
		go func() {
			resp, err := http.Post(g.url, "application/json", strings.NewReader(snapshot(fmt.Sprint("tenant", i), 5)))
			if err != nil {
				answers <- err.Error()
				return
			}
			resp.Body.Close()
			answers <- resp.Status + " " + resp.Header.Get("Retry-After")
		}()
	}
	for range senders {
		<-entered
	}
	g.Stop()
	for range senders {
		if got := <-answers; got != "503 Service Unavailable 5" {
			t.Error(got)
		}
	}
	<-g.Ended
}

func TestGateTLS(t *testing.T) {
	t.Parallel()
	certFile, keyFile := testkit.Certificate(t, "127.0.0.1")
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	g := startGate(t, "USHER_WEBHOOK_TLS_CERT_FILE="+certFile, "USHER_WEBHOOK_TLS_KEY_FILE="+keyFile)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	resp, err := client.Post(g.url, "application/json", bytes.NewReader([]byte(snapshot("acme", 5))))
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
}
