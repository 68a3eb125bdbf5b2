package settings

import (
	"slices"
	"testing"
)

// A setting of a part that is off is not an error, but it is said, with what switches
// the part on.
func TestUnusedSettings(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  []string
		want []string // the names
		why  string
	}{
		{"both on", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_TOKEN=x", "USHER_KEY=x"), nil, ""},
		{"gate off", with("USHER_WEBHOOK_TOKEN=x", "USHER_WEBHOOK_INBOX=file:/x", "USHER_WEBHOOK_INBOX_USER=u", "USHER_WEBHOOK_HMAC_SCHEME=standard", "USHER_WEBHOOK_LISTEN=0.0.0.0:8090"),
			[]string{"USHER_WEBHOOK_LISTEN", "USHER_WEBHOOK_TOKEN", "USHER_WEBHOOK_HMAC_SCHEME", "USHER_WEBHOOK_INBOX", "USHER_WEBHOOK_INBOX_USER"},
			"the webhook gate is off; to switch it on, set USHER_WEBHOOK_FORWARD_URL"},
		{"gate switched off", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_LISTEN=off"), []string{"USHER_WEBHOOK_FORWARD_URL"},
			"the webhook gate is off; to switch it on, set USHER_WEBHOOK_LISTEN to an address"},
		{"gate switched off, with receivers", with("USHER_WEBHOOK_RECEIVERS_4_PLATFORMS=crm", "USHER_WEBHOOK_LISTEN=off"), []string{"USHER_WEBHOOK_RECEIVERS_4_PLATFORMS"},
			"the webhook gate is off; to switch it on, set USHER_WEBHOOK_LISTEN to an address"},
		{"outbound off", []string{"USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_CLIENT_ID=x", "USHER_CLIENT_SECRET=x", "USHER_LISTEN=0.0.0.0:8080", "USHER_PORTS_3_SCOPE=x", "USHER_PORTS_3_KEY=k", "USHER_ALLOWED_HOSTS=x"},
			[]string{"USHER_CLIENT_ID", "USHER_CLIENT_SECRET", "USHER_LISTEN", "USHER_PORTS_3_SCOPE", "USHER_PORTS_3_KEY"}, "outbound is off; to switch it on, set USHER_BASE_URL"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := Read(tc.env)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, u := range s.Unused {
				names = append(names, u.Name)
				if u.Why != tc.why {
					t.Errorf("%s: %q, want %q", u.Name, u.Why, tc.why)
				}
			}
			if !slices.Equal(names, tc.want) {
				t.Errorf("unused: %q, want %q", names, tc.want)
			}
		})
	}
}
