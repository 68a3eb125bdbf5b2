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
