package webhookgate

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"usher/internal/guard"
	"usher/internal/testkit/pipes"
)

// dialGate serves the gate as usher does, and returns a sender's connection.
func dialGate(t *testing.T, g *Gate) net.Conn {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	srv, way := guard.NewServer(g, nil, log), make(pipes.Listener)
	go srv.Serve(way)
	t.Cleanup(func() {
		srv.Close()
		time.Sleep(time.Second) // net/http waits half a second before it ends a connection that it has closed
	})
	return way.Dial(t)
}

// A sender that does not read its answer takes no place from others, and usher holds nothing of its webhook.
func TestUnreadAnswerHoldsNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var body weak.Pointer[byte]
		g := newGate(t, func(c *setup) {
			c.MaxInflight = 1
			c.Invalid = func(_ context.Context, r *Invalid) int64 { body = weak.Make(&r.Body[0]); return 0 }
		})
		sender := dialGate(t, g)
		faulty := strings.Replace(snapshotOf("acme", "A"), `{"code":"A"}`, strings.Repeat("1,", 5000)+"1", 1)
		fmt.Fprintf(sender, "POST /webhooks HTTP/1.1\r\nHost: gate\r\nContent-Length: %d\r\n\r\n%s", len(faulty), faulty)
		synctest.Wait()
		if got := post(t, g, documented); got.Code != 200 {
			t.Errorf("another sender: %v", got)
		}
		if runtime.GC(); body.Value() != nil {
			t.Error("the body of the webhook is still in memory")
		}
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The answer to a body with any number of faults, whatever their names, is not large.
func TestAnswerIsBounded(t *testing.T) {
	strict := newGate(t, func(c *setup) { c.Schema = []byte(`{"additionalProperties":false}`) })
	named := newGate(t, func(c *setup) { c.Schema = []byte(`{"propertyNames":{"maxLength":100}}`) })
	var names []string
	for i := range 500 {
		names = append(names, fmt.Sprintf(`"%d%s":1`, i, strings.Repeat(`\u0001`, 300)))
	}
	for body, g := range map[string]*Gate{
		strings.Replace(snapshotOf("acme", "A"), `{"code":"A"}`, strings.Repeat("1,", 5000)+"1", 1): newGate(t, nil),
		"{" + strings.Join(names, ",") + "}":         strict,
		`{"` + strings.Repeat("x", 500_000) + `":1}`: named,
	} {
		if got := post(t, g, body); got.Code != 422 || len(got.Faults) < min(10, strings.Count(body, "1")) || got.Body.Len() > maxFaultBytes+2<<10 {
			t.Errorf("%.20s: %d, %d faults in %d bytes", body, got.Code, len(got.Faults), got.Body.Len())
		}
	}
}
