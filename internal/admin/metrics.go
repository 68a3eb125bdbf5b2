package admin

import (
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"usher/internal/admin/hour"
	"usher/tokens"
)

// Metrics are usher's figures, for Prometheus and for the page's charts. The rooms of
// the house do not know it: what they tell through their hooks is wired to the
// methods of [Port], [Identity] and [Gate] where the program is put together.
type Metrics struct {
	registry *prometheus.Registry
	changes  atomic.Uint64

	proxyRequests *prometheus.CounterVec
	proxyDuration *prometheus.HistogramVec
	proxyInFlight *prometheus.GaugeVec
	proxyRetries  *prometheus.CounterVec

	tokenRequests *prometheus.CounterVec
	tokenExpiry   *prometheus.GaugeVec
	tokenEarly    *prometheus.CounterVec
}

// NewMetrics returns the metrics of one usher, in a registry of their own.
func NewMetrics(version, commit string) *Metrics {
	r := prometheus.NewRegistry()
	m := &Metrics{
		registry: r,
		proxyRequests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "usher_proxy_requests_total", Help: "Calls on a local port, by the status that the caller saw (499: it hung up).",
		}, []string{"port", "code"}),
		proxyDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "usher_proxy_request_duration_seconds", Help: "From a call's header to the last byte of its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"port"}),
		proxyInFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "usher_proxy_in_flight", Help: "Calls under way.",
		}, []string{"port"}),
		proxyRetries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "usher_proxy_retries_total", Help: "Calls sent a second time, with a new token, after a 401.",
		}, []string{"port"}),
		tokenRequests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "usher_token_requests_total", Help: "Requests to the token endpoint, by result: ok, rejected or unavailable.",
		}, []string{"port", "result"}),
		tokenExpiry: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "usher_token_expiry_timestamp_seconds", Help: "When the last token that was fetched ends; 0 before the first.",
		}, []string{"port"}),
		tokenEarly: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "usher_token_early_revocations_total", Help: "Tokens that the service refused long before their end.",
		}, []string{"port"}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "usher_build_info", Help: "1, with the build in the labels.",
		ConstLabels: prometheus.Labels{"version": version, "commit": commit, "goversion": runtime.Version()},
	})
	info.Set(1)
	r.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), info,
		m.proxyRequests, m.proxyDuration, m.proxyInFlight, m.proxyRetries,
		m.tokenRequests, m.tokenExpiry, m.tokenEarly,
	)
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Changes goes up with whatever a page shows, but for calls: those are too many.
func (m *Metrics) Changes() uint64 { return m.changes.Load() }

// What the rings of the last hour count: calls of a port,
const (
	CallsFine = iota
	CallsFailed
	CallsReplayed
)

// what became of the requests for a token,
const (
	TokensRenewed = iota
	TokensRejected
	TokensUnavailable
	TokensRevoked
)

// decisions of the gate (see Decisions), and tries at the receiver.
const (
	TriesTaken = iota
	TriesFailed
)

// Decisions are those of the gate, in the order in which its ring counts them.
var Decisions = [...]string{"forwarded", "queued", "duplicate", "rejected", "failed"}

// Port counts the calls of one local port. Its handles are looked up once, here,
// and not with each call.
type Port struct {
	requests *prometheus.CounterVec
	codes    [600]atomic.Pointer[prometheus.Counter] // by status, as they occur
	duration prometheus.Observer
	inFlight prometheus.Gauge
	retries  prometheus.Counter
	hour     *hour.Ring
}

// Port returns the figures of the port of this name.
func (m *Metrics) Port(name string) *Port {
	return &Port{
		requests: m.proxyRequests.MustCurryWith(prometheus.Labels{"port": name}),
		duration: m.proxyDuration.WithLabelValues(name),
		inFlight: m.proxyInFlight.WithLabelValues(name),
		retries:  m.proxyRetries.WithLabelValues(name),
		hour:     hour.New(true),
	}
}

// Started counts a call that begins.
func (p *Port) Started() { p.inFlight.Inc() }

// Finished counts a call that has ended.
func (p *Port) Finished(status int, took time.Duration) {
	p.inFlight.Dec()
	p.duration.Observe(took.Seconds())
	p.code(status).Inc()
	kind := CallsFine
	if status >= 400 && status != 499 { // who hung up has seen no error
		kind = CallsFailed
	}
	p.hour.Took(kind, took)
}

// Replayed counts a second try.
func (p *Port) Replayed() {
	p.retries.Inc()
	p.hour.Count(CallsReplayed)
}

// Hour is the port's last hour.
func (p *Port) Hour() []hour.Minute { return p.hour.Last() }

func (p *Port) code(status int) prometheus.Counter {
	if status < 0 || status >= len(p.codes) {
		status = 0
	}
	if c := p.codes[status].Load(); c != nil {
		return *c
	}
	c := p.requests.WithLabelValues(strconv.Itoa(status))
	p.codes[status].Store(&c)
	return c
}

// Identity counts what happens to the tokens of one client and scope.
type Identity struct {
	ok, rejected, unavailable, early prometheus.Counter
	expiry                           prometheus.Gauge
	hour                             *hour.Ring
	changes                          *atomic.Uint64
}

