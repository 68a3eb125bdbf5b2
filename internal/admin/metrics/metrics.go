// Package metrics counts what usher does: for Prometheus, and minute by minute over the last hour for the charts of the
// admin page.
//
// The parts of usher do not import it. They report through func fields of their configurations, such as
// webhookgate.Config.Answered, and packages serve and outbound connect those to the methods here.
package metrics

import (
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"usher/internal/inbox"
	"usher/internal/receiver"
	"usher/tokens"
)

// Registry has all metrics of one usher.
type Registry struct {
	registry *prometheus.Registry

	proxyRequests *prometheus.CounterVec
	proxyDuration *prometheus.HistogramVec
	proxyInFlight *prometheus.GaugeVec
	proxyRetries  *prometheus.CounterVec
	proxyFailed   *prometheus.CounterVec

	tokenRequests *prometheus.CounterVec
	tokenExpiry   *prometheus.GaugeVec
	tokenEarly    *prometheus.CounterVec
}

// New returns a registry with the metrics of calls, of tokens and of the Go runtime. The other
// parts of usher add theirs.
func New(version, commit string) *Registry {
	m := &Registry{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.gauge("usher_build_info", "1, with the build in the labels.",
		"version", "commit", "goversion").WithLabelValues(version, commit, runtime.Version()).Set(1)

	m.proxyRequests = m.counter("usher_proxy_requests_total",
		"Calls on a local port, by the status that the caller got (499: it hung up, or usher cut it off "+
			"while shutting down).", "port", "code")
	m.proxyDuration = m.histogram("usher_proxy_request_duration_seconds",
		"From a call's header to the last byte of its answer.", upToAMinute, "port")
	m.proxyInFlight = m.gauge("usher_proxy_in_flight", "Calls in progress.", "port")
	m.proxyRetries = m.counter("usher_proxy_retries_total",
		"Calls sent a second time, with a new token, after a 401.", "port")

	m.proxyFailed = m.counter("usher_proxy_failed_total",
		"Calls that usher failed: its own 5xx by their code, UNAUTHORIZED (the service rejected a new token, "+
			"too), CUT_OFF (by usher's shutdown).", "port", "reason")

	m.tokenRequests = m.counter("usher_token_requests_total",
		"Requests to the token endpoint, by result: ok, rejected or unavailable.", "port", "result")
	m.tokenExpiry = m.gauge("usher_token_expiry_timestamp_seconds",
		"When the newest token expires; 0 before the first.", "port")
	m.tokenEarly = m.counter("usher_token_early_revocations_total",
		"Tokens that the service rejected long before they expired.", "port")
	return m
}

// upToAMinute are histogram buckets, in seconds, for what usually takes less than a minute.
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
	opts := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	return promauto.With(m.registry).NewHistogramVec(opts, labels)
}

// Register adds a collector.
func (m *Registry) Register(c prometheus.Collector) { m.registry.MustRegister(c) }

// Handler serves GET /metrics.
func (m *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Indexes into Minute.Counts of Port.Hour.
const (
	CallsFine = iota
	CallsFailed
	CallsReplayed
	Calls5xx    // of CallsFailed
	CallsOurs   // of CallsFailed: those that usher itself failed
	CallsOur5xx // those that are both
)

// Indexes into Minute.Counts of Identity.Hour.
const (
	TokensRenewed = iota
	TokensRejected
	TokensUnavailable
	TokensRevoked
)

// Decisions are the gate's decisions. Their indexes are those into Minute.Counts of Gate.Hour.
var Decisions = [...]string{"forwarded", "queued", "duplicate", "rejected", "failed"}

// NoWebhooks is another such index. It counts those of the rejected requests that are no webhooks: another
// path, or another method.
const NoWebhooks = len(Decisions)

// FailedQuestions is one more. It counts those of the failed webhooks that asked the receiver a question:
// nobody sends these again.
const FailedQuestions = NoWebhooks + 1

// Port counts the calls of one local port.
type Port struct {
	requests *prometheus.CounterVec
	duration prometheus.Observer
	inFlight prometheus.Gauge
	retries  prometheus.Counter
	failed   *prometheus.CounterVec
	hour     *ring

	mu   sync.Mutex // guards what follows
	last LastCalls
}

// LastCalls says how calls last went well and wrong. Zero: none did.
type LastCalls struct {
	LastFailure Failure   // the last one that usher itself failed
	Last5xx     time.Time // when one was last answered with a 5xx, usher's own too
	LastFine    time.Time // when one was last answered well
}

// Failure is a call that usher failed.
type Failure struct {
	Reason string // empty: there was none
	At     time.Time
}

// Port returns the counts of the local port of this name. failures are the reasons that Failed may be called with.
func (m *Registry) Port(name string, failures ...string) *Port {
	p := &Port{
		requests: m.proxyRequests.MustCurryWith(prometheus.Labels{"port": name}),
		duration: m.proxyDuration.WithLabelValues(name),
		inFlight: m.proxyInFlight.WithLabelValues(name),
		retries:  m.proxyRetries.WithLabelValues(name),
		failed:   m.proxyFailed.MustCurryWith(prometheus.Labels{"port": name}),
		hour:     newRing(true),
	}
	for _, reason := range failures {
		p.failed.WithLabelValues(reason)
	}
	return p
}

// Started counts a call that begins.
func (p *Port) Started() { p.inFlight.Inc() }

// Finished counts a call that has ended.
func (p *Port) Finished(status int, took time.Duration) {
	p.inFlight.Dec()
	p.duration.Observe(took.Seconds())
	p.requests.WithLabelValues(strconv.Itoa(status)).Inc()
	kind := CallsFine
	if status >= 400 && status != 499 { // 499: the caller hung up, and has seen no error
		kind = CallsFailed
	}
	p.hour.countTimed(kind, took)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case status >= 500:
		p.hour.count(Calls5xx)
		p.last.Last5xx = time.Now()
	case kind == CallsFine:
		p.last.LastFine = time.Now()
	}
}

