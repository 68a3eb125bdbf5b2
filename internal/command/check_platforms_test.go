package command

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"usher/internal/sandbox"
)

// usher check compares what the service has configured with the gate's settings, and shows no secret of either side.
func TestCheckOfPlatforms(t *testing.T) {
	t.Parallel()
	const gate, key, token = "http://127.0.0.1:8090/webhooks", "s3cret-key", "s3cret-token"
	fits := func() *sandbox.Platform {
		return &sandbox.Platform{Code: new("crm"), WebhookURL: new(gate), WebhookSigningKey: new(key), WebhookAuthToken: new(token),
			ProvisioningEnabled: new(true), CheckoutValidationEnabled: new(false)}
	}
	with := func(change func(p *sandbox.Platform)) []*sandbox.Platform {
		p := fits()
		change(p)
		return []*sandbox.Platform{p}
	}
	secrets := []string{"USHER_WEBHOOK_TOKEN=former," + token, "USHER_WEBHOOK_SIGNING_KEY=former, " + key}
	for _, tc := range []struct {
		name      string
		platforms []*sandbox.Platform
		scopes    string // besides standard:read and standard:write
		extra     []string
		want      []string // how the lines about platforms begin
	}{
		{"all fits", []*sandbox.Platform{fits()}, "product:read", secrets,
			[]string{"ok    platform crm: its address, token and key fit, and provisioning is on; checkout validation is off"}},
		{"the token is in the path", with(func(p *sandbox.Platform) { p.WebhookURL, p.WebhookAuthToken = new(gate+"/"+token), nil }), "product:read", secrets,
			[]string{"ok    platform crm: "}},
		{"nothing is checked, and checkout is on", with(func(p *sandbox.Platform) { p.CheckoutValidationEnabled = new(true) }), "product:read", nil,
			[]string{"ok    platform crm: its address, token and key fit, and provisioning is on; checkout validation is on"}},
		{"without the scope", nil, "", secrets, []string{"note  platforms: not looked: to compare what the service has configured, allow the API client the scope product:read (the token endpoint rejected the request: invalid_scope"}},
		{"no platform", nil, "product:read", nil, []string{"FAIL  platforms: the service has none"}},
		{"all is wrong", []*sandbox.Platform{{Code: new("crm"), WebhookURL: new("http://127.0.0.1:8090/wr0ng"), WebhookSigningKey: new("wr0ng"), WebhookAuthToken: new("wr0ng"),
			ProvisioningEnabled: new(false), CheckoutValidationEnabled: new(true)}}, "product:read", append(secrets, "USHER_WEBHOOK_SYNC_TYPES=Other"),
			[]string{"FAIL  platform crm: provisioning is off", "FAIL  platform crm: the path of its webhook URL is not /webhooks",
				"FAIL  platform crm: its auth token is not in USHER_WEBHOOK_TOKEN", "FAIL  platform crm: its signing key is not in USHER_WEBHOOK_SIGNING_KEY",
				"FAIL  platform crm: checkout validation is on, but USHER_WEBHOOK_SYNC_TYPES does not have CheckoutValidation"}},
		{"all is missing", []*sandbox.Platform{{Code: new("crm"), ProvisioningEnabled: new(true)}}, "product:read", secrets,
			[]string{"FAIL  platform crm: it has no webhook URL", "FAIL  platform crm: it has no auth token, but USHER_WEBHOOK_TOKEN is set", "FAIL  platform crm: it has no signing key"}},
		{"the address of the catch-up", []*sandbox.Platform{fits()}, "product:read workflow:read",
			append(secrets, "USHER_WEBHOOK_CATCH_UP_URL=http://127.0.0.1:8090", "USHER_WEBHOOK_PATH=/behind-a-proxy", "USHER_WEBHOOK_INBOX=file:"+t.TempDir()+"/inbox.db"),
			[]string{"ok    webhook log: can be read", "ok    platform crm: "}},
		{"another address, and a log that it may not read", []*sandbox.Platform{fits()}, "product:read",
			append(secrets, "USHER_WEBHOOK_CATCH_UP_URL=http://127.0.0.1:8090/wr0ng", "USHER_WEBHOOK_INBOX=file:"+t.TempDir()+"/inbox.db"),
			[]string{"FAIL  webhook log: catch-up cannot read it: allow the API client the scope workflow:read", "FAIL  platform crm: its webhook URL is not in USHER_WEBHOOK_CATCH_UP_URL"}},
		{"others go elsewhere", []*sandbox.Platform{fits(), {Code: new("mail"), WebhookURL: new("https://other.example/hooks"), ProvisioningEnabled: new(true)}, {Code: new("idle")}}, "product:read", secrets,
			[]string{"ok    platform crm: ", "note  platform mail: its webhooks go elsewhere", "note  platform idle: it sends no webhooks"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := sandbox.NewBilling(sandbox.Client{ID: "app", Secret: "t0psecret", Scopes: strings.Fields("standard:read standard:write " + tc.scopes)})
			b.Platforms = func() []*sandbox.Platform { return tc.platforms }
			service := httptest.NewServer(b)
			defer service.Close()
			receiver := httptest.NewServer(sandbox.NewReceiver())
			defer receiver.Close()
			p := start(t, slices.Concat([]string{"USHER_BASE_URL=" + service.URL, "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=t0psecret", "USHER_WEBHOOK_FORWARD_URL=" + receiver.URL}, tc.extra), "check")
			<-p.Ended
			out := p.Stdout.String()
			var lines []string
			for line := range strings.Lines(out) {
				if strings.Contains(line, "platform") || strings.Contains(line, "webhook log") {
					lines = append(lines, line)
				}
			}
			fits := func(line, want string) bool { return strings.HasPrefix(line, want) }
			failed := strings.Contains(out, "FAIL")
			if !slices.EqualFunc(lines, tc.want, fits) || p.Code != map[bool]int{true: 1}[failed] || strings.Contains(out, "s3cret") || strings.Contains(out, "wr0ng") {
				t.Errorf("%d:\n%s", p.Code, out)
			}
		})
	}
}
