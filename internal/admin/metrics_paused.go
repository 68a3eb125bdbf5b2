package admin

import "github.com/prometheus/client_golang/prometheus"

// Paused registers how many pauses are in force, which paused returns.
func (m *Metrics) Paused(paused func() int) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "usher_inbox_paused",
		Help: "Pauses of deliveries in force, made by hand: of all, of a tenant or of a receiver. Replicas that share an inbox all report the same.",
	}, func() float64 { return float64(paused()) }))
}