// Last returns how calls last went.
func (p *Port) Last() LastCalls {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// Replayed counts a call that was sent a second time after a 401.
func (p *Port) Replayed() {
	p.retries.Inc()
	p.hour.count(CallsReplayed)
}

// Failed counts a call that usher failed; see proxy.Config.Failed.
func (p *Port) Failed(reason string) {
	p.failed.WithLabelValues(reason).Inc()
	p.hour.count(CallsOurs)
	if reason != "UNAUTHORIZED" && reason != "CUT_OFF" { // these are a 401 of the service, and no answer at all
		p.hour.count(CallsOur5xx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last.LastFailure = Failure{reason, time.Now()}
}

// Hour returns the calls of the last hour.
func (p *Port) Hour() []Minute { return p.hour.minutes() }

// tokenResults are the labels of what can come of a token request.
var tokenResults = [...]string{TokensRenewed: "ok", TokensRejected: "rejected", TokensUnavailable: "unavailable"}

// Identity counts what happens to the tokens of one API client and scope. Several ports may share them.
type Identity struct {
	requests [len(tokenResults)]prometheus.Counter
	early    prometheus.Counter
	expiry   prometheus.Gauge
	hour     *ring

	mu      sync.Mutex // guards what follows
	revoked [2]time.Time
}

// Identity returns the counts of the identity whose first port has this name.
func (m *Registry) Identity(port string) *Identity {
	i := &Identity{
		early:  m.tokenEarly.WithLabelValues(port),
		expiry: m.tokenExpiry.WithLabelValues(port),
		hour:   newRing(false),
	}
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
	i.hour.count(kind)
}

// EarlyRevoked counts a token that the service rejected long before it expired.
func (i *Identity) EarlyRevoked() {
	i.early.Inc()
	i.hour.count(TokensRevoked)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.revoked = [2]time.Time{i.revoked[1], time.Now()}
}

// Revoked returns when the last two tokens were rejected long before they expired.
func (i *Identity) Revoked() [2]time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.revoked
}

// Hour returns the token requests of the last hour.
func (i *Identity) Hour() []Minute { return i.hour.minutes() }

// Ready registers whether a part of usher is ready.
func (m *Registry) Ready(part string, ready func() bool) {
	promauto.With(m.registry).NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "usher_ready",
		Help:        "1 while this part of usher is ready, otherwise 0: the same as /readyz/PART.",
		ConstLabels: prometheus.Labels{"part": part},
	}, func() float64 {
		if ready() {
			return 1
		}
		return 0
	})
}