// Identity returns the figures of the identity whose first port has this name.
func (m *Metrics) Identity(port string) *Identity {
	return &Identity{
		ok:          m.tokenRequests.WithLabelValues(port, "ok"),
		rejected:    m.tokenRequests.WithLabelValues(port, "rejected"),
		unavailable: m.tokenRequests.WithLabelValues(port, "unavailable"),
		early:       m.tokenEarly.WithLabelValues(port),
		expiry:      m.tokenExpiry.WithLabelValues(port),
		hour:        hour.New(false),
		changes:     &m.changes,
	}
}

// Fetched counts a request to the token endpoint.
func (i *Identity) Fetched(t *tokens.Token, err error) {
	switch {
	case err == nil:
		i.ok.Inc()
		i.expiry.Set(float64(t.Expiry().UnixMilli()) / 1000)
		i.hour.Count(TokensRenewed)
	case tokens.Rejected(err):
		i.rejected.Inc()
		i.hour.Count(TokensRejected)
	default:
		i.unavailable.Inc()
		i.hour.Count(TokensUnavailable)
	}
	i.changes.Add(1)
}

// EarlyRevoked counts a token refused long before its end.
func (i *Identity) EarlyRevoked() {
	i.early.Inc()
	i.hour.Count(TokensRevoked)
	i.changes.Add(1)
}

// Hour is the identity's last hour.
func (i *Identity) Hour() []hour.Minute { return i.hour.Last() }

// Gate counts the webhooks.
type Gate struct {
	received  *prometheus.CounterVec
	attempts  *prometheus.CounterVec
	duration  prometheus.Observer
	decisions *hour.Ring
	tries     *hour.Ring
	last      atomic.Pointer[string] // result of the last try
	changes   *atomic.Uint64
}

// Gate returns the figures of the webhook gate.
func (m *Metrics) Gate() *Gate {
	g := &Gate{
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "usher_webhook_received_total", Help: "Webhooks, by what became of them.",
		}, []string{"decision"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "usher_webhook_attempts_total", Help: "Tries at the receiver: ok, status (another than 2xx), timeout or error (no answer).",
		}, []string{"result"}),
		decisions: hour.New(false),
		tries:     hour.New(false),
		changes:   &m.changes,
	}
	duration := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "usher_webhook_duration_seconds", Help: "From a webhook's header to the answer to its sender.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	})
	g.duration = duration
	m.registry.MustRegister(g.received, g.attempts, duration)
	for _, decision := range Decisions {
		g.received.WithLabelValues(decision)
	}
	for _, result := range []string{"ok", "status", "timeout", "error"} {
		g.attempts.WithLabelValues(result)
	}
	return g
}

// Received counts an answer to a sender.
func (g *Gate) Received(decision string, took time.Duration) {
	g.received.WithLabelValues(decision).Inc()
	g.duration.Observe(took.Seconds())
	if i := slices.Index(Decisions[:], decision); i >= 0 {
		g.decisions.Count(i)
	}
	g.changes.Add(1)
}

// Attempted counts a try at the receiver.
func (g *Gate) Attempted(result string) {
	g.attempts.WithLabelValues(result).Inc()
	kind := TriesTaken
	if result != "ok" {
		kind = TriesFailed
	}
	g.tries.Count(kind)
	g.last.Store(&result)
	g.changes.Add(1)
}

// Hour is the gate's last hour: its decisions, and the tries at the receiver.
func (g *Gate) Hour() (decisions, tries []hour.Minute) { return g.decisions.Last(), g.tries.Last() }

// LastTry is the result of the last try at the receiver; empty before the first.
func (g *Gate) LastTry() string {
	if last := g.last.Load(); last != nil {
		return *last
	}
	return ""
}

// Inbox registers the figures of the inbox, which stats returns when they are asked
// for.
func (m *Metrics) Inbox(stats func() (pending int, oldest time.Duration, parked int)) {
	m.registry.MustRegister(&inboxCollector{
		stats:   stats,
		pending: prometheus.NewDesc("usher_inbox_pending", "Webhooks that wait for their delivery.", nil, nil),
		oldest:  prometheus.NewDesc("usher_inbox_oldest_seconds", "Age of the oldest of them.", nil, nil),
		parked:  prometheus.NewDesc("usher_inbox_parked", "Webhooks that are not tried any more and were not overtaken.", nil, nil),
	})
}

// inboxCollector takes all three figures at one moment.
type inboxCollector struct {
	stats                   func() (int, time.Duration, int)
	pending, oldest, parked *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *inboxCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.pending
	ch <- c.oldest
	ch <- c.parked
}

// Collect implements prometheus.Collector.
func (c *inboxCollector) Collect(ch chan<- prometheus.Metric) {
	pending, oldest, parked := c.stats()
	ch <- prometheus.MustNewConstMetric(c.pending, prometheus.GaugeValue, float64(pending))
	ch <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, oldest.Seconds())
	ch <- prometheus.MustNewConstMetric(c.parked, prometheus.GaugeValue, float64(parked))
}
