package shared

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// lagging is three servers. Between any two of them the wire can be slow.
type lagging struct {
	servers []*natstest.Server
	delays  map[[2]int]*atomic.Int64
}

func newLagging(t *testing.T) *lagging {
	t.Helper()
	t.Parallel()
	l := &lagging{delays: make(map[[2]int]*atomic.Int64)}
	listen := func() net.Listener {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		return listener
	}
	for n := range 3 {
		routes := []*url.URL{{Scheme: "nats-route", Host: "127.0.0.1:1"}} // without one it is no cluster
		for to := range n {
			proxy, delay := listen(), new(atomic.Int64)
			l.delays[[2]int{to, n}] = delay
			go serve(proxy, l.servers[to].ClusterAddr().String(), delay)
			routes = append(routes, &url.URL{Scheme: "nats-route", Host: proxy.Addr().String()})
		}
		l.servers = append(l.servers, natstest.Start(t.TempDir(), func(o *server.Options) {
			o.ServerName, o.DontListen, o.Host, o.Port = fmt.Sprint("s", n), false, "127.0.0.1", -1
			o.Cluster = server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: -1, NoAdvertise: true, PoolSize: -1}
			o.Routes = routes
		}))
	}
	t.Cleanup(func() {
		for _, delay := range l.delays {
			delay.Store(0)
		}
		for _, s := range l.servers {
			s.Shutdown()
			s.WaitForShutdown()
		}
	})
	return l
}

// serve passes connections on to an address.
func serve(proxy net.Listener, to string, delay *atomic.Int64) {
	for {
		c, err := proxy.Accept()
		if err != nil {
			return
		}
		d, err := net.Dial("tcp", to)
		if err != nil {
			c.Close()
			continue
		}
		go pump(c, d, delay)
		go pump(d, c, delay)
	}
}

// pump passes on what comes, late.
func pump(dst, src net.Conn, delay *atomic.Int64) {
	type piece struct {
		data []byte
		due  time.Time
	}
	pieces := make(chan piece, 100_000)
	go func() {
		defer dst.Close()
		for p := range pieces {
			time.Sleep(time.Until(p.due))
			if _, err := dst.Write(p.data); err != nil {
				src.Close()
			}
		}
	}()
	defer close(pieces)
	for {
		b := make([]byte, 64<<10)
		n, err := src.Read(b)
		if n > 0 {
			pieces <- piece{b[:n], time.Now().Add(time.Duration(delay.Load()))}
		}
		if err != nil {
			return
		}
	}
}

// lag has one server lead the streams that does not lead the cluster, and the third one hear late from it.
func (l *lagging) lag(t *testing.T, r *replica) {
	t.Helper()
	meta := slices.IndexFunc(l.servers, func(s *natstest.Server) bool { return s.JetStreamIsLeader() })
	if meta < 0 {
		t.Fatal("nobody leads the cluster")
	}
	leader, behind := (meta+1)%3, (meta+2)%3
	for _, name := range []string{"USHER", "USHER_HISTORY"} {
		until(t, "another one leads "+name, func() bool {
			stream, err := r.js(t).Stream(t.Context(), name)
			if err == nil && stream.CachedInfo().Cluster.Leader == fmt.Sprint("s", leader) {
				return true
			}
			_, _ = r.servers.Conn.Request("$JS.API.STREAM.LEADER.STEPDOWN."+name, fmt.Appendf(nil, `{"placement":{"preferred":"s%d"}}`, leader), 2*time.Second)
			time.Sleep(500 * time.Millisecond)
			return false
		})
	}
	l.delays[[2]int{min(leader, behind), max(leader, behind)}].Store(int64(1500 * time.Millisecond))
	time.Sleep(3 * time.Second)
}

// begin starts a replica whose receiver is down.
func (l *lagging) begin(t *testing.T) (*cluster, *replica) {
	t.Helper()
	meta := -1
	until(t, "one leads the cluster", func() bool {
		meta = slices.IndexFunc(l.servers, func(s *natstest.Server) bool { return s.JetStreamIsLeader() })
		return meta >= 0 && len(l.servers[meta].JetStreamClusterPeers()) == 3
	})
	c := &cluster{t: t, server: l.servers[meta], change: func(*Config, *courier.Config) {}, parts: 1}
	c.receiver.Set(inboxtest.Refusing)
	r := c.start()
	until(t, "it delivers", func() bool { return r.Err() == nil && r.terms() == r.subjects.Parts })
	l.lag(t, r)
	until(t, "it delivers", func() bool { return r.Err() == nil && r.terms() == r.subjects.Parts })
	return c, r
}

// One of the servers is behind the others, and the consumers by which usher reads may be there.
func TestAServerIsBehind(t *testing.T) {
	c, r := newLagging(t).begin(t)
	defer func() { r.stop() }()
	t.Run("many tries fail at once", func(t *testing.T) { r = manyFailAtOnce(t, c, r) })
	c.receiver.Set(inboxtest.Refusing)
	t.Run("what was erased is gone", func(t *testing.T) { r = erasedThoughBehind(t, c, r) })
	c.receiver.Set(inboxtest.Refusing)
	t.Run("what was acknowledged is listed", func(t *testing.T) { listedThoughBehind(t, r) })
	t.Run("a webhook whose answer was lost is found", func(t *testing.T) { gotInThoughBehind(t, r) })
	t.Run("who is ready knows what was acknowledged before", func(t *testing.T) { readyThoughBehind(t, c, r) })
}