// Entitlements registers the metrics of the entitlements port. stats returns the figures of the inbox.
// The results count a check by its answer, for entitlements.Config.Checked, and the time of each question, for Answered.
func (m *Registry) Entitlements(
	stats func() inbox.Stats,
) (checked func(result string), answered func(took time.Duration, ok bool), lately func() Answers) {
	m.gaugeFunc("usher_entitlement_tenants", "Tenants whose last snapshot is known.", func() float64 {
		return float64(stats().Tenants)
	})
	m.gaugeFunc("usher_entitlement_unknown_tenants",
		"Tenants whose last snapshot has no features that can be read: questions about them are answered 404.",
		func() float64 { return float64(stats().Unknown) })
	checks := m.counter("usher_entitlement_checks_total",
		"Questions about a feature, by the answer: enabled, denied, or unknown (also: ambiguous, "+
			"or the inbox cannot be read).", "result")
	for _, result := range []string{"enabled", "denied", "unknown"} {
		checks.WithLabelValues(result)
	}
	seconds := m.histogram("usher_entitlement_check_seconds",
		"How long usher took to answer a question on the entitlements port. "+
			"Those that it could not answer are in usher_entitlement_failed_total.", upToAMinute).WithLabelValues()
	failed := m.counter("usher_entitlement_failed_total",
		"Questions that usher could not answer (503).").WithLabelValues()
	hour := newRing(false)
	var mu sync.Mutex // guards last
	var last Answers
	checked = func(result string) { checks.WithLabelValues(result).Inc() }
	answered = func(took time.Duration, ok bool) {
		if ok {
			seconds.Observe(took.Seconds())
		} else {
			failed.Inc()
		}
		mu.Lock()
		defer mu.Unlock()
		if ok && took < time.Second {
			hour.count(0)
			last.LastGood = time.Now()
		} else {
			hour.count(1)
			last.LastBad = time.Now()
		}
	}
	return checked, answered, func() Answers {
		mu.Lock()
		defer mu.Unlock()
		minutes := hour.minutes()
		last.Good, last.Bad = Sum(minutes, Lately, 0), Sum(minutes, Lately, 1)
		return last
	}
}

// Answers are those of the entitlements port in the last minutes. A bad one was a 503, or took a second or more.
type Answers struct {
	Good, Bad         int
	LastGood, LastBad time.Time
}

// Changes registers the metrics of /v1/changes. waiting returns how many callers wait.
func (m *Registry) Changes(waiting func() int) (told func(changes int)) {
	m.gaugeFunc("usher_changes_waiting", "Callers of /v1/changes that wait for a change.", func() float64 {
		return float64(waiting())
	})
	total := m.counter("usher_changes_told_total", "Changes in answers of /v1/changes.").WithLabelValues()
	return func(changes int) { total.Add(float64(changes)) }
}

// CaughtUp registers the metric of catch-up.
func (m *Registry) CaughtUp() func(webhooks int) {
	total := m.counter("usher_webhook_caught_up_total",
		"Webhooks that usher has taken in from the billing service's log, because they never arrived.").WithLabelValues()
	return func(webhooks int) { total.Add(float64(webhooks)) }
}

// Gate counts what the webhook gate does.
type Gate struct {
	received  *prometheus.CounterVec
	missed    prometheus.Counter
	invalid   *prometheus.CounterVec
	duration  prometheus.Observer
	hour      *ring // by decision, in the order of Decisions
	receivers map[string]*Receiver

	mu        sync.Mutex // guards what follows
	failed    FailedChecks
	questions Questions
}

// Receiver counts the tries at one receiver.
type Receiver struct {
	results   [len(tryResults)]prometheus.Counter
	hour      *ring // by result, in the order of tryResults
	delivered *ring // in time, or late

	mu     sync.Mutex // guards what follows
	recent RecentTries
}

// RecentTries says how the tries at a receiver went, in the last Lately minutes.
type RecentTries struct {
	Last       string    // result of the last try: ok, status, timeout or error; empty before the first
	LastFailed string    // result of the last try that failed
	LastStatus int       // the receiver's answer then; zero: it did not answer
	Since      time.Time // when the first of the last tries was that failed in a row
	OK, Failed int       // how many tries succeeded and failed
	InARow     int       // how many failed since the last success

	Deliveries []Minute // of the last hour, from an inbox; see DeliveredLate

	Unanswered time.Time // since when usher waits for the answer to the oldest try; zero: it waits for none
}

// FailedChecks are the webhooks in a row that failed the check of their sender, since the last one that passed.
type FailedChecks struct {
	Count       int
	Since, Last time.Time // when the first and the last of them came
}

// SomeFailed is from how many failed checks in a row on they are no accident: anybody can send something.
const SomeFailed = 3

// Questions are the questions to the receiver, such as at a checkout, that got no answer since the last one that did.
type Questions struct {
	Count       int
	Since, Last time.Time
	Why         string // the last one
}

// QuestionsMatter is how long people should know of a question that got no answer: somebody could not buy.
const QuestionsMatter = time.Hour

// Lately is the number of minutes that count as now: what went wrong within them is shown as a problem.
const Lately = 5

