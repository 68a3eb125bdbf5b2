package settings

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"golang.org/x/net/http/httpguts"

	"usher/internal/content"
	"usher/internal/inbox"
	"usher/internal/receiver"
	"usher/internal/secret"
)

func (w *Webhook) check(r *reader) {
	w.checkListener(r)
	w.checkSecrets(r)
	w.checkTLS(r)
	w.readRules(r)
	w.readReceivers(r)
	w.checkInbox(r)
}

func (w *Webhook) checkListener(r *reader) {
	reachable := r.checkListen("USHER_WEBHOOK_LISTEN", w.Listen)
	checked := w.token != nil || w.signingKey != nil
	w.Unchecked = !reachable && !checked
	if w.on() && reachable && !checked && !w.Insecure {
		r.problem("USHER_WEBHOOK_LISTEN",
			"is %q, which others can reach, and nothing says who may send: set USHER_WEBHOOK_TOKEN "+
				"or USHER_WEBHOOK_SIGNING_KEY, or USHER_WEBHOOK_INSECURE=true if anybody may", w.Listen)
	}
	// The gate compares it with the escaped path that the sender wrote.
	u, err := url.Parse(w.Path)
	slashAtEnd := len(w.Path) > 1 && strings.HasSuffix(w.Path, "/")
	if err != nil || u.EscapedPath() != w.Path || w.Path[0] != '/' || slashAtEnd {
		r.invalid("USHER_WEBHOOK_PATH", "a path such as /webhooks, escaped as in a URL, without a slash at its end")
	}
}

// readRules compiles the rules for types and schema.
func (w *Webhook) readRules(r *reader) {
	var schema []byte
	if w.SchemaFile != "" {
		if schema = r.readFile("USHER_WEBHOOK_SCHEMA_FILE", w.SchemaFile, secret.ReadFile); schema == nil {
			return
		}
	} else if !w.on() {
		return
	}
	var err error
	if w.Rules, err = content.NewRules(w.Types, schema); err != nil {
		r.problem("USHER_WEBHOOK_SCHEMA_FILE", "is %q, but should name a file with a JSON Schema: %v",
			w.SchemaFile, err)
	}
}

const receiversAddress = "the receiver's address, such as http://127.0.0.1:3000/provisioning"

func forwardURL(r *reader, name, value string) *url.URL {
	u, err := url.Parse(value)
	if err != nil || !isHTTP(u) || u.Fragment != "" || !isPortNumber(cmp.Or(u.Port(), "0")) {
		holds := "holds something else (not shown: there may be a secret in it), but"
		if start := addressStart.FindString(value); start != "" && !strings.Contains(value, "@") {
			holds = fmt.Sprintf("is %q, but", start+"…") // its path and query may be a secret
		}
		r.problem(name, "%s should hold %s", holds, receiversAddress)
		return nil
	}
	return u
}

var addressStart = regexp.MustCompile(`^([A-Za-z]+://)?[^/?#:]*(:[0-9]+\b)?`)

func (w *Webhook) checkSecrets(r *reader) {
	w.Tokens, w.SigningKeys = w.token.Getter(), w.signingKey.Getter()
	r.checkKeys("USHER_WEBHOOK_TOKEN", w.token, false)
	r.checkSecret("USHER_WEBHOOK_SIGNING_KEY", w.signingKey, func(keys string) error { return partsProblem(keys, false) })
	if !httpguts.ValidHeaderFieldName(w.SignatureHeader) {
		r.invalid("USHER_WEBHOOK_SIGNATURE_HEADER", "the name of a header, such as X-Bunny-Signature")
	}
	r.checkSecret("USHER_WEBHOOK_FORWARD_SIGNING_KEY", w.forwardSigningKey, signingKeysProblem)
}

func (w *Webhook) checkTLS(r *reader) {
	const certName, keyName = "USHER_WEBHOOK_TLS_CERT_FILE", "USHER_WEBHOOK_TLS_KEY_FILE"
	if (w.TLSCertFile == "") != (w.TLSKeyFile == "") {
		r.problem(certName, "and %s should be set both, or neither", keyName)
	} else if w.TLSCertFile != "" {
		cert := r.readFile(certName, w.TLSCertFile, secret.ReadRegular)
		key := r.readFile(keyName, w.TLSKeyFile, secret.ReadRegular)
		if _, err := tls.X509KeyPair(cert, key); err != nil && cert != nil && key != nil {
			r.problem(certName, "and %s should hold a certificate and its key in PEM: %v (they are %q and %q)",
				keyName, err, w.TLSCertFile, w.TLSKeyFile)
		}
	}
}

