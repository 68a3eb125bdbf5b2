package webhookgate

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestRouting(t *testing.T) {
	plain := newGate(t, nil)
	guarded := newGate(t, func(c *Config) { c.Tokens = tokens("s3cret/+") })
	tests := []struct {
		gate           *Gate
		method, target string
		want           int
	}{
		{plain, "POST", "/webhooks", 200},
		{plain, "POST", "/webhooks?from=workflow", 200},
		{plain, "GET", "/webhooks", 405},
		{plain, "HEAD", "/webhooks", 405},
		{plain, "OPTIONS", "/webhooks", 405},
		{plain, "TRACE", "/webhooks", 405},
		{plain, "CONNECT", "/anything", 405},
		{plain, "POST", "/", 404},
		{plain, "POST", "/webhooks/", 404},
		{plain, "POST", "/webhooks/x", 404},
		{plain, "POST", "//webhooks", 404},
		{plain, "POST", "/webhooks/../webhooks", 404},
		{plain, "POST", "/web%68ooks", 404},
		{plain, "POST", "/Webhooks", 404},
		{guarded, "POST", "/webhooks", 401},
		{guarded, "POST", "/webhooks/", 401},
		{guarded, "POST", "/webhooks/wrong", 401},
		{guarded, "POST", "/webhooks/s3cret%2F+", 200},
		{guarded, "POST", "/webhooks/s3cret%2F%2B", 200},
		{guarded, "POST", "/webhooks/s3cret/+", 404},
		{guarded, "POST", "/webhooks/wrong/wrong", 404},
		{guarded, "POST", "/webhookswrong", 404},
		{guarded, "GET", "/webhooks/s3cret%2F%2B", 405},
	}
	for _, tt := range tests {
		got := serve(t, tt.gate, httptest.NewRequest(tt.method, tt.target, strings.NewReader(documented)))
		if got.Code != tt.want {
			t.Errorf("%s %s: got %v, want %d", tt.method, tt.target, got, tt.want)
		}
		allow := got.ResponseRecorder.Header().Get("Allow")
		if (tt.want == 405) != (allow == "POST") {
			t.Errorf("%s %s: Allow is %q", tt.method, tt.target, allow)
		}
		if closes := got.ResponseRecorder.Header().Get("Connection") == "close"; closes != (tt.method == "TRACE" || tt.method == "CONNECT") {
			t.Errorf("%s %s: closes the connection: %v", tt.method, tt.target, closes)
		}
	}
}

func TestInflightCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &counting{takes: 5 * time.Second}
		g := newGate(t, func(c *Config) {
			c.MaxInflight = 10
			c.Transport = receiver
		})
		var (
			wg   sync.WaitGroup
			mu   sync.Mutex
			told = make(map[int]int)
		)
		for i := range 50 {
			wg.Go(func() {
				got := post(t, g, snapshot(fmt.Sprint("tenant", i), "A"))
				mu.Lock()
				defer mu.Unlock()
				told[got.Code]++
			})
		}
		wg.Wait()
		if told[200] != 10 || told[503] != 40 || receiver.count() != 10 {
			t.Errorf("told %v, delivered %d; want 10 times 200 and 40 times 503", told, receiver.count())
		}
		if got := post(t, g, snapshot("later", "A")); got.Code != 200 {
			t.Errorf("afterwards: %v", got)
		}
	})
}

func TestShutdownDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &counting{takes: 3 * time.Second}
		g := newGate(t, func(c *Config) { c.Transport = receiver })
		start := time.Now()
		for _, name := range []string{"A", "B", "A"} {
			go func() {
				if got := post(t, g, snapshot("acme", name)); got.Code != 200 {
					t.Errorf("under way at shutdown: %v", got)
				}
			}()
			synctest.Wait()
		}
		done := make(chan error)
		go func() { done <- g.Shutdown(context.Background()) }()
		synctest.Wait()
		if got := post(t, g, snapshot("other", "A")); got.Code != 503 {
			t.Errorf("during shutdown: %v", got)
		}
		if err := <-done; err != nil || time.Since(start) != 9*time.Second || receiver.count() != 3 {
			t.Errorf("%v after %v with %d deliveries", err, time.Since(start), receiver.count())
		}
		ended, end := context.WithCancel(t.Context())
		end()
		for range 20 {
			if err := g.Shutdown(ended); err != nil {
				t.Errorf("again, with nothing to wait for: %v", err)
			}
		}
	})
}

func TestShutdownBreaksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &counting{takes: 8 * time.Second}
		g := newGate(t, func(c *Config) { c.Transport = receiver })
		for _, name := range []string{"A", "B"} {
			go func() {
				if got := post(t, g, snapshot("acme", name)); got.Code != 503 {
					t.Errorf("broken off: %v", got)
				}
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		err := g.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if receiver.count() != 0 {
			t.Errorf("%d delivered", receiver.count())
		}
	})
}

