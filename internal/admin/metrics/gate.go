package metrics

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

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