func (w *Webhook) checkInbox(r *reader) {
	c := &w.InboxConfig
	if w.Inbox != "" {
		address, err := inbox.ParseAddress(w.Inbox)
		switch {
		case err != nil: // without the address itself: it may hold a password
			r.problem("USHER_WEBHOOK_INBOX", "can't be used: %v; it should hold file:/path, such as "+
				"file:/var/lib/usher/inbox.db, or postgres://user@host/database", err)
		case w.inboxPassword != nil && !address.Shared():
			r.problem("USHER_WEBHOOK_INBOX_PASSWORD", "is set, but is only for a database: USHER_WEBHOOK_INBOX should "+
				"then hold postgres://user@host/database")
		case w.inboxPassword != nil && address.HasPassword():
			r.problem("USHER_WEBHOOK_INBOX_PASSWORD",
				"is set, and USHER_WEBHOOK_INBOX has a password too (not shown), but only one of them should be set")
		}
		if err == nil {
			c.Address = address
		}
	}
	c.Password, c.DedupWindow = w.inboxPassword.Getter(), w.DedupWindow
	c.Content, c.MaxBody = w.Rules, w.MaxBody
	if w.on() { // without a gate usher delivers nothing
		c.Receivers, c.StoreUnclaimed = w.Receivers, w.StoreUnclaimed
	}
}

// readReceivers sets the receivers: first the main one, if there is one, then USHER_WEBHOOK_RECEIVERS_0_…,
// USHER_WEBHOOK_RECEIVERS_1_….
func (w *Webhook) readReceivers(r *reader) {
	var all []*receiver.Receiver
	if w.ForwardURL != "" {
		main := &extraReceiver{address: w.ForwardURL}
		main.Name = receiver.Main
		all = append(all, w.newReceiver(r, "USHER_WEBHOOK_", main))
	}
	names := map[string]string{receiver.Main: "USHER_WEBHOOK_FORWARD_URL"}
	claims := make(map[string]string) // from a platform to the receiver that claims it
	for _, index := range w.receiverIndexes {
		prefix := receiversPrefix + index + "_"
		c := new(extraReceiver)
		r.read(c.variables(), index)
		r.require(prefix+"PLATFORMS", len(c.Platforms) > 0 || !w.on(),
			"the codes of the platforms whose webhooks go there, separated by commas")
		r.require(prefix+"FORWARD_URL", c.address != "" || !w.on(), receiversAddress)
		r.checkSecret(prefix+"FORWARD_SIGNING_KEY", c.forwardSigningKey, signingKeysProblem)
		c.Name = r.uniqueName(names, prefix, c.Name, index)
		for _, platform := range c.Platforms {
			if other, taken := claims[platform]; taken && other != prefix {
				r.problem(prefix+"PLATFORMS",
					"has %q, which %sPLATFORMS has too: a platform's webhooks should go to one receiver",
					platform, other)
			}
			claims[platform] = prefix
		}
		all = append(all, w.newReceiver(r, prefix, c))
	}
	w.Receivers = receiver.NewSet(all...)
}

// newReceiver adds to a receiver what it inherits.
func (w *Webhook) newReceiver(r *reader, prefix string, c *extraReceiver) *receiver.Receiver {
	c.Variable = prefix + "FORWARD_URL"
	if c.address != "" {
		c.URL = forwardURL(r, c.Variable, c.address)
	}
	c.Timeout, c.Concurrency = cmp.Or(c.Timeout, w.Timeout), cmp.Or(c.Concurrency, w.InboxConcurrency)
	c.Service = w.Credentials
	c.ForwardSigningKey = cmp.Or(c.forwardSigningKey, w.forwardSigningKey).Getter()
	c.Transport = receiver.NewTransport(w.MaxInflight)
	return &c.Receiver
}

// checkCatchUp checks the addresses of the catch-up. Their paths may hold a secret.
func (w *Webhook) checkCatchUp(r *reader, outbound bool) {
	const name = "USHER_WEBHOOK_CATCH_UP_URL"
	for _, address := range w.catchUpURLs {
		u, err := url.Parse(address)
		if err != nil || !isHTTP(u) || u.RawQuery != "" || u.Fragment != "" {
			r.problem(name, "has an address (not shown: there may be a secret in it) that is not like "+
				"https://gate.example.com/webhooks, as the billing service has it for this gate")
			continue
		}
		w.CatchUp = append(w.CatchUp, u)
	}
	for _, needed := range []struct {
		what, why string
		there     bool
	}{
		{"USHER_BASE_URL", "to read the billing service's webhook log", outbound},
		{"USHER_WEBHOOK_INBOX", "to know what usher has", w.Inbox != ""},
		{"a gate", "to deliver what it finds (USHER_WEBHOOK_LISTEN is off, or there is no receiver)", w.on()},
	} {
		if w.catchUpURLs != nil && !needed.there {
			r.problem(name, "needs %s, %s", needed.what, needed.why)
		}
	}
}
