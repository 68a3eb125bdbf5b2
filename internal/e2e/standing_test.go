//go:build unix

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"usher/internal/testkit"
)

// asks is another command of usher's than inbox, and its exit code before what it prints.
func (o *office) asks(args ...string) string {
	o.t.Helper()
	code, stdout, stderr := ended(o.t, []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(o.URL(o.t, "admin"), "http://"), "USHER_ADMIN_TOKEN=" + anasToken}, args...)
	return fmt.Sprintf("%d %s%s", code, stdout, stderr)
}

// delivered waits until nothing waits any more.
func (o *office) delivered() {
	o.t.Helper()
	testkit.Eventually(o.t, "delivered", func() bool { return o.does("ls", "--state", "waiting") == "0 " })
}

// wellAgain waits until nothing is wrong any more.
func (o *office) wellAgain() {
	o.t.Helper()
	testkit.Eventually(o.t, "all is well", func() bool {
		return strings.HasPrefix(o.asks("status"), "0 ") && strings.Contains(o.asks("status"), "\nAll is well.\n") && strings.Contains(o.overview(), "All is well.")
	})
}

// troubled waits until the page and 'usher status' say the same words, with an exit code that is not 0. The
// page has a colour for critical and warning.
func (o *office) troubled(words ...string) {
	o.t.Helper()
	says := func(text string) bool {
		for _, w := range words {
			if (w == "critical" || w == "warning") && strings.HasPrefix(text, "1 ") {
				w += ": "
			}
			if !strings.Contains(text, w) {
				return false
			}
		}
		return true
	}
	var status, page string
	began := time.Now()
	testkit.Eventually(o.t, fmt.Sprintf("told %q", words), func() bool {
		status, page = o.asks("status"), o.overview()
		page = strings.NewReplacer(`<li class="bad">`, "critical", `<li class="warn">`, "warning", "&#39;", "'", "&#43;", "+", "&#34;", `"`, "\u00a0", " ", "\u202f", "").Replace(page)
		return strings.HasPrefix(status, "1 ") && says(status) && says(page)
	})
	o.t.Logf("told %q after %s", words[0], time.Since(began).Round(time.Second/10))
	o.want("status", status, "!All is well")
	o.want("page", page, "!All is well")
}

// A payload without features that can be read makes its tenant unknown: that is said everywhere.
func TestFeaturesUnknown(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		o := openOffice(t, newReceiver(t, 200), inbox)
		dark := func(tenant string) string {
			return strings.Replace(testkit.Snapshot(tenant, 1), `"features":[{"code":"users","name":"Users","quantity":1}],`, "", 1)
		}
		o.send(testkit.Snapshot("mill-co", 5), webhookToken)
		o.wellAgain()
		o.send(dark("quay-inc"), webhookToken)
		o.want("answer", o.may("quay-inc"), "FEATURES_UNKNOWN")
		o.troubled("usher cannot tell what 1 tenant (crm/quay-inc) may use", "are answered 404", "Correct the payload")
		o.figure("usher_entitlement_unknown_tenants", "1")
		o.want("tenants", o.does("tenants", "--trouble"), "0 ", "crm/quay-inc", "features unknown", "!mill-co")
		o.send(testkit.Snapshot("quay-inc", 1), webhookToken)
		o.figure("usher_entitlement_unknown_tenants", "0")
		o.wellAgain()

		odd := strings.Replace(testkit.Snapshot("mill-co", 7), `"quantity":7`, `"quantity":"7"`, 1)
		if r := o.send(odd, webhookToken); r.status != 422 {
			t.Fatalf("%d", r.status)
		}
		id := o.latest("invalid")
		o.troubled("usher rejected 1 webhook of crm/mill-co", "'usher inbox")
		o.want("answer", o.may("mill-co"), `"limit":5`)
		o.want("accept", o.does("accept", id), "0 ", id+" accepted: its new id is ")
		o.want("answer", o.may("mill-co"), "FEATURES_UNKNOWN")
		o.troubled("usher cannot tell what 1 tenant (crm/mill-co) may use")
	})
}

// A tenant whose id comes under another code keeps its old code's answers, and that is said until somebody erases it.
func TestTenantRenamed(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		o := openOffice(t, newReceiver(t, 200), inbox)
		o.send(testkit.Snapshot("mill-co", 5), webhookToken)
		o.wellAgain()
		o.send(strings.Replace(testkit.Snapshot("mill-co", 5), `"code":"mill-co"`, `"code":"mill-group"`, 1), webhookToken)
		o.troubled("crm/mill-co (now crm/mill-group) may have been renamed", "usher inbox erase crm/mill-co")
		o.want("the old code", o.may("mill-co"), `"limit":5`)
		o.want("the new code", o.may("mill-group"), `"limit":5`)
		o.want("erase", o.does("erase", "crm/mill-co", "--yes"), "0 ")
		o.wellAgain()
		o.want("the old code", o.may("mill-co"), "TENANT_UNKNOWN")
		o.want("the new code", o.may("mill-group"), `"limit":5`)
	})
}

// A platform that is null by mistake makes a paying tenant ambiguous: the log and usher entitlements say so, until the
// wrong one is erased.
func TestPlatformNull(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		o := openOffice(t, newReceiver(t, 200), inbox)
		o.send(testkit.Snapshot("mill-co", 5), webhookToken)
		o.want("before", o.asks("entitlements", "mill-co"), "0 ", "!AMBIGUOUS")
		o.send(strings.Replace(testkit.Snapshot("mill-co", 5), `"platform":{"id":1,"code":"crm","name":"CRM"}`, `"platform":null`, 1), webhookToken)
		o.want("answer", o.may("mill-co"), "AMBIGUOUS")
		testkit.Eventually(t, "logged", func() bool {
			return strings.Contains(o.Stderr.String(), "a tenant's code exists on several platforms now")
		})
		o.want("which one?", o.asks("entitlements", "mill-co"), "1 ", "/mill-co", "crm/mill-co", "409 AMBIGUOUS")
		o.want("the right one", o.asks("entitlements", "crm/mill-co", "users"), "0 ", "crm/mill-co may use users, limit 5")
		o.want("erase", o.does("erase", "/mill-co", "--yes"), "0 ")
		o.want("after", o.asks("entitlements", "mill-co", "users"), "0 ", "!AMBIGUOUS")
		o.want("answer", o.may("mill-co"), `"limit":5`)
	})
}

// Which tenants are there, and are they all right now?
func TestTenantsStand(t *testing.T) {
	onInboxes(t, func(t *testing.T, inbox string) {
		rc := newReceiver(t, 422)
		o := openOffice(t, rc, inbox)
		o.send(testkit.Snapshot("mill-co", 5), webhookToken)
		o.troubled("1 webhook of crm/mill-co is parked; the receiver answered: 422")
		o.want("tenants", o.does("tenants"), "0 crm/mill-co  20", "  parked\n")
		rc.set(200)
		o.want("as advised", o.does("redeliver", "--state", "parked", "--yes"), "0 ")
		o.delivered()
		o.wellAgain()
		o.want("tenants", o.does("tenants"), "all right")
		o.want("troubled", o.does("tenants", "--trouble"), "0 ", "!mill-co")
	})
}
