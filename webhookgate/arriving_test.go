package webhookgate

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// begin sends the head of a webhook of this length, and as much of its body.
func begin(c net.Conn, length, sent int) {
	fmt.Fprintf(c, "POST /webhooks HTTP/1.1\r\nHost: gate\r\nContent-Length: %d\r\n\r\n", length)
	io.WriteString(c, strings.Repeat(" ", sent))
}

// statusOf returns the status of the next answer.
func statusOf(t *testing.T, c net.Conn) int {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// A sender whose body does not arrive takes no place from others.
func TestSlowBodyHoldsNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, func(c *setup) { c.MaxInflight, c.MaxBody = 1, 1<<20 })
		var slow []net.Conn
		for range 3 {
			slow = append(slow, dialGate(t, g))
			begin(slow[len(slow)-1], 1000, 100)
		}
		synctest.Wait()
		if got := post(t, g, documented); got.Code != 200 {
			t.Errorf("another sender: %v", got)
		}
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		body := snapshotOf("acme", "last")
		io.WriteString(slow[0], body+strings.Repeat(" ", 900-len(body)))
		if status := statusOf(t, slow[0]); status != 200 {
			t.Errorf("a body that began to arrive before the gate shut down: %d", status)
		}
		for _, c := range slow[1:] {
			if status := statusOf(t, c); status != 408 {
				t.Errorf("a body that does not arrive: %d", status)
			}
		}
	})
}

// The bodies of all senders together have a bound. Small ones always have room. If there is no room for a
// large one, the one gives way that began first: it is slow.
func TestBodiesHaveABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missed := 0
		g := newGate(t, func(c *setup) {
			c.MaxInflight, c.MaxBody = 2, 200<<10
			c.Missed = func(time.Time) { missed++ }
		})
		var slow []net.Conn
		for range 3 {
			slow = append(slow, dialGate(t, g))
			begin(slow[len(slow)-1], 200<<10, 190<<10)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if used := g.bodies.used; used > g.bodies.limit || used < 200<<10 {
			t.Errorf("%d bytes are in use", used)
		}
		if status := statusOf(t, slow[0]); status != 503 {
			t.Errorf("the one that began first: %d", status)
		}
		if missed != 1 {
			t.Errorf("%d are missed", missed)
		}
		tiny := dialGate(t, g)
		begin(tiny, 1000, 100) // it is older than what follows, but holds nothing
		large := documented + strings.Repeat(" ", 150<<10)
		for range 3 {
			if got := post(t, g, large); got.Code != 200 {
				t.Errorf("a large one beside them: %v", got)
			}
		}
		io.WriteString(tiny, strings.Repeat(" ", 900))
		if status := statusOf(t, tiny); status != 400 {
			t.Errorf("a small one that is slow: %d", status)
		}
		for _, c := range slow[1:] {
			c.Close()
		}
		synctest.Wait()
		if len(g.bodies.arriving) != 0 || g.bodies.used != 0 {
			t.Errorf("%d bodies and %d bytes are left", len(g.bodies.arriving), g.bodies.used)
		}
	})
}

// If only a signature says who sends, usher does not know who began such a body, and missed it nothing.
func TestStrangersBodiesGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missed := 0
		g := newGate(t, func(c *setup) {
			c.MaxInflight, c.MaxBody, c.SigningKeys = 1, 200<<10, secret("key")
			c.Missed = func(time.Time) { missed++ }
		})
		first, second := dialGate(t, g), dialGate(t, g)
		for _, c := range []net.Conn{first, second} {
			begin(c, 200<<10, 190<<10)
		}
		if status := statusOf(t, first); status != 408 {
			t.Errorf("the one that began first: %d", status)
		}
		if missed != 0 {
			t.Errorf("%d are missed", missed)
		}
	})
}
