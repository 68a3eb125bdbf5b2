//go:build unix

package command

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
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
		_, err := readSettings(env)
		switch {
		case c.fault == "" && err != nil:
			t.Errorf("%s: %v", c.env, err)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault) || strings.Contains(err.Error(), "hush")):
			t.Errorf("%s: %v", c.env, err)
		}
	}
}

func TestCheckLooksAtTheInbox(t *testing.T) {
	opts := &server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	defer s.Shutdown()
	eventually(t, "a server", func() bool { return s.Addr() != nil })
	service := newService(t)
	_, receiver := newLedger(t)
	for address, want := range map[string]string{
		s.Addr().String(): "ok    inbox: the stream USHER will be made, with 1 replicas",
		freeAddr(t):       "FAIL  inbox: ",
	} {
		p := start(t, service.environ("USHER_WEBHOOK_FORWARD_URL="+receiver, "USHER_WEBHOOK_INBOX=nats://"+address), "check")
		<-p.ended
		if out := p.stdout.String(); !strings.Contains(out, want) {
			t.Errorf("%s\n%s", out, p.stderr.String())
		}
	}
}