// It is, wherever the servers put the consumer.
func listedThoughBehind(t *testing.T, r *replica) {
	missed := 0
	for n := range 30 {
		tenant := fmt.Sprint("listed", n)
		r.send(t, tenant, "A")
		if entries, err := r.List(record.Filter{Tenant: tenant}); err != nil || len(entries) != 1 {
			missed++
		}
	}
	if missed > 0 {
		t.Errorf("%d of 30 webhooks were acknowledged, and are not listed", missed)
	}
}

// Else it would be written, or sent, once more behind what is newer.
func gotInThoughBehind(t *testing.T, r *replica) {
	missed := 0
	for n := range 20 {
		w := inboxtest.Webhook(fmt.Sprint("got in", n), "A")
		a := &arriving{Webhook: w, place: message.PlaceOf(w.Lane), came: time.Now(), seen: r.servers.Seen()}
		r.keep(t, w)
		r.send(t, w.Lane.Tenant, "B")
		last, err := r.readEnd(t.Context(), a.place)
		if err != nil {
			t.Fatal(err)
		}
		if id, err := r.gotIn(t.Context(), a, &last); err == nil && id == 0 {
			missed++
		}
	}
	if missed > 0 {
		t.Errorf("%d of 20 webhooks are there, and are not found", missed)
	}
}

func readyThoughBehind(t *testing.T, c *cluster, r *replica) {
	var mu sync.Mutex
	wrong := 0
	const replicas = 8
	for n := range replicas {
		tenant := fmt.Sprint("ready", n)
		known := make(map[string]bool)
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.Idle = true
			cfg.OnSnapshot = func(lane webhookgate.Lane, _ uint64, _ *webhookgate.Webhook) {
				mu.Lock()
				defer mu.Unlock()
				known[lane.Tenant] = true
			}
		}
		r.send(t, tenant, "A")
		two := c.start()
		until(t, "ready", func() bool { _, ready := two.Following(); return ready })
		mu.Lock()
		if !known[tenant] {
			wrong++
		}
		mu.Unlock()
		two.stop()
	}
	if wrong > 0 {
		t.Errorf("%d of %d replicas said that they had read everything, and did not know a tenant", wrong, replicas)
	}
}

// An erasure that says it is done has deleted everything, and nothing of it is delivered later. It returns the replica that
// delivers then.
func erasedThoughBehind(t *testing.T, c *cluster, r *replica) *replica {
	var done []string
	tenants := 12 // each may take as long as the server is behind
	if testing.Short() {
		tenants = 5
	}
	for n := range tenants {
		tenant := fmt.Sprint("erased", n)
		for word := range 3 {
			r.send(t, tenant, fmt.Sprintf("secret-of-%s-%d;", tenant, word))
		}
		if _, err := r.Erase("p", tenant); err == nil {
			done = append(done, tenant)
		}
	}
	all := r.contents(t)
	left := 0
	for _, tenant := range done {
		if strings.Contains(all, "secret-of-"+tenant+"-") {
			left++
		}
	}
	if left > 0 || len(done) == 0 {
		t.Errorf("%d of %d tenants were erased, and their webhooks are still there", left, len(done))
	}
	r.send(t, "marker", "A")
	c.receiver.Set(nil)
	r.stop()
	next := c.start()
	until(t, "taken over", func() bool { return slices.Contains(c.receiver.Accepted(), "marker:A") })
	time.Sleep(2 * time.Second)
	for _, got := range c.receiver.Accepted() {
		if strings.Contains(got, "secret-of-") {
			t.Errorf("the receiver got %s, which was erased", got)
		}
	}
	return next
}

// Tries of many tenants fail at once, and how they stand is written at once. Several servers refuse one of two
// messages that depend on the same claim while the other is under way: nobody has taken the part over for that.
func manyFailAtOnce(t *testing.T, c *cluster, before *replica) *replica {
	before.stop()
	left := make(chan string, 1000)
	c.change = func(cfg *Config, _ *courier.Config) {
		cfg.LeaseChanged = func(change string) {
			if change != "taken" {
				left <- change
			}
		}
	}
	c.receiver.Set(inboxtest.Status(422))
	r := c.start()
	until(t, "it delivers", func() bool { return r.Err() == nil && r.terms() == r.subjects.Parts })
	if err := r.Pause(record.Pause{}); err != nil {
		t.Fatal(err)
	}
	for n := range 40 {
		r.send(t, fmt.Sprint("fails", n), "A")
	}
	if _, err := r.Resume(record.Pause{}); err != nil {
		t.Fatal(err)
	}
	until(t, "all are parked", func() bool { return r.courier.Stats().Parked == 40 })
	time.Sleep(time.Second)
	c.change = func(*Config, *courier.Config) {}
	if n := len(left); n > 0 {
		t.Errorf("the part was given up %d times: %s", n, <-left)
	}
	return r
}
