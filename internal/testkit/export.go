package testkit

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// An ExportedWebhook is a webhook of an export. Its number is its place.
type ExportedWebhook struct {
	Platform, Tenant string
	Body             string
	State            int    // its number in the database: 0 waiting, 1 parked, 3 delivered
	Record           string // JSON; "": it was not tried
	Features         string // JSON: what it says its tenant may use; "": it is no tenant's last snapshot
}

// Export returns the file of 'usher inbox export' with these webhooks.
func Export(webhooks ...ExportedWebhook) string {
	type row = map[string]any
	var lanes, snapshots, rows, contents []row
	const at = 1767268800000000 // 2026-01-01T12:00:00Z
	last := make(map[[2]string]row)
	for n, w := range webhooks {
		seq, digest := n+1, sha256.Sum256([]byte(w.Body))
		uuid := fmt.Sprintf("0199a1b2-0000-7000-8000-%012d", seq)
		lane := last[[2]string{w.Tenant, w.Platform}]
		if lane == nil {
			lane = row{"tenant": w.Tenant, "platform": w.Platform, "event_type": ""}
			last[[2]string{w.Tenant, w.Platform}] = lane
			lanes = append(lanes, lane)
		}
		lane["tail"], lane["tail_id"] = seq, uuid
		lane["last"], lane["last_at"] = seq, at
		rows = append(rows, row{
			"seq":        seq,
			"uuid":       uuid,
			"tenant":     w.Tenant,
			"platform":   w.Platform,
			"event_type": "",
			"type":       "TenantProvisioningChange",
			"snapshot":   1,
			"digest":     digest[:],
			"size":       len(w.Body) + 512,
			"received":   at,
			"state":      w.State,
			"rank":       seq,
			"changed":    at,
			"why":        "",
			"record":     cmp.Or(w.Record, "{}"),
		})
		contents = append(contents, row{"seq": seq, "header": "", "body": []byte(w.Body)})
		if w.Features != "" {
			snapshots = append(snapshots, row{
				"tenant":   w.Tenant,
				"platform": w.Platform,
				"seq":      seq,
				"uuid":     uuid,
				"received": at,
				"name":     "",
				"features": json.RawMessage(w.Features),
			})
		}
	}
	byTenant := func(a, b row) int {
		return cmp.Or(
			cmp.Compare(a["tenant"].(string), b["tenant"].(string)),
			cmp.Compare(a["platform"].(string), b["platform"].(string)))
	}
	slices.SortFunc(lanes, byTenant)
	slices.SortFunc(snapshots, byTenant)
	var file strings.Builder
	line := func(kind string, value row) {
		text, err := json.Marshal(map[string]row{kind: value})
		if err != nil {
			panic(err)
		}
		file.Write(append(text, '\n'))
	}
	line("inbox", row{"program": "usher", "version": 1, "at": "2026-01-01T12:00:00Z"})
	for _, table := range []struct {
		name string
		rows []row
	}{{"lane", lanes}, {"webhook", rows}, {"content", contents}, {"snapshot", snapshots}} {
		for _, r := range table.rows {
			line(table.name, r)
		}
	}
	return Seal(file.String())
}

// Seal returns an export that was changed with the last line that it needs now.
func Seal(file string) string {
	lines, _, _ := strings.Cut(file, `{"end":`)
	_, rows, _ := strings.Cut(lines, "\n")
	sum := sha256.Sum256([]byte(rows))
	return lines + fmt.Sprintf(`{"end":{"sha256":%q}}`, base64.StdEncoding.EncodeToString(sum[:])) + "\n"
}
