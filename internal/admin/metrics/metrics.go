// Package metrics has usher's figures, for Prometheus and for the charts of the admin
// port's page. No other part of usher knows it: what they tell through their hooks is
// wired to the methods of [Port], [Identity], [Gate], [Inbox] and [Entitlements] where
// the program is put together.
package metrics

import (
	"net/http"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

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

// Identity counts what happens to the tokens of one client and scope.
type Identity struct {
	ok, rejected, unavailable, early prometheus.Counter
	expiry                           prometheus.Gauge
	hour                             *ring
	changes                          *atomic.Uint64
}

// Identity returns the figures of the identity whose first port has this name.
func (m *Registry) Identity(port string) *Identity {
	return &Identity{
		ok:          m.tokenRequests.WithLabelValues(port, "ok"),
		rejected:    m.tokenRequests.WithLabelValues(port, "rejected"),
		unavailable: m.tokenRequests.WithLabelValues(port, "unavailable"),
		early:       m.tokenEarly.WithLabelValues(port),
		expiry:      m.tokenExpiry.WithLabelValues(port),
		hour:        newRing(false),
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
