package settings

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"

	"usher/internal/inbox"
)

func (w *Webhook) checkInbox(r *reader) {
	switch path, isFile := strings.CutPrefix(w.Inbox, "file:"); {
	case inbox.IsNATS(w.Inbox):
		w.checkNATS(r)
	case w.Inbox != "" && (!isFile || path == ""):
		r.invalid("USHER_WEBHOOK_INBOX", "file:/path, such as file:/var/lib/usher/inbox.db, or nats://host,host,host")
	}
	if w.on() && !inbox.IsNATS(w.Inbox) {
		w.refuseNATS(r)
	}
	r.positive("USHER_WEBHOOK_INBOX_ATTEMPTS", int64(w.InboxAttempts))
	r.positive("USHER_WEBHOOK_INBOX_CONCURRENCY", int64(w.InboxConcurrency))
	r.positive("USHER_WEBHOOK_INBOX_MAX_BYTES", int64(w.InboxMaxBytes))
	if w.InboxMaxAge <= 0 {
		r.invalid("USHER_WEBHOOK_INBOX_MAX_AGE", "a duration above zero, such as 72h")
	}
	if w.InboxKeep != "all" && w.InboxKeep != "latest" {
		r.invalid("USHER_WEBHOOK_INBOX_KEEP", "all or latest")
	}
}

// identities returns the settings that are set to log in at the inbox's servers.
func (w *Webhook) identities() (set []string) {
	for _, way := range []struct {
		name string
		set  bool
	}{
		{"USHER_WEBHOOK_INBOX_USER", w.InboxUser != ""},
		{"USHER_WEBHOOK_INBOX_TOKEN", w.InboxToken != nil},
		{"USHER_WEBHOOK_INBOX_NKEY", w.InboxNKey != nil},
		{"USHER_WEBHOOK_INBOX_CREDS_FILE", w.InboxCredsFile != ""},
	} {
		if way.set {
			set = append(set, way.name)
		}
	}
	return set
}

// refuseNATS reports settings for NATS that are set without an inbox on NATS: the user who
// sets one relies on it.
func (w *Webhook) refuseNATS(r *reader) {
	set := w.identities()
	for _, file := range []struct{ name, value string }{
		{"USHER_WEBHOOK_INBOX_CA_FILE", w.InboxCAFile}, {"USHER_WEBHOOK_INBOX_CERT_FILE", w.InboxCertFile}, {"USHER_WEBHOOK_INBOX_KEY_FILE", w.InboxKeyFile},
	} {
		if file.value != "" {
			set = append(set, file.name)
		}
	}
	if w.InboxPassword != nil {
		set = append(set, "USHER_WEBHOOK_INBOX_PASSWORD")
	}
	for _, name := range set {
		r.problem(name, "is set, but is only for an inbox on NATS: USHER_WEBHOOK_INBOX should then hold nats://host,host,host")
	}
}

func (w *Webhook) checkNATS(r *reader) {
	n, err := inbox.ParseNATS(w.Inbox)
	if errors.Is(err, inbox.ErrUserInAddress) {
		r.problem("USHER_WEBHOOK_INBOX", "has a user or password in it (not shown), which belong in USHER_WEBHOOK_INBOX_USER and USHER_WEBHOOK_INBOX_PASSWORD, or a token in USHER_WEBHOOK_INBOX_TOKEN")
		return
	}
	if err != nil {
		r.problem("USHER_WEBHOOK_INBOX", "%v; it should hold nats://host,host,host, and can end with ?stream=NAME&replicas=N", err)
		return
	}
	if set := w.identities(); len(set) > 1 {
		r.problem(set[0], "and %s are both set, but only one of them should be", set[1])
	}
	if w.InboxPassword != nil && w.InboxUser == "" {
		r.problem("USHER_WEBHOOK_INBOX_PASSWORD", "is set, but USHER_WEBHOOK_INBOX_USER, whose password it is, is not")
	}
	if w.InboxNKey != nil && !strings.HasPrefix(w.InboxNKey.Get(), "SU") {
		r.problem("USHER_WEBHOOK_INBOX_NKEY", "should hold the seed of a user's NKey, which begins with SU (not shown)")
	}
	if w.InboxCredsFile != "" {
		r.file("USHER_WEBHOOK_INBOX_CREDS_FILE", w.InboxCredsFile)
	}
	n.User, n.CredsFile = w.InboxUser, w.InboxCredsFile
	n.Password, n.Token, n.Seed = w.InboxPassword.Getter(), w.InboxToken.Getter(), w.InboxNKey.Getter()
	n.TLS = w.inboxTLS(r, strings.HasPrefix(strings.ToLower(w.Inbox), "tls:"))
	w.NATS = n
}

// inboxTLS returns nil if no setting asks for TLS. usher reads the client certificate again
// for each connection.
func (w *Webhook) inboxTLS(r *reader, demanded bool) *tls.Config {
	cert, key := w.InboxCertFile, w.InboxKeyFile
	pair := r.keyPair("USHER_WEBHOOK_INBOX", cert, key)
	if w.InboxCAFile == "" && !pair && !demanded {
		return nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if w.InboxCAFile != "" {
		cfg.RootCAs = x509.NewCertPool()
		cfg.RootCAs.AppendCertsFromPEM(r.certificates("USHER_WEBHOOK_INBOX_CA_FILE", w.InboxCAFile))
	}
	if pair {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(cert, key)
			return &c, err
		}
	}
	return cfg
}
