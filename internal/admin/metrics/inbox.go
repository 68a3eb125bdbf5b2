package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"usher/internal/inbox"
)

// Inbox counts what the inbox tells while it works. What it says when it is asked is
// in Stats, and taken with each scrape.
type Inbox struct {
	delivery *prometheus.HistogramVec
}

// Inbox registers the figures of the inbox. stats returns those of the moment.
func (m *Registry) Inbox(stats func() inbox.Stats) *Inbox {
	f := &Inbox{
		// From a few milliseconds to the three days after which a webhook is parked.
		delivery: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "usher_inbox_delivery_seconds", Help: "From a webhook's acceptance (or when it was sent again by hand) to its delivery.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 72 * 3600},
		}, []string{"receiver"}),
	}
	m.registry.MustRegister(f.delivery, inboxCollector(stats))
	return f
}

// Receiver has the figures of a receiver there with zeros from the start.
func (f *Inbox) Receiver(name string) { f.delivery.WithLabelValues(name) }

// Delivered counts a webhook that a receiver has accepted; see inbox.Config.Delivered.
func (f *Inbox) Delivered(receiver string, after time.Duration) {
	f.delivery.WithLabelValues(receiver).Observe(after.Seconds())
}

// Paused registers how many pauses are in force, which paused returns.
func (m *Registry) Paused(paused func() int) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "usher_inbox_paused",
		Help: "Pauses of deliveries in force, made by hand: of all, of a tenant or of a receiver. Replicas that share an inbox all report the same.",
	}, func() float64 { return float64(paused()) }))
}

// inboxCollector takes all figures at one moment.
type inboxCollector func() inbox.Stats

var (
	inboxPending = desc("usher_inbox_pending", "Webhooks that wait for their delivery.")
	inboxOldest  = desc("usher_inbox_oldest_seconds", "Age of the oldest of them.")
	inboxParked  = desc("usher_inbox_parked", "Webhooks that are not tried any more and were not overtaken.")
	inboxRefused = desc("usher_inbox_refused", "Refused webhooks that nobody has dealt with.")
	inboxUsed    = desc("usher_inbox_used_bytes", "What waits or is parked takes so much of the inbox; replicas that share one all report the same.")
	inboxLimit   = desc("usher_inbox_limit_bytes", "What may wait or be parked; beyond it senders get 503. 0: there is no inbox.")

	receiverPending = desc("usher_inbox_receiver_pending", "Webhooks that wait for their delivery to this receiver; an empty name: to none.", "receiver")
	receiverOldest  = desc("usher_inbox_receiver_oldest_seconds", "Age of the oldest of them.", "receiver")
	receiverParked  = desc("usher_inbox_receiver_parked", "Webhooks for this receiver that are not tried any more and were not overtaken.", "receiver")
	receiverDown    = desc("usher_inbox_receiver_down", "1 while this receiver seems to be down, and is tried with one delivery at a time.", "receiver")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (inboxCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		inboxPending, inboxOldest, inboxParked, inboxRefused, inboxUsed, inboxLimit,
		receiverPending, receiverOldest, receiverParked, receiverDown,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (stats inboxCollector) Collect(ch chan<- prometheus.Metric) {
	s := stats()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	if s.Unknown {
		return // zeros would seem to say that all is well
	}
	gauge(inboxPending, float64(s.Pending))
	gauge(inboxOldest, s.Oldest.Seconds())
	gauge(inboxParked, float64(s.Parked))
	gauge(inboxRefused, float64(s.Unread))
	gauge(inboxUsed, float64(s.Used))
	gauge(inboxLimit, float64(s.Limit))
	for name, r := range s.Receivers {
		gauge(receiverPending, float64(r.Pending), name)
		gauge(receiverOldest, r.Oldest.Seconds(), name)
		gauge(receiverParked, float64(r.Parked), name)
		gauge(receiverDown, oneIf(r.Down), name)
	}
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