// Indexes into Minute.Counts of RecentTries.Deliveries.
const (
	DeliveredInTime = iota
	DeliveredLate   // a minute or more after usher's 200
)

// tryResults are the results of a try; the first is success.
var tryResults = [...]string{"ok", "status", "timeout", "error"}

// Gate registers the metrics of the webhook gate and of its receivers, all with zeros from the start.
func (m *Registry) Gate(receivers *receiver.Set) *Gate {
	g := &Gate{
		received: m.counter("usher_webhook_received_total", "Webhooks, by usher's decision.", "decision"),
		missed: m.counter("usher_webhook_missed_total",
			"Webhooks of the right sender that got a 5xx, and that it did not send again within a minute.").WithLabelValues(),
		invalid: m.counter("usher_webhook_invalid_total",
			"Webhooks of the right sender whose content is invalid: json, size, schema, platform, "+
				"or type (in neither list of types).", "reason"),
		duration: m.histogram("usher_webhook_duration_seconds",
			"From a webhook's header to the answer to its sender.", upToAMinute).WithLabelValues(),
		hour:      newRing(false),
		receivers: make(map[string]*Receiver),
	}
	for _, decision := range Decisions {
		g.received.WithLabelValues(decision)
	}
	for _, reason := range []string{"json", "size", "schema", "platform", "type"} {
		g.invalid.WithLabelValues(reason)
	}
	tries := m.counter("usher_webhook_tries_total",
		"Tries at a receiver: ok, status (not a 2xx), timeout or error (no answer).", "receiver", "result")
	for _, rc := range receivers.All() {
		r := &Receiver{hour: newRing(false), delivered: newRing(false)}
		for i, result := range tryResults {
			r.results[i] = tries.WithLabelValues(rc.Name, result)
		}
		g.receivers[rc.Name] = r
	}
	return g
}

// Receiver returns the counts of a receiver by its name.
func (g *Gate) Receiver(name string) *Receiver { return g.receivers[name] }

// Invalid counts a webhook of the right sender whose content is invalid.
func (g *Gate) Invalid(reason string) { g.invalid.WithLabelValues(reason).Inc() }

// Missed counts a webhook that got a 5xx, and that its sender did not bring again.
func (g *Gate) Missed() { g.missed.Inc() }

// QuestionAnswered notes that a question to the receiver got an answer.
func (g *Gate) QuestionAnswered() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.questions = Questions{}
}

