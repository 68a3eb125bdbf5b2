package status

import "github.com/prometheus/client_golang/prometheus"

// Metric is usher_trouble: what the page says is wrong, one series for each kind.
type Metric func() []Trouble

var troubleDesc = prometheus.NewDesc("usher_trouble",
	"1 for each kind of trouble that the admin page shows now. Replicas that share an inbox all report its troubles.",
	[]string{"kind", "severity"}, nil)

// Describe is that of prometheus.Collector.
func (Metric) Describe(ch chan<- *prometheus.Desc) { ch <- troubleDesc }

// Collect is that of prometheus.Collector.
func (troubles Metric) Collect(ch chan<- prometheus.Metric) {
	found := make(map[[2]string]bool)
	for _, t := range troubles() {
		if labels := [2]string{t.Kind, t.Severity}; !found[labels] {
			found[labels] = true
			ch <- prometheus.MustNewConstMetric(troubleDesc, prometheus.GaugeValue, 1, t.Kind, t.Severity)
		}
	}
}
