package metrics

import "github.com/prometheus/client_golang/prometheus"

// Entitlements counts the questions what a tenant may use.
type Entitlements struct{ results map[string]prometheus.Counter }

// Entitlements returns the figures of the entitlements port. tenants says of how many something is
// known.
func (m *Registry) Entitlements(tenants func() int) *Entitlements {
	checks := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "usher_entitlement_checks_total", Help: "Questions whether a tenant may use a feature, by the answer: enabled, denied, or unknown (also: ambiguous, or the inbox can't be read).",
	}, []string{"result"})
	m.registry.MustRegister(checks, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "usher_entitlement_tenants", Help: "Tenants whose last snapshot is known.",
	}, func() float64 { return float64(tenants()) }))
	e := &Entitlements{results: make(map[string]prometheus.Counter)}
	for _, result := range []string{"enabled", "denied", "unknown"} {
		e.results[result] = checks.WithLabelValues(result)
	}
	return e
}

// Checked counts a question.
func (e *Entitlements) Checked(result string) { e.results[result].Inc() }