// QuestionFailed notes that a question got no answer, and why. It is called beside Received, with the same decision.
func (g *Gate) QuestionFailed(decision, why string) {
	if decision == "failed" {
		g.hour.count(FailedQuestions)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.questions.Count == 0 || now.Sub(g.questions.Last) >= QuestionsMatter {
		g.questions = Questions{Since: now}
	}
	g.questions.Count++
	g.questions.Last, g.questions.Why = now, why
}

// Questions returns the questions that got no answer since the last one that did.
func (g *Gate) Questions() Questions {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.questions
}

// Received counts an answer to a sender.
func (g *Gate) Received(decision string, status int, took time.Duration) {
	g.received.WithLabelValues(decision).Inc()
	g.duration.Observe(took.Seconds())
	if i := slices.Index(Decisions[:], decision); i >= 0 {
		g.hour.count(i)
	}
	if status == http.StatusNotFound || status == http.StatusMethodNotAllowed {
		g.hour.count(NoWebhooks)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case decision != "rejected" || status == http.StatusUnprocessableEntity: // its content comes after the check
		g.failed = FailedChecks{}
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		g.failed.Last = time.Now()
		if g.failed.Count++; g.failed.Count == 1 {
			g.failed.Since = g.failed.Last
		}
	}
}

// FailedChecks returns the webhooks that failed the check of their sender since the last one that passed.
func (g *Gate) FailedChecks() FailedChecks {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed
}

// Hour returns the gate's decisions of the last hour, counted in the order of Decisions.
func (g *Gate) Hour() []Minute { return g.hour.minutes() }

// Tried counts a try; see receiver.Receiver.Tried.
func (r *Receiver) Tried(result string, status int, _ time.Duration) {
	i := max(0, slices.Index(tryResults[:], result))
	r.results[i].Inc()
	r.hour.count(i)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recent.Last = result
	if result == "ok" {
		r.recent.InARow = 0
		return
	}
	r.recent.LastFailed, r.recent.LastStatus = result, status
	if r.recent.InARow++; r.recent.InARow == 1 {
		r.recent.Since = time.Now()
	}
}

// Delivered counts a delivery from an inbox, so long after it was taken in.
func (r *Receiver) Delivered(after time.Duration) {
	if after >= time.Minute {
		r.delivered.count(DeliveredLate)
	} else {
		r.delivered.count(DeliveredInTime)
	}
}

// Recent returns how the last tries went.
func (r *Receiver) Recent() RecentTries {
	r.mu.Lock()
	recent := r.recent
	r.mu.Unlock()
	minutes := r.hour.minutes()
	recent.Deliveries = r.delivered.minutes()
	recent.OK, recent.Failed = Sum(minutes, Lately, 0), Sum(minutes, Lately, 1, 2, 3)
	return recent
}

// Notifications registers the tries of notifications, all with zeros from the start. The result counts one.
func (m *Registry) Notifications(results ...string) (sent func(result string)) {
	total := m.counter("usher_notifications_total",
		"Tries to send a notification: ok, status (not a 2xx), timeout or error (no answer).", "result")
	for _, result := range results {
		total.WithLabelValues(result)
	}
	return func(result string) { total.WithLabelValues(result).Inc() }
}

// Inbox registers the metrics of the inbox. stats is called at each scrape. The result counts a delivery, for
// inbox.Config.Delivered; those of the receivers begin at zero.
func (m *Registry) Inbox(
	stats func() inbox.Stats, receivers *receiver.Set,
) (delivered func(receiver string, after time.Duration)) {
	m.registry.MustRegister(inboxCollector(stats))
	// From a few milliseconds to the three days after which a webhook is parked.
	const hour = 3600
	buckets := []float64{
		.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, hour, 4 * hour, 24 * hour, 72 * hour,
	}
	delivery := m.histogram("usher_inbox_delivery_seconds",
		"From when a webhook was accepted, or last redelivered by hand, to its delivery.", buckets, "receiver")
	for _, r := range receivers.All() {
		delivery.WithLabelValues(r.Name)
	}
	return func(receiver string, after time.Duration) {
		delivery.WithLabelValues(receiver).Observe(after.Seconds())
	}
}

// inboxCollector reads the stats of the inbox once for each scrape, so that its metrics are of one moment.
type inboxCollector func() inbox.Stats

// Describe sends nothing: which receivers there are shows only in Collect. Prometheus calls
// this an unchecked collector.
func (inboxCollector) Describe(chan<- *prometheus.Desc) {}

func (stats inboxCollector) Collect(ch chan<- prometheus.Metric) {
	s := stats()
	gauge := func(name, help string, value float64) {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, value)
	}
	// What cannot be read now keeps its last value. Zeros would look as if all were well, so what
	// was never read is left out.
	if s.At.IsZero() {
		return
	}
	gauge("usher_inbox_counted_timestamp_seconds",
		"When the figures of the inbox were counted. They stay while it cannot be read.",
		float64(s.At.UnixMilli())/1000)
	gauge("usher_inbox_pending", "Webhooks that wait for delivery.", float64(s.Pending))
	gauge("usher_inbox_oldest_seconds", "Age of the oldest of them.", s.Oldest.Seconds())
	gauge("usher_inbox_parked", "Parked webhooks that no newer one of the same tenant has replaced.", float64(s.Parked))
	gauge("usher_inbox_invalid", "Invalid webhooks that nobody has dealt with.", float64(s.Invalid))
	gauge("usher_inbox_used_bytes",
		"Bytes that waiting and parked webhooks take. Replicas that share an inbox all report the same.",
		float64(s.Used))
	gauge("usher_inbox_limit_bytes",
		"Bytes that waiting and parked webhooks may take; beyond that senders get 503. 0: there is no inbox.",
		float64(s.Limit))
	if !s.Reconciled.IsZero() {
		gauge("usher_reconcile_last_timestamp_seconds",
			"When 'usher reconcile' last compared a whole list. Replicas that share an inbox all report the same.",
			float64(s.Reconciled.UnixMilli())/1000)
	}
	for receiver, r := range s.Receivers {
		gauge := func(name, help string, value float64) {
			desc := prometheus.NewDesc(name, help, []string{"receiver"}, nil)
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, receiver)
		}
		gauge("usher_inbox_receiver_pending",
			"Webhooks that wait for delivery to this receiver. "+
				"An empty name counts those whose platform no receiver takes.", float64(r.Pending))
		gauge("usher_inbox_receiver_oldest_seconds", "Age of the oldest of them.", r.Oldest.Seconds())
		gauge("usher_inbox_receiver_parked",
			"Parked webhooks for this receiver that no newer one of the same tenant has replaced.", float64(r.Parked))
	}
}
