package settings

import (
	"strings"
	"testing"
)

func TestInboxSettings(t *testing.T) {
	for _, c := range []struct {
		env   string // separated by spaces
		fault string // what the problem says; empty: none
	}{
		{"USHER_WEBHOOK_INBOX=file:/tmp/inbox.db", ""},
		{"USHER_WEBHOOK_INBOX=nats://a,b,c?replicas=3", ""},
		{"USHER_WEBHOOK_INBOX=nats://a USHER_WEBHOOK_INBOX_USER=u USHER_WEBHOOK_INBOX_PASSWORD=pw", ""},
		{"USHER_WEBHOOK_INBOX=redis://a", "USHER_WEBHOOK_INBOX is \"redis://a\", but should hold file:/path"},
		{"USHER_WEBHOOK_INBOX=nats://u:hush@a", "USHER_WEBHOOK_INBOX has a user or password in it"},
		{"USHER_WEBHOOK_INBOX=nats://a?replicas=9", "USHER_WEBHOOK_INBOX has replicas"},
		{"USHER_WEBHOOK_INBOX=nats://a,b:42222,c:422222", "USHER_WEBHOOK_INBOX has the host \"c:422222\""},
		{"USHER_WEBHOOK_INBOX=nats://[::1]:4222", ""},
		{"USHER_WEBHOOK_INBOX=nats://a USHER_WEBHOOK_INBOX_USER=u USHER_WEBHOOK_INBOX_TOKEN=hush", "are both set"},
		{"USHER_WEBHOOK_INBOX=nats://a USHER_WEBHOOK_INBOX_PASSWORD=hush", "whose password it is"},
		{"USHER_WEBHOOK_INBOX=nats://a USHER_WEBHOOK_INBOX_NKEY=hush", "begins with SU"},
		{"USHER_WEBHOOK_INBOX=nats://a USHER_WEBHOOK_INBOX_CREDS_FILE=/nowhere", "can be read"},
		{"USHER_WEBHOOK_INBOX=nats://a USHER_WEBHOOK_INBOX_CERT_FILE=/nowhere", "both, or neither"},
		{"USHER_WEBHOOK_INBOX=nats://a USHER_WEBHOOK_INBOX_CA_FILE=/nowhere", "can be read"},
		{"USHER_WEBHOOK_INBOX=file:/tmp/inbox.db USHER_WEBHOOK_INBOX_TOKEN=hush", "only for an inbox on NATS"},
		{"USHER_WEBHOOK_INBOX_CA_FILE=/nowhere", "only for an inbox on NATS"},
	} {
		env := append(strings.Fields(c.env), "USHER_BASE_URL=https://billing.example", "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=s",
			"USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:3000")
		_, err := Read(env)
		switch {
		case c.fault == "" && err != nil:
			t.Errorf("%s: %v", c.env, err)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault) || strings.Contains(err.Error(), "hush")):
			t.Errorf("%s: %v", c.env, err)
		}
	}
}

// Whatever holds a password is not shown, also where it was put in the wrong place.
func TestNoPasswordInProblems(t *testing.T) {
	for _, kv := range []string{
		"USHER_WEBHOOK_INBOX=natss://u:hush@h", "USHER_WEBHOOK_INBOX=NATS://u:hush@h", "USHER_WEBHOOK_INBOX=u:hush@h",
		"USHER_BASE_URL=u:hush@h", "USHER_CLIENT_SECRET_FILE=hush",
		"USHER_WEBHOOK_TLS_KEY_FILE=-----BEGIN PRIVATE KEY-----\nhush", "USHER_WEBHOOK_INBOX_KEY_FILE=-----BEGIN PRIVATE KEY-----\nhush",
		"USHER_WEBHOOK_INBOX_CREDS_FILE=-----BEGIN NATS USER JWT-----\nhush",
		"HTTPS_PROXY=http://u:hush@proxy:port", "USHER_WEBHOOK_HMAC_SCHEME=whsec_hush", "USHER_WEBHOOK_HMAC_HEADER=-----BEGIN hush",
	} {
		env := []string{"USHER_CLIENT_ID=app", "USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:3000"}
		switch name, _, _ := strings.Cut(kv, "="); name {
		case "USHER_WEBHOOK_TLS_KEY_FILE":
			env = append(env, "USHER_WEBHOOK_TLS_CERT_FILE=/none")
		case "USHER_WEBHOOK_INBOX_KEY_FILE", "USHER_WEBHOOK_INBOX_CREDS_FILE":
			env = append(env, "USHER_WEBHOOK_INBOX=nats://h", "USHER_WEBHOOK_INBOX_CERT_FILE=/none")
		}
		if !strings.HasPrefix(kv, "USHER_BASE_URL") {
			env = append(env, "USHER_BASE_URL=https://billing.example")
		}
		if !strings.HasPrefix(kv, "USHER_CLIENT_SECRET") {
			env = append(env, "USHER_CLIENT_SECRET=s")
		}
		if _, err := Read(append(env, kv)); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", kv, err)
		}
	}
}
