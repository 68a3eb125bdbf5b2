package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"usher/internal/inbox"
	"usher/internal/receiver"
)

// While the inbox cannot be read its figures keep their last values. What was never read is left out: zeros
// would look as if all were well.
func TestInboxThatCannotBeRead(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	for name, tc := range map[string]struct {
		stats inbox.Stats
		has   string
		lacks string
	}{
		"read":        {inbox.Stats{Figures: inbox.Figures{Pending: 7}, At: at}, "pending 7,counted_timestamp_seconds 1.7e+09", ""},
		"read before": {inbox.Stats{Figures: inbox.Figures{Pending: 7}, At: at, Old: true}, "pending 7,counted_timestamp_seconds 1.7e+09", ""},
		"never read":  {inbox.Stats{Old: true}, "", "pending,counted"},
	} {
		m := New("v", "c")
		m.Inbox(func() inbox.Stats { return tc.stats }, receiver.NewSet())
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for _, line := range strings.FieldsFunc(tc.has, func(r rune) bool { return r == ',' }) {
			if !strings.Contains(w.Body.String(), "\nusher_inbox_"+line+"\n") && !strings.Contains(w.Body.String(), "\nusher_"+line+"\n") {
				t.Errorf("%s: no %s", name, line)
			}
		}
		for _, metric := range strings.FieldsFunc(tc.lacks, func(r rune) bool { return r == ',' }) {
			if strings.Contains(w.Body.String(), "\nusher_inbox_"+metric) || strings.Contains(w.Body.String(), "\nusher_"+metric) {
				t.Errorf("%s: %s", name, metric)
			}
		}
	}
}