func TestHooksAndLog(t *testing.T) {
	var buf bytes.Buffer
	var decisions, results []string
	g := newGate(t, func(c *Config) {
		c.Log = logTo(&buf)
		c.Tokens = tokens("t0ken-one", "t0ken-two")
		c.SignSecret = secret("whsec_c2lnbmluZy1rZXk=")
		c.ForwardURL, _ = url.Parse("http://user:passw0rd@receiver.test/hook")
		c.Answered = func(o Outcome) { decisions = append(decisions, o.Decision) }
		c.Attempted = func(_, result string, _ time.Duration) { results = append(results, result) }
		c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			if len(results) == 1 {
				return nil, errors.New("connection refused")
			}
			if len(results) == 3 {
				return respond(400, "ada@example.com is unknown"), nil
			}
			return respond(200, ""), nil
		})
	})
	for _, r := range []*http.Request{
		request(documented),
		request(documented, "Authorization", "Bearer wr0ng"),
		httptest.NewRequest("POST", "/webhooks/t0ken-one", strings.NewReader(documented)),
		httptest.NewRequest("POST", "/webhooks/wr0ng", strings.NewReader(documented)),
		request(documented, "X-Webhook-Token", "t0ken-two"),
		request(strings.Replace(documented, "4711", "4712", 1), "X-Webhook-Token", "t0ken-two"),
		request(strings.Replace(documented, "4711", `"ada@example.com"`, 1), "X-Webhook-Token", "t0ken-two"),
		request(snapshot("acme-prod", "x"), "X-Webhook-Token", "t0ken-two"),
	} {
		serve(t, g, r)
	}
	want := "[rejected rejected forwarded rejected duplicate forwarded rejected failed]"
	if got := fmt.Sprint(decisions); got != want {
		t.Errorf("decisions %v, want %v", got, want)
	}
	if got := fmt.Sprint(results); got != "[ok error ok status]" {
		t.Errorf("results %v", got)
	}
	for _, leak := range []string{"t0ken", "wr0ng", "whsec", "c2lnbmlu", "passw0rd", "example.com", "Ada", "Acme"} {
		if strings.Contains(buf.String(), leak) {
			t.Errorf("the log shows %q:\n%s", leak, &buf)
		}
	}
	for _, line := range []string{"tenant=acme-prod", "decision=duplicate", "receiver_status=400", "connection refused", "shared secret is missing or wrong", "/payload/tenant/id must be an integer"} {
		if !strings.Contains(buf.String(), line) {
			t.Errorf("the log does not show %q:\n%s", line, &buf)
		}
	}
}

func TestBadConfig(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"no receiver": func(c *Config) { c.ForwardURL = nil },
		"must be an http": func(c *Config) {
			c.ForwardURL = &url.URL{Scheme: "ftp", Host: "x", User: url.UserPassword("u", "passw0rd")}
		},
		"begin with /":           func(c *Config) { c.Path = "webhooks" },
		"escaped":                func(c *Config) { c.Path = "/web hooks" },
		"negative":               func(c *Config) { c.Attempts = -1 },
		"type is empty":          func(c *Config) { c.Types = []string{""} },
		"schema: it is not JSON": func(c *Config) { c.Schema = []byte("{") },
	} {
		cfg := Config{ForwardURL: &url.URL{Scheme: "http", Host: "receiver.test"}}
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "passw0rd") {
			t.Errorf("got %v, want something about %q", err, want)
		}
	}
}

// TestOverTheWire is about what only a real connection shows.
func TestOverTheWire(t *testing.T) {
	release := make(chan struct{})
	delivered := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		<-release
		delivered <- string(body)
	}))
	defer receiver.Close()
	g := newGate(t, func(c *Config) {
		c.ForwardURL, _ = url.Parse(receiver.URL)
		c.Transport = nil
		c.Tokens = tokens("good")
	})
	gate := httptest.NewServer(g)
	defer gate.Close()

	t.Run("a sender that hangs up does not stop a delivery", func(t *testing.T) {
		conn := dial(t, gate)
		fmt.Fprintf(conn, "POST /webhooks/good HTTP/1.1\r\nHost: gate\r\nContent-Length: %d\r\n\r\n%s", len(documented), documented)
		waitFor(t, func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.inflight == 1
		})
		conn.Close()
		time.Sleep(10 * time.Millisecond)
		close(release)
		if got := <-delivered; got != documented {
			t.Errorf("delivered %q", got)
		}
		waitFor(t, func() bool { return g.lanes.memory.Len() == 1 })
	})
	t.Run("a refusal does not wait for the body, and the connection lives on", func(t *testing.T) {
		conn := dial(t, gate)
		answers := bufio.NewReader(conn)
		for _, path := range []string{"/webhooks/wrong", "/webhooks/good"} {
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: gate\r\nContent-Length: %d\r\n\r\n%s", path, len(documented), documented)
			resp, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			if want := map[bool]int{true: 200, false: 401}[path == "/webhooks/good"]; resp.StatusCode != want {
				t.Errorf("%s: %s", path, resp.Status)
			}
		}
	})
	for path, want := range map[string]string{"/webhooks/wrong": " 401 ", "/webhooks/good": " 413 "} {
		t.Run("who sends all before looking for an answer finds it:"+want, func(t *testing.T) {
			const size = 20 << 20 // more than the kernel takes in for somebody who does not read
			conn := dial(t, gate)
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: gate\r\nContent-Length: %d\r\n\r\n", path, size)
			if _, err := io.CopyN(conn, repeated(' '), size); err != nil {
				t.Error(err)
			}
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil || !strings.Contains(line, want) {
				t.Errorf("%q, %v", line, err)
			}
		})
	}
	for _, method := range []string{"TRACE", "CONNECT"} {
		t.Run(method+" ends the connection", func(t *testing.T) {
			conn := dial(t, gate)
			fmt.Fprintf(conn, "%s /webhooks HTTP/1.1\r\nHost: gate\r\n\r\n", method)
			all, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 405 ") || !strings.Contains(string(all), "Usher-Decision: rejected") {
				t.Errorf("%q, %v", all, err)
			}
		})
	}
}

// repeated is a reader of nothing but one byte.
type repeated byte

func (b repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}

func dial(t *testing.T, s *httptest.Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("waited in vain")
}
