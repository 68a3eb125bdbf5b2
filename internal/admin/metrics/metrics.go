// Package metrics has usher's figures, for Prometheus and for the charts of the admin
// port's page. No other part of usher knows it: what they tell through their hooks is
// wired to the methods of [Port], [Identity], [Gate], [Inbox] and [Entitlements] where
// the program is put together.
package metrics

import (
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"usher/internal/inbox"
	"usher/tokens"
)

// Registry is where the figures of one usher are.
type Registry struct {
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

// New returns the metrics of one usher, in a registry of their own.
func New(version, commit string) *Registry {
	m := &Registry{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.gauge("usher_build_info", "1, with the build in the labels.", "version", "commit", "goversion").WithLabelValues(version, commit, runtime.Version()).Set(1)

	m.proxyRequests = m.counter("usher_proxy_requests_total", "Calls on a local port, by the status that the caller saw (499: it hung up).", "port", "code")
	m.proxyDuration = m.histogram("usher_proxy_request_duration_seconds", "From a call's header to the last byte of its answer.", upToAMinute, "port")
	m.proxyInFlight = m.gauge("usher_proxy_in_flight", "Calls under way.", "port")
	m.proxyRetries = m.counter("usher_proxy_retries_total", "Calls sent a second time, with a new token, after a 401.", "port")

	m.tokenRequests = m.counter("usher_token_requests_total", "Requests to the token endpoint, by result: ok, rejected or unavailable.", "port", "result")
	m.tokenExpiry = m.gauge("usher_token_expiry_timestamp_seconds", "When the last token that was fetched ends; 0 before the first.", "port")
	m.tokenEarly = m.counter("usher_token_early_revocations_total", "Tokens that the service refused long before their end.", "port")
	return m
}

// upToAMinute are the buckets of what takes a minute at most.
var upToAMinute = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

func (m *Registry) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(m.registry).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (m *Registry) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return promauto.With(m.registry).NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func (m *Registry) gaugeFunc(name, help string, value func() float64) {
	promauto.With(m.registry).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}

func (m *Registry) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return promauto.With(m.registry).NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// Handler serves the metrics.
func (m *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Changes goes up with whatever a page shows, but for calls: those are too many.
func (m *Registry) Changes() uint64 { return m.changes.Load() }

// What the rings of the last hour count: calls of a port,
const (
	CallsFine = iota
	CallsFailed
	CallsReplayed
)

// and what became of the requests for a token. A gate's counts its decisions.
const (
	TokensRenewed = iota
	TokensRejected
	TokensUnavailable
	TokensRevoked
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
	hour     *ring
}

// Port returns the figures of the port of this name.
func (m *Registry) Port(name string) *Port {
	return &Port{
		requests: m.proxyRequests.MustCurryWith(prometheus.Labels{"port": name}),
		duration: m.proxyDuration.WithLabelValues(name),
		inFlight: m.proxyInFlight.WithLabelValues(name),
		retries:  m.proxyRetries.WithLabelValues(name),
		hour:     newRing(true),
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
func (p *Port) Hour() []Minute { return p.hour.Last() }

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

// tokenResults are those of a request for a token, by what a ring counts them as.
var tokenResults = [...]string{TokensRenewed: "ok", TokensRejected: "rejected", TokensUnavailable: "unavailable"}

// Identity counts what happens to the tokens of one client and scope.
type Identity struct {
	requests [len(tokenResults)]prometheus.Counter
	early    prometheus.Counter
	expiry   prometheus.Gauge
	hour     *ring
	changes  *atomic.Uint64
}

// Identity returns the figures of the identity whose first port has this name.
func (m *Registry) Identity(port string) *Identity {
	i := &Identity{early: m.tokenEarly.WithLabelValues(port), expiry: m.tokenExpiry.WithLabelValues(port), hour: newRing(false), changes: &m.changes}
	for kind, result := range tokenResults {
		i.requests[kind] = m.tokenRequests.WithLabelValues(port, result)
	}
	return i
}

// Fetched counts a request to the token endpoint.
func (i *Identity) Fetched(t *tokens.Token, err error) {
	kind := TokensUnavailable
	switch {
	case err == nil:
		kind = TokensRenewed
		i.expiry.Set(float64(t.Expiry().UnixMilli()) / 1000)
	case tokens.Rejected(err):
		kind = TokensRejected
	}
	i.requests[kind].Inc()
	i.hour.Count(kind)
	i.changes.Add(1)
}

// EarlyRevoked counts a token refused long before its end.
func (i *Identity) EarlyRevoked() {
	i.early.Inc()
	i.hour.Count(TokensRevoked)
	i.changes.Add(1)
}

// Hour is the identity's last hour.
func (i *Identity) Hour() []Minute { return i.hour.Last() }

// Entitlements counts the questions what a tenant may use.
type Entitlements struct{ checks *prometheus.CounterVec }

// Entitlements returns the figures of the entitlements port. tenants says of how many something is
// known.
func (m *Registry) Entitlements(tenants func() int) *Entitlements {
	m.gaugeFunc("usher_entitlement_tenants", "Tenants whose last snapshot is known.", func() float64 { return float64(tenants()) })
	checks := m.counter("usher_entitlement_checks_total", "Questions whether a tenant may use a feature, by the answer: enabled, denied, or unknown (also: ambiguous, or the inbox can't be read).", "result")
	for _, result := range []string{"enabled", "denied", "unknown"} {
		checks.WithLabelValues(result)
	}
	return &Entitlements{checks}
}

// Checked counts a question.
func (e *Entitlements) Checked(result string) { e.checks.WithLabelValues(result).Inc() }

// Gate counts the webhooks.
type Gate struct {
	received  *prometheus.CounterVec
	attempts  *prometheus.CounterVec
	tries     *prometheus.HistogramVec
	refused   *prometheus.CounterVec
	duration  prometheus.Observer
	decisions *ring
	changes   *atomic.Uint64

	mu        sync.Mutex // guards what follows
	receivers map[string]*GateReceiver
}

// GateReceiver counts the tries at one receiver.
type GateReceiver struct {
	took prometheus.Observer
	hour *ring // by result, as in results

	mu     sync.Mutex // guards what follows
	recent RecentTries
}

// RecentTries are those of the last minutes.
type RecentTries struct {
	Last       string // result of the last: ok, status, timeout or error; empty before the first
	LastFailed string // of the last that was not ok
	OK, Failed int    // how many
	InARow     int    // failed, since the last that was ok
}

// Lately is how many minutes back something counts as going on.
const Lately = 5

// results are those of a try, the good one first.
var results = []string{"ok", "status", "timeout", "error"}

// Gate returns the figures of the webhook gate.
func (m *Registry) Gate() *Gate {
	g := &Gate{
		received:  m.counter("usher_webhook_received_total", "Webhooks, by what became of them.", "decision"),
		refused:   m.counter("usher_webhook_refused_total", "Webhooks of the right sender whose content was refused: json, size, schema, platform, or type (in neither list of types).", "reason"),
		attempts:  m.counter("usher_webhook_attempts_total", "Tries at a receiver: ok, status (another than 2xx), timeout or error (no answer).", "receiver", "result"),
		tries:     m.histogram("usher_webhook_attempt_duration_seconds", "How long a try at a receiver took.", upToAMinute, "receiver"),
		duration:  m.histogram("usher_webhook_duration_seconds", "From a webhook's header to the answer to its sender.", upToAMinute).WithLabelValues(),
		decisions: newRing(false),
		changes:   &m.changes,
		receivers: make(map[string]*GateReceiver),
	}
	for _, decision := range Decisions {
		g.received.WithLabelValues(decision)
	}
	for _, reason := range []string{"json", "size", "schema", "platform", "type"} {
		g.refused.WithLabelValues(reason)
	}
	return g
}

// Receiver returns the figures of the receiver of this name.
func (g *Gate) Receiver(name string) *GateReceiver {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.receivers[name]
	if r == nil {
		r = &GateReceiver{took: g.tries.WithLabelValues(name), hour: newRing(false)}
		for _, result := range results {
			g.attempts.WithLabelValues(name, result)
		}
		g.receivers[name] = r
	}
	return r
}

// Refused counts a webhook of the right sender whose content was refused.
func (g *Gate) Refused(reason string) { g.refused.WithLabelValues(reason).Inc() }

// Received counts an answer to a sender.
func (g *Gate) Received(decision string, took time.Duration) {
	g.received.WithLabelValues(decision).Inc()
	g.duration.Observe(took.Seconds())
	if i := slices.Index(Decisions[:], decision); i >= 0 {
		g.decisions.Count(i)
	}
	g.changes.Add(1)
}

// Attempted counts a try at a receiver.
func (g *Gate) Attempted(receiver, result string, took time.Duration) {
	g.attempts.WithLabelValues(receiver, result).Inc()
	r := g.Receiver(receiver)
	r.took.Observe(took.Seconds())
	r.hour.Count(max(0, slices.Index(results, result)))
	g.changes.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recent.Last = result
	if result == "ok" {
		r.recent.InARow = 0
		return
	}
	r.recent.LastFailed = result
	r.recent.InARow++
}

// Hour is the gate's last hour: its decisions, in the order of Decisions.
func (g *Gate) Hour() []Minute { return g.decisions.Last() }

// Recent says how the tries of the last minutes went.
func (r *GateReceiver) Recent() RecentTries {
	r.mu.Lock()
	recent := r.recent
	r.mu.Unlock()
	minutes := r.hour.Last()
	recent.OK, recent.Failed = Sum(minutes, Lately, 0), Sum(minutes, Lately, 1, 2, 3)
	return recent
}

// Certificate registers when the gate's own TLS certificate ends, which ends returns.
func (m *Registry) Certificate(ends func() time.Time) {
	m.gaugeFunc("usher_webhook_tls_expiry_timestamp_seconds", "When the certificate that the gate shows to senders ends.",
		func() float64 { return float64(ends().Unix()) })
}

// Inbox counts what the inbox tells while it works. What it says when it is asked is
// in Stats, and taken with each scrape.
type Inbox struct {
	delivery *prometheus.HistogramVec
}

// Inbox registers the figures of the inbox. stats returns those of the moment.
func (m *Registry) Inbox(stats func() inbox.Stats) *Inbox {
	m.registry.MustRegister(inboxCollector(stats))
	// From a few milliseconds to the three days after which a webhook is parked.
	buckets := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 72 * 3600}
	return &Inbox{m.histogram("usher_inbox_delivery_seconds", "From a webhook's acceptance (or when it was sent again by hand) to its delivery.", buckets, "receiver")}
}

// Receiver has the figures of a receiver there with zeros from the start.
func (f *Inbox) Receiver(name string) { f.delivery.WithLabelValues(name) }

// Delivered counts a webhook that a receiver has accepted; see inbox.Config.Delivered.
func (f *Inbox) Delivered(receiver string, after time.Duration) {
	f.delivery.WithLabelValues(receiver).Observe(after.Seconds())
}

// Paused registers how many pauses are in force, which paused returns.
func (m *Registry) Paused(paused func() int) {
	m.gaugeFunc("usher_inbox_paused", "Pauses of deliveries in force, made by hand: of all, of a tenant or of a receiver. Replicas that share an inbox all report the same.",
		func() float64 { return float64(paused()) })
}

// inboxCollector takes all figures at one moment.
type inboxCollector func() inbox.Stats

// Describe implements prometheus.Collector. It names nothing beforehand, so the registry takes what Collect finds.
func (inboxCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (stats inboxCollector) Collect(ch chan<- prometheus.Metric) {
	s := stats()
	if s.Unknown {
		return // zeros would seem to say that all is well
	}
	gauge := func(name, help string, value float64) {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, value)
	}
	gauge("usher_inbox_pending", "Webhooks that wait for their delivery.", float64(s.Pending))
	gauge("usher_inbox_oldest_seconds", "Age of the oldest of them.", s.Oldest.Seconds())
	gauge("usher_inbox_parked", "Webhooks that are not tried any more and were not overtaken.", float64(s.Parked))
	gauge("usher_inbox_refused", "Refused webhooks that nobody has dealt with.", float64(s.Unread))
	gauge("usher_inbox_used_bytes", "What waits or is parked takes so much of the inbox; replicas that share one all report the same.", float64(s.Used))
	gauge("usher_inbox_limit_bytes", "What may wait or be parked; beyond it senders get 503. 0: there is no inbox.", float64(s.Limit))
	for receiver, r := range s.Receivers {
		gauge := func(name, help string, value float64) {
			ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, []string{"receiver"}, nil), prometheus.GaugeValue, value, receiver)
		}
		down := 0.0
		if r.Down {
			down = 1
		}
		gauge("usher_inbox_receiver_pending", "Webhooks that wait for their delivery to this receiver; an empty name: to none.", float64(r.Pending))
		gauge("usher_inbox_receiver_oldest_seconds", "Age of the oldest of them.", r.Oldest.Seconds())
		gauge("usher_inbox_receiver_parked", "Webhooks for this receiver that are not tried any more and were not overtaken.", float64(r.Parked))
		gauge("usher_inbox_receiver_down", "1 while this receiver seems to be down, and is tried with one delivery at a time.", down)
	}
}
