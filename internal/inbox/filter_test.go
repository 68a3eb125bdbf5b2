package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"usher/webhookgate"
)

func TestFilter(t *testing.T) {
	i, err := Open(Config{
		URL: "file:" + filepath.Join(t.TempDir(), "inbox.db"), Attempts: 1, MaxAge: time.Hour, Concurrency: 1, DedupSize: 10,
		Try: func(context.Context, *webhookgate.Webhook) webhookgate.Attempt { return webhookgate.Attempt{} },
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	for n := 1; n <= 9; n++ {
		w := &webhookgate.Webhook{
			ID: fmt.Sprint("id-", n), Type: "T", Lane: webhookgate.Lane{Platform: "crm", Tenant: fmt.Sprint("t", n%2)},
			Body: fmt.Appendf(nil, `{"name":"Müller %d"}`, n), Received: time.Now(),
		}
		if _, err := i.Keep(w); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		filter Filter
		want   string
	}{
		{Filter{}, "9 8 7 6 5 4 3 2 1"},
		{Filter{Limit: 2}, "9 8"},
		{Filter{Limit: 2, Before: 8}, "7 6"},
		{Filter{Limit: 5, Before: 3}, "2 1"},
		{Filter{Before: 1}, ""},
		{Filter{Before: 100, Limit: 1}, "9"},
		{Filter{Tenant: "t1", Before: 6}, "5 3 1"},
		{Filter{Search: "müller 3"}, "3"},
		{Filter{Search: "MÜLLER 3"}, "3"},
		{Filter{Search: "ID-4"}, "4"},
		{Filter{Search: "crm", Tenant: "t0"}, "8 6 4 2"},
		{Filter{Search: "nobody"}, ""},
		{Filter{State: Waiting, Limit: 1}, "9"},
		{Filter{State: Parked}, ""},
	} {
		entries, err := i.List(tc.filter)
		var got []string
		for _, e := range entries {
			got = append(got, fmt.Sprint(e.ID))
		}
		if err != nil || strings.Join(got, " ") != tc.want {
			t.Errorf("%+v: %q %v, want %s", tc.filter, got, err, tc.want)
		}
	}
}
