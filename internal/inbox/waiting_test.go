package inbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"usher/internal/content"
	"usher/internal/testkit"
	"usher/internal/testkit/inboxtest"
	"usher/webhookgate"
)

// many lists so many items, up to about a megabyte.
func many(count int, item func(int) string) string {
	var list strings.Builder
	for n := 0; n < count && list.Len() < 1<<20-1000; n++ {
		if n > 0 {
			list.WriteByte(',')
		}
		list.WriteString(item(n))
	}
	return list.String()
}

// A webhook that waits for its transaction costs at most 64 KiB and four times its size, whatever its shape.
func TestWhatAWaitingWebhookCosts(t *testing.T) {
	if testkit.WithRace() {
		t.Skip("-race has memory of its own")
	}
	webhook := func(change string) string {
		return `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"},"change":{` + change + `}}}`
	}
	features := func(count int, item func(int) string) string {
		return webhook(`"features":[` + many(count, item) + `]`)
	}
	short := func(n int) string { return strconv.FormatInt(int64(n), 36) }
	for name, body := range map[string]string{
		"small":    webhook(""),
		"features": features(49_000, func(n int) string { return fmt.Sprintf(`{"code":"%s"}`, short(n)) }),
		"features in full": features(19_000, func(n int) string {
			return fmt.Sprintf(`{"code":"%s","name":"","value":"","quantity":1}`, short(n))
		}),
		"long names": features(49_000, func(n int) string {
			return fmt.Sprintf(`{"code":"%s","name":"%s"}`, short(n), strings.Repeat("\u2028", 100))
		}),
		"subscriptions": webhook(`"subscriptions":[` + many(99_000, func(int) string { return "{}" }) + `]`),
		"a long text":   webhook(`"more":"` + strings.Repeat("x", 1<<20-1000) + `"`),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				box := inboxtest.Open(t)
				rules, err := content.NewRules([]string{content.TenantProvisioningChange}, nil)
				if err != nil {
					t.Fatal(err)
				}
				count := 8
				if len(body) < 1000 {
					count = 500
				}
				gate := webhookgate.New(webhookgate.Config{
					Path:        "/",
					Rules:       rules,
					MaxInflight: count,
					MaxBody:     1 << 20,
					Receivers:   box.Receivers,
					Store:       box.Store,
					Log:         slog.New(slog.DiscardHandler),
				})
				hangs, release := context.WithCancel(t.Context())
				box.Hang(hangs)
				synctest.Wait()
				before := inUse()
				for range count {
					go func() {
						w := httptest.NewRecorder()
						if gate.ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader(body))); w.Code != 503 {
							t.Errorf("%d %.200s", w.Code, w.Body)
						}
					}()
				}
				synctest.Wait()
				each := (inUse() - before) / int64(count)
				times := float64(each) / float64(len(body))
				t.Logf("%d bytes take %d, %.1f times as much", len(body), each, times)
				// Less than half of it was not measured: what was there before is freed meanwhile, but not that much.
				if most, least := int64(64<<10+4*len(body)), int64(len(body)/2); each > most || each < least {
					t.Errorf("a webhook of %d bytes takes %d, which is %.1f times its size", len(body), each, times)
				}
				release()
			})
		})
	}
}

// inUse returns how much memory the process needs now.
func inUse() int64 {
	var m runtime.MemStats
	for range 2 { // a pool keeps what it has for one more
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
