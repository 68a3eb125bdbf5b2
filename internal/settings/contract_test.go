package settings_test

import (
	"slices"
	"strings"
	"testing"

	"usher/internal/settings"
)

// promised are all settings with their defaults. Users have them in their files, so a change of a name or a default
// needs an entry in the changelog. A comparison with docs/reference.md would prove nothing: that page is generated
// from the code.
var promised = map[string]string{
	"USHER_BASE_URL": "", "USHER_CLIENT_ID": "", "USHER_SCOPE": "standard:read standard:write", "USHER_LISTEN": "127.0.0.1:8080",
	"USHER_PORTS_n_NAME": "", "USHER_PORTS_n_LISTEN": "", "USHER_PORTS_n_SCOPE": "", "USHER_PORTS_n_CLIENT_ID": "",
	"USHER_INSECURE": "false", "USHER_ALLOWED_HOSTS": "", "USHER_ALLOW_PLAIN_HTTP": "false",
	"USHER_REPLAY_LIMIT": "1MiB", "USHER_UPSTREAM_TIMEOUT": "60s",

	"USHER_WEBHOOK_FORWARD_URL": "", "USHER_WEBHOOK_LISTEN": "127.0.0.1:8090", "USHER_WEBHOOK_PATH": "/webhooks",
	"USHER_WEBHOOK_RECEIVERS_n_PLATFORMS": "", "USHER_WEBHOOK_RECEIVERS_n_FORWARD_URL": "", "USHER_WEBHOOK_RECEIVERS_n_NAME": "",
	"USHER_WEBHOOK_RECEIVERS_n_TIMEOUT": "", "USHER_WEBHOOK_RECEIVERS_n_CONCURRENCY": "",
	"USHER_WEBHOOK_SIGNATURE_HEADER": "X-Bunny-Signature", "USHER_WEBHOOK_SIGNATURE_ALGORITHM": "sha1",
	"USHER_WEBHOOK_TLS_CERT_FILE": "", "USHER_WEBHOOK_TLS_KEY_FILE": "", "USHER_WEBHOOK_INSECURE": "false",
	"USHER_WEBHOOK_TYPES": "TenantProvisioningChange", "USHER_WEBHOOK_SYNC_TYPES": "CheckoutValidation", "USHER_WEBHOOK_ANSWER_WITHIN": "4500ms", "USHER_WEBHOOK_SCHEMA_FILE": "", "USHER_WEBHOOK_MAX_BODY": "1MiB",
	"USHER_WEBHOOK_DEDUP_SIZE": "10000", "USHER_WEBHOOK_DEDUP_WINDOW": "10m", "USHER_WEBHOOK_TIMEOUT": "10s", "USHER_WEBHOOK_TRIES": "3",
	"USHER_WEBHOOK_MAX_INFLIGHT": "256", "USHER_WEBHOOK_INBOX": "", "USHER_WEBHOOK_INBOX_PARK_AFTER": "6h",
	"USHER_WEBHOOK_INBOX_CONCURRENCY": "32", "USHER_WEBHOOK_INBOX_MAX_BYTES": "1GiB",

	"USHER_ENTITLEMENTS_LISTEN": "",
	"USHER_ADMIN_LISTEN":        "127.0.0.1:9095", "USHER_LOG_LEVEL": "info", "USHER_LOG_FORMAT": "auto",
	"USHER_SHUTDOWN_DELAY": "0s", "USHER_SHUTDOWN_GRACE": "15s",
}

// promisedSecrets are the settings that can also be given as a file.
var promisedSecrets = []string{
	"USHER_CLIENT_SECRET", "USHER_KEY", "USHER_PORTS_n_CLIENT_SECRET", "USHER_PORTS_n_KEY",
	"USHER_WEBHOOK_TOKEN", "USHER_WEBHOOK_SIGNING_KEY", "USHER_WEBHOOK_FORWARD_SIGNING_KEY", "USHER_WEBHOOK_RECEIVERS_n_FORWARD_SIGNING_KEY",
	"USHER_ENTITLEMENTS_KEY", "USHER_ADMIN_TOKEN", "USHER_ADMIN_READ_TOKEN", "USHER_NOTIFY_URL",
}

func TestPromisedSettings(t *testing.T) {
	for name, want := range promised {
		if got := settings.Default(name); !settings.Known(name) || got != want {
			t.Errorf("%s: known %v, default %q, want %q", name, settings.Known(name), got, want)
		}
	}
	for _, name := range promisedSecrets {
		if !settings.Known(name) || !settings.Known(name+"_FILE") {
			t.Errorf("%s, or the same with _FILE, is not known", name)
		}
	}
	for _, v := range settings.Variables() {
		if v.Secret() && !slices.Contains(promisedSecrets, v.Name) && !strings.HasPrefix(v.Name, "USHER_WEBHOOK_INBOX_") {
			t.Errorf("%s is a secret now, and can be given as a file: promise it", v.Name)
		}
	}
}

// A gate that other machines can reach needs at least one check of the sender.
func TestGateBeyondLoopback(t *testing.T) {
	for check, fine := range map[string]bool{
		"":                            false,
		"USHER_WEBHOOK_INSECURE=true": true,
		"USHER_WEBHOOK_TOKEN=x":       true,
		"USHER_WEBHOOK_SIGNING_KEY=x": true,
		// These are not checks of the sender.
		"USHER_WEBHOOK_FORWARD_SIGNING_KEY=whsec_a2V5": false,
		"USHER_INSECURE=true":                          false,
	} {
		_, err := settings.Read([]string{"USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_LISTEN=0.0.0.0:8090", check})
		if (err == nil) != fine {
			t.Errorf("%q: %v", check, err)
		}
	}
}

// The gate is on if it has a receiver, or if entitlements are on with an inbox of any kind.
func TestGateIsOn(t *testing.T) {
	for _, tc := range []struct {
		env []string
		on  bool
	}{
		{[]string{"USHER_WEBHOOK_FORWARD_URL=http://r"}, true},
		{[]string{"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=a", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=http://r"}, true},
		{[]string{"USHER_WEBHOOK_INBOX=file:x", "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:1"}, true},
		{[]string{"USHER_WEBHOOK_INBOX=postgres://h/d", "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:1"}, true},
		{[]string{"USHER_WEBHOOK_INBOX=postgres://h/d", "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:1", "USHER_WEBHOOK_LISTEN=off"}, false},
		{[]string{"USHER_BASE_URL=https://b", "USHER_CLIENT_ID=a", "USHER_CLIENT_SECRET=s"}, false},
		{[]string{"USHER_BASE_URL=https://b", "USHER_CLIENT_ID=a", "USHER_CLIENT_SECRET=s", "USHER_WEBHOOK_INBOX=file:x"}, false},
	} {
		s, err := settings.Read(tc.env)
		if err != nil || s.GateOn() != tc.on {
			t.Errorf("%q: %v, want the gate on: %v", tc.env, err, tc.on)
		}
	}
}
