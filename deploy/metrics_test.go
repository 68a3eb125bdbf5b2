package deploy_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"usher/internal/admin/metrics"
	known "usher/internal/admin/status"
	"usher/internal/inbox"
	"usher/internal/receiver"
)

var (
	metricName = regexp.MustCompile(`\b(?:usher|process|go)_[a-z_]+\b`)
	selector   = regexp.MustCompile(`\b(usher_[a-z_]+)\{([^}]*)\}`)
	labelName  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
)

// existing returns the names of all metrics, with their labels.
func existing(t *testing.T) map[string][]string {
	t.Helper()
	m := metrics.New("v1", "abc")
	receivers := receiver.NewSet(&receiver.Receiver{Name: "main"})
	port, id, gate := m.Port("main", "TOKEN_REJECTED"), m.Identity("main"), m.Gate(receivers)
	m.Inbox(func() inbox.Stats {
		return inbox.Stats{At: time.Now(), Paused: []inbox.Pause{}, Receivers: map[string]inbox.Figures{"main": {}}, Reconciled: time.Now()}
	}, receivers)
	m.Entitlements(func() inbox.Stats { return inbox.Stats{} })
	m.Ready("gate", func() bool { return true })
	m.Register(known.Metric(func() []known.Trouble { return []known.Trouble{{}} }))
	port.Started()
	port.Finished(200, time.Millisecond)
	id.Fetched(nil, errors.New("down"))
	gate.Received("queued", 200, time.Millisecond)
	gate.Receiver("main").Tried("ok", 200, time.Millisecond)
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	names := make(map[string][]string)
	for _, series := range regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? `).FindAllStringSubmatch(answer.Body.String(), -1) {
		labels := []string{"instance", "namespace"} // which Prometheus adds
		for _, l := range labelName.FindAllStringSubmatch(series[2], -1) {
			labels = append(labels, l[1])
		}
		names[series[1]] = labels
	}
	return names
}

// The dashboard and the alerts ask for nothing that usher does not have.
func TestDashboardAndAlerts(t *testing.T) {
	known := existing(t)
	for _, file := range []string{"grafana/usher.json", "helm/usher/files/alerts.yaml"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(b), `\"`, `"`)
		found := metricName.FindAllString(text, -1)
		if len(found) < 2 {
			t.Errorf("%s names only %q", file, found)
		}
		for _, name := range found {
			if known[name] == nil {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
		for _, m := range selector.FindAllStringSubmatch(text, -1) {
			for _, label := range labelName.FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(known[m[1]], label[1]) {
					t.Errorf("%s: %s has no label %s", file, m[1], label[1])
				}
			}
		}
		if strings.HasSuffix(file, ".json") && !json.Valid(b) {
			t.Errorf("%s is no JSON", file)
		}
	}
}
