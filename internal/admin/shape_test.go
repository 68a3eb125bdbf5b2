package admin

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"usher/internal/content"
	"usher/internal/testkit/inboxtest"
	"usher/internal/text"
	"usher/webhookgate"
)

// nested returns a value inside many lists.
func nested(depth int, inside string) string {
	return strings.Repeat("[", depth) + inside + strings.Repeat("]", depth)
}

// items returns n items of a list, each of them made by fmt with its number.
func items(n int, format string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(all, ",")
}

// zeros returns n items of a list in two bytes each.
func zeros(n int) string { return strings.Repeat("0,", n-1) + "0" }

// Whatever shape a webhook has: to look at it costs what its size says. All of these bodies have at most 1
// MiB, and passed the checks of the sender.
func TestLookingCostsWhatTheSizeSays(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures memory, which the race detector multiplies")
	}
	name := strings.Repeat("n", 600_000)
	var beneath, same []content.Fault
	for i := range 100 {
		beneath = append(beneath, content.Fault{Path: "/" + name[:200] + "…", Message: fmt.Sprint("is odd ", i)})
		same = append(same, content.Fault{Path: "/x", Message: fmt.Sprint("is in the object twice ", i)})
	}
	change := func(tenant, change string) string {
		return `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"` + tenant + `"},"change":` + change + `}}`
	}
	first := []content.Fault{{Path: strings.Repeat("/0", 64), Message: "is nested more than 64 deep"}}
	for what, tc := range map[string]struct {
		body   string
		faults []content.Fault // not nil: it is invalid
	}{
		"deep, and wide":         {nested(9900, zeros(25_000)), first},
		"deep, and wide objects": {strings.Repeat(`{"a":`, 9900) + "[" + zeros(150_000) + "]" + strings.Repeat("}", 9900), first},
		"a name above all":       {`{"` + name + `":[` + items(2000, "%d") + `]}`, beneath},
		"names above each other": {strings.Repeat(`{"`+name[:1000]+`":`, 500) + "0" + strings.Repeat("}", 500), beneath},
		"one name often":         {`{` + items(30_000, `"x":%d`) + `}`, same},
		"not JSON":               {strings.Repeat("[", 1<<20), first},
		"deep, and accepted":     {change("t", `{"x":`+nested(60, zeros(50_000))+`}`), nil},
		"many features":          {change("t", `{"features":[`+items(2_000, `{"code":"f%d"}`)+`]}`), nil},
		"a large value":          {change("t", `{"features":[{"code":"v","value":"`+name[:300_000]+`"},`+items(2_000, `{"code":"f%d"}`)+`]}`), nil},
		"many subscriptions":     {change("t", `{"features":[],"subscriptions":[`+items(2_000, `{"id":"s%d"}`)+`]}`), nil},
		"large names":            {change("t", `{"features":[{"code":"a","name":"`+name[:300_000]+`"}],"subscriptions":[{"id":"`+name[:300_000]+`"}]}`), nil},
	} {
		t.Run(what, func(t *testing.T) {
			b := inboxtest.Open(t)
			h, asks := entitled(b), "/webhooks/2?ask=discard"
			if tc.faults == nil {
				asks = "/webhooks/2?ask=redeliver"
				b.Take("", "t", strings.Replace(tc.body, `"payload"`, `"first":1,"payload"`, 1))
				b.Take("", "t", tc.body)
			} else {
				b.Take("", "t", change("t", `{"features":[{"code":"sso"}]}`))
				b.RecordInvalid(context.Background(), &webhookgate.Invalid{Status: 422, Reason: "schema", Faults: tc.faults, Webhook: webhookgate.Webhook{
					ID: "r", Type: content.TenantProvisioningChange, Lane: webhookgate.LaneName{Tenant: "t"}, Body: []byte(tc.body), Header: http.Header{"Content-Type": {"application/json"}}}})
			}
			ask(h, "GET", "/tenants", "") // the first time, templates are parsed
			for _, path := range []string{"/webhooks/2", "/api/webhooks/2", "/webhooks/2/payload", "/webhooks", "/api/webhooks?limit=500", "/", "/tenant?platform=&code=t", "/api/tenant?platform=&code=t", asks, "/tenants"} {
				cost(t, h, path, len(tc.body))
			}
			if len(tc.body) > text.MaxPayload {
				if _, page := ask(h, "GET", "/webhooks/2", ""); !strings.Contains(page, "Only the beginning is shown") {
					t.Error("the page does not say that it leaves something out")
				}
				if _, answer := ask(h, "GET", "/api/webhooks/2", ""); !strings.Contains(answer, `"payload_left_out":`) {
					t.Error("the API does not say that it leaves something out")
				}
			}
		})
	}
}

// cost checks how large an answer is, and how much memory it takes.
func cost(t *testing.T, h http.Handler, path string, size int) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	status, answer := ask(h, "GET", path, "")
	runtime.ReadMemStats(&after)
	used := after.TotalAlloc - before.TotalAlloc
	t.Logf("%-30s %d, %4d KB, %4d MB of memory", path, status, len(answer)>>10, used>>20)
	if status != 200 || len(answer) > 3<<20 || used > 128<<20 {
		t.Errorf("%s: %d, %d KB for %d, %d MB of memory", path, status, len(answer)>>10, size>>10, used>>20)
	}
}
