package command

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

// Whatever shape a webhook has: a command that shows it costs what its size says, and says what it leaves out.
func TestShowCostsWhatTheSizeSays(t *testing.T) {
	zeros := strings.Repeat("0,", 25_000) + "0"
	for name, body := range map[string]string{
		"deep":       strings.Repeat("[", 9900) + zeros + strings.Repeat("]", 9900),
		"an inch":    strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), // the deepest that is JSON
		"a name":     `{"` + strings.Repeat("n", 600_000) + `":[` + zeros + `]}`,
		"wide":       `{"a":[` + strings.Repeat(zeros+",", 5) + `0]}`,
		"not JSON":   strings.Repeat("\x1b[", 300_000),
		"not UTF-8":  strings.Repeat("\xff\x01", 300_000),
		"all spaces": "[" + strings.Repeat(" ", 900_000) + "]",
	} {
		t.Run(name, func(t *testing.T) {
			s := newInboxServer(t, "")
			var faults []content.Fault
			for i := range 100 {
				faults = append(faults, content.Fault{Path: fmt.Sprint("/a/", i), Message: "is odd"})
			}
			s.RecordInvalid(context.Background(), &webhookgate.Invalid{Status: 400, Reason: "json", Faults: faults, Webhook: webhookgate.Webhook{ID: "r", Body: []byte(body), Header: http.Header{}}})
			for _, args := range [][]string{{"show", "9"}, {"show", "9", "--json"}, {"ls"}} {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				p := s.run(t, args...)
				runtime.ReadMemStats(&after)
				out := p.Stdout.String()
				if used := after.TotalAlloc - before.TotalAlloc; p.Code != 0 || len(out) > 8*text.MaxPayload || used > 96<<20 {
					t.Errorf("%v: %d, %d KB, %d MB of memory: %.300s", args, p.Code, len(out)>>10, used>>20, p.Stderr.String())
				}
				if args[0] == "show" && !strings.Contains(out, "has 51 more faults") {
					t.Errorf("%v: it does not say how many faults are left out: %.300s", args, out)
				}
				left := strings.Contains(out, " bytes of the payload are left out. The admin port has all of it: GET /webhooks/9/payload)\n")
				if large := name != "an inch" && name != "all spaces" && name != "deep"; len(args) == 2 && left != large {
					t.Errorf("%v: left out %t: %s", args, left, out[max(0, len(out)-300):])
				}
			}
		})
	}
}

// One long value does not make all lines of a table as long.
func TestEntitlementsCostWhatTheSizeSays(t *testing.T) {
	features := `{"code":"big","value":"` + strings.Repeat("v", 300_000) + `","name":"` + strings.Repeat("n", 1000) + `"}`
	for i := range 500 {
		features += fmt.Sprintf(`,{"code":"f%d","quantity":%d}`, i, i)
	}
	b := inboxtest.Open(t)
	b.Take("eu", "acme", `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"},"change":{"features":[`+features+`]}}}`)
	out, code := runEntitlements(t, b, "eu/acme")
	if code != 0 || len(out) > 2<<20 || !strings.Contains(out, "\nf499 ") {
		t.Errorf("%d, %d KB: %.300s", code, len(out)>>10, out)
	}
}
