package command

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"usher/internal/admin"
	"usher/internal/admin/status"
	"usher/internal/content"
	"usher/internal/entitlements"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/testkit/inboxtest"
	"usher/webhookgate"
)

// usher entitlements prints what a tenant may use, since when and by which webhook, and whether the receiver has that
// webhook. If not, it prints why, and a command to copy.
func TestEntitlements(t *testing.T) {
	const who, since = "eu/acme may use sso, unlimited\n", " ago, by webhook 2.\n"
	body := func(features ...string) string { return inboxtest.Snapshot("eu", "acme", features...) }
	sso := body("users=5", "sso")
	queue := func(b *inboxtest.Box) {
		b.Queue(&webhookgate.Webhook{Type: content.TenantProvisioningChange, Snapshot: true, Lane: webhookgate.LaneName{Platform: "eu", Tenant: "acme"}, Body: []byte(sso)})
	}
	reject := func(b *inboxtest.Box, body string) {
		b.RecordInvalid(context.Background(), &webhookgate.Invalid{Status: 422, Reason: "schema", Faults: []content.Fault{{Path: "/payload/x", Message: "is missing"}},
			Webhook: webhookgate.Webhook{ID: "r", Type: content.TenantProvisioningChange, Lane: webhookgate.LaneName{Platform: "eu", Tenant: "acme"}, Body: []byte(body), Digest: sha256.Sum256([]byte(body))}})
	}
	for name, tc := range map[string]struct {
		prepare func(b *inboxtest.Box)
		want    []string
	}{
		"taken":  {func(b *inboxtest.Box) { b.Take("eu", "acme", sso) }, []string{who, since, " ago (webhook 2).\n"}},
		"parked": {func(b *inboxtest.Box) { b.Answer(422, "no such account"); b.Take("eu", "acme", sso) }, []string{who, since, "The receiver does not have it: webhook 2 is parked (since ", " ago).\n  422: no such account\n  Fix the receiver, then redeliver it:\n  usher --env-file ENV inbox redeliver 2\n"}},
		"fails":  {func(b *inboxtest.Box) { b.Answer(500, "in use"); b.Take("eu", "acme", sso) }, []string{who, "webhook 2 is waiting (since ", "  500: in use; next try in ", "tries again by itself. To try it now, redeliver it:\n  usher --env-file ENV inbox redeliver 2\n"}},
		"behind": {func(b *inboxtest.Box) { b.Answer(500, "in use"); b.Take("eu", "acme", body()); queue(b) }, []string{who, "webhook 3 is waiting (since ", "  it waits behind webhook 2 (500: in use, 1 try, next try in ", "inbox redeliver 2\n"}},
		"down": {func(b *inboxtest.Box) {
			b.Pass(time.Second)
			b.Answer(0, "connection refused")
			b.Take("eu", "acme", sso)
			b.Take("eu", "other", sso)
			b.Take("eu", "third", sso)
		}, []string{who, "webhook 2 is waiting (since ", "connection refused; next try when the receiver is back\n  Fix the receiver. usher then delivers by itself.\n"}},
		"paused":  {func(b *inboxtest.Box) { _ = b.Pause(inbox.Pause{Platform: "eu", Tenant: "acme"}); queue(b) }, []string{who, "webhook 2 is waiting (since ", "  paused\n  Resume the deliveries:\n  usher --env-file ENV inbox resume --tenant eu/acme\n"}},
		"invalid": {func(b *inboxtest.Box) { reject(b, sso) }, []string{"eu/acme may not use sso\n", " ago (webhook 1).\n", "usher rejected webhook 2 of this tenant (", " ago), so it does not count.\n  /payload/x is missing\n  See what is in it, then accept or discard it:\n  usher --env-file ENV inbox show 2\n"}},
		"invalid for good": {func(b *inboxtest.Box) { reject(b, "{}") }, []string{" ago), so it does not count.\n  /payload/x is missing. It can't be accepted: its tenant cannot be read for certain. " +
			"Correct it in the billing service, and send it again from there.\n  See what is in it, and discard it only if nobody needs it:\n  usher --env-file ENV inbox show 2\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := inboxtest.Open(t)
			b.Take("eu", "acme", body("users=5"))
			tc.prepare(b)
			got := entitlementsOf(t, b, "acme", "sso")
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in\n%s", want, got)
				}
			}
		})
	}

	b := inboxtest.Open(t)
	b.Take("eu", "acme", body("users=5", "sso"))
	b.Take("us", "acme", body())
	b.Take("eu", "lost", `{"type":"TenantProvisioningChange","payload":{}}`)
	b.RecordInvalid(context.Background(), &webhookgate.Invalid{Status: 422, Reason: "schema", Faults: []content.Fault{{Path: "/payload/x", Message: "is missing"}},
		Webhook: webhookgate.Webhook{ID: "r", Type: content.TenantProvisioningChange, Lane: webhookgate.LaneName{Platform: "eu", Tenant: "new"}, Body: []byte("{}")}})
	for args, want := range map[string]string{
		"eu/acme":       "eu/acme may use:\nusers  5          -  -\nsso    unlimited  -  -\nusher has answered this since ",
		"us/acme":       "us/acme may not use any feature.\n",
		"eu/acme xyz":   "eu/acme may not use xyz\n",
		"eu/acme ssso":  "eu/acme may not use ssso (did you mean sso?)\n",
		"eu/acme Users": "eu/acme may not use Users (did you mean users?)\n",
		"us/acme ssso":  "us/acme may not use ssso\n",
		"acme":          "usher: several tenants have this code: write eu/acme or us/acme. Questions that name no platform are answered 409 AMBIGUOUS\n",
		"nobody":        "usher: unknown tenant nobody: usher has taken in no webhook of it. If the code is right, see 'usher --env-file ENV inbox ls --state invalid'. If it is not there, its webhook was lost or never sent: 'usher help reconcile' says how to find it\n",
		"new sso":       "usher rejected webhook 4 of this tenant (",
		"eu/lost":       "usher: the last webhook of eu/lost, 3, has no list of features that can be read. See it with 'usher --env-file ENV inbox show 3', correct it in the billing service, and send it again from there\n",
	} {
		if got := entitlementsOf(t, b, strings.Fields(args)...); !strings.HasPrefix(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", args, got, want)
		}
	}
	const compare = "If the billing service says something else, usher has missed a change. Resend the tenant's last webhook from its\nwebhook log, " +
		"or reconcile it with a command that prints the tenant ('usher help reconcile' says how):\n  usher --env-file ENV reconcile --partial --apply -- CMD\n"
	if got := entitlementsOf(t, b, "us/acme"); !strings.HasSuffix(got, compare) {
		t.Errorf("%s\nwant\n%s", got, compare)
	}
}

// entitlementsOf returns the whole output of usher entitlements, with ENV in place of the --env-file.
func entitlementsOf(t *testing.T, b *inboxtest.Box, args ...string) string {
	t.Helper()
	out, code := runEntitlements(t, b, args...)
	if enabled := strings.HasPrefix(out, "eu/acme may use") || strings.HasPrefix(out, "us/acme may not use any"); enabled != (code == 0) {
		t.Errorf("exit code %d: %s", code, out)
	}
	return out
}

func runEntitlements(t *testing.T, b *inboxtest.Box, args ...string) (out string, code int) {
	t.Helper()
	srv := httptest.NewServer(admin.New(admin.Config{
		Hosts: guard.NewHosts("127.0.0.1:0", nil, false), Health: func() *status.Health { return new(status.Health) }, Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
		Inbox: b.Inbox, Platforms: b.Platforms, Receivers: b.Receivers, Gate: func() *status.Gate { return &status.Gate{Set: b.Receivers} },
		Entitlements: entitlements.NewBook(b.Snapshots, false).Lookup,
	}))
	defer srv.Close()
	env := envFile(t, t.TempDir(), "gate.env", "USHER_ADMIN_LISTEN="+strings.TrimPrefix(srv.URL, "http://"))
	p := start(t, os.Environ(), append([]string{"--env-file", env, "entitlements"}, args...)...)
	<-p.Ended
	return strings.ReplaceAll(p.Stdout.String()+p.Stderr.String(), env, "ENV"), p.Code
}
