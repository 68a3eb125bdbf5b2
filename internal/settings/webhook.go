package settings

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"usher/internal/inbox"
	"usher/internal/receiver"
	"usher/internal/secret"
	"usher/webhookgate/content"
	"usher/webhookgate/signature"
)

// Webhook is the gate and its inbox. See on for what switches the gate on.
type Webhook struct {
	ForwardURL  string         `env:"USHER_WEBHOOK_FORWARD_URL"`
	Listen      string         `env:"USHER_WEBHOOK_LISTEN" envDefault:"127.0.0.1:8090"`
	Path        string         `env:"USHER_WEBHOOK_PATH" envDefault:"/webhooks"`
	Token       *secret.Value  `secret:"USHER_WEBHOOK_TOKEN"`
	HMACSecret  *secret.Value  `secret:"USHER_WEBHOOK_HMAC_SECRET"`
	HMACHeader  string         `env:"USHER_WEBHOOK_HMAC_HEADER" envDefault:"X-Signature"`
	HMAC        signature.HMAC `env:"USHER_WEBHOOK_HMAC_ALGORITHM" envDefault:"sha256"`
	HMACScheme  string         `env:"USHER_WEBHOOK_HMAC_SCHEME" envDefault:"body"`
	Allow       []netip.Prefix `env:"USHER_WEBHOOK_ALLOW_CIDRS"`
	Trusted     []netip.Prefix `env:"USHER_WEBHOOK_TRUSTED_PROXIES"`
	TLSCertFile string         `env:"USHER_WEBHOOK_TLS_CERT_FILE"`
	TLSKeyFile  string         `env:"USHER_WEBHOOK_TLS_KEY_FILE"`
	TLSClientCA string         `env:"USHER_WEBHOOK_TLS_CLIENT_CA_FILE"`
	Insecure    bool           `env:"USHER_WEBHOOK_INSECURE" envDefault:"false"`
	Types       List           `env:"USHER_WEBHOOK_TYPES" envDefault:"TenantProvisioningChange"`
	SyncTypes   List           `env:"USHER_WEBHOOK_SYNC_TYPES"`
	SchemaFile  string         `env:"USHER_WEBHOOK_SCHEMA_FILE"`
	MaxBody     Size           `env:"USHER_WEBHOOK_MAX_BODY" envDefault:"1MiB" above:"0"`
	DedupSize   int            `env:"USHER_WEBHOOK_DEDUP_SIZE" envDefault:"10000" above:"0"`
	DedupWindow time.Duration  `env:"USHER_WEBHOOK_DEDUP_WINDOW" envDefault:"10m"`
	Timeout     time.Duration  `env:"USHER_WEBHOOK_TIMEOUT" envDefault:"10s" above:"0"`
	Attempts    int            `env:"USHER_WEBHOOK_ATTEMPTS" envDefault:"3" above:"0"`
	MaxInflight int            `env:"USHER_WEBHOOK_MAX_INFLIGHT" envDefault:"256" above:"0"`
	SignSecret  *secret.Value  `secret:"USHER_WEBHOOK_SIGN_SECRET"`

	Inbox            string        `env:"USHER_WEBHOOK_INBOX"`
	InboxAttempts    int           `env:"USHER_WEBHOOK_INBOX_ATTEMPTS" envDefault:"20" above:"0"`
	InboxMaxAge      time.Duration `env:"USHER_WEBHOOK_INBOX_MAX_AGE" envDefault:"72h" above:"0"`
	InboxConcurrency int           `env:"USHER_WEBHOOK_INBOX_CONCURRENCY" envDefault:"32" above:"0"`
	InboxMaxBytes    Size          `env:"USHER_WEBHOOK_INBOX_MAX_BYTES" envDefault:"1GiB" above:"0"`
	InboxKeep        string        `env:"USHER_WEBHOOK_INBOX_KEEP" envDefault:"all"`

	InboxPassword *secret.Value `secret:"USHER_WEBHOOK_INBOX_PASSWORD"` // of a database

	KeepUnclaimed bool           `env:"-"` // keep webhooks of platforms without a receiver, for entitlements
	Receivers     *receiver.Set  `env:"-"` // that of ForwardURL, then USHER_WEBHOOK_RECEIVERS_0_…, USHER_WEBHOOK_RECEIVERS_1_…
	Rules         *content.Rules `env:"-"` // of Types, SyncTypes and SchemaFile; nil: the gate is off
	InboxAddress  *inbox.Address `env:"-"` // of Inbox; nil: none

	further     bool            // there are USHER_WEBHOOK_RECEIVERS_n_…
	signSecrets []*secret.Value // those of further receivers that have one of their own
}

func (w *Webhook) check(r *reader) {
	w.checkListener(r)
	// The gate compares it with the path as the sender wrote it, escapes included.
	if u, err := url.Parse(w.Path); err != nil || u.EscapedPath() != w.Path || w.Path[0] != '/' || len(w.Path) > 1 && strings.HasSuffix(w.Path, "/") {
		r.invalid("USHER_WEBHOOK_PATH", "a path such as /webhooks, escaped as in a URL, without a slash at its end")
	}
	w.checkSecrets(r)
	w.checkTLS(r)
	w.checkTypes(r)
	w.readRules(r)
	w.checkInbox(r)
	w.readReceivers(r)
}

// on says whether usher takes webhooks in: it needs somewhere to put them.
func (w *Webhook) on() bool {
	return (w.ForwardURL != "" || w.further || w.KeepUnclaimed) && w.Listen != "off"
}

func (w *Webhook) checkListener(r *reader) {
	if w.Listen == "off" {
		return
	}
	loopback, ok := r.listen("USHER_WEBHOOK_LISTEN", w.Listen)
	checked := w.Token != nil || w.HMACSecret != nil || len(w.Allow) > 0 || w.TLSClientCA != ""
	if w.on() && ok && !loopback && !checked && !w.Insecure {
		r.problem("USHER_WEBHOOK_LISTEN", "is %q, which others can reach, and nothing says who may send: set USHER_WEBHOOK_TOKEN, USHER_WEBHOOK_HMAC_SECRET, USHER_WEBHOOK_ALLOW_CIDRS or USHER_WEBHOOK_TLS_CLIENT_CA_FILE, or USHER_WEBHOOK_INSECURE=true if anybody may", w.Listen)
	}
}

func (w *Webhook) checkTypes(r *reader) {
	for _, typ := range w.SyncTypes {
		switch {
		case typ == "*":
			r.invalid("USHER_WEBHOOK_SYNC_TYPES", "event types by name, separated by commas; * is not allowed here")
		case slices.Contains(w.Types, typ):
			r.problem("USHER_WEBHOOK_SYNC_TYPES", "has %q, which is in USHER_WEBHOOK_TYPES too: a type should be in one of them", typ)
		}
	}
}

// readRules asks content what it makes of the types and the schema.
func (w *Webhook) readRules(r *reader) {
	var schema []byte
	if w.SchemaFile != "" {
		if schema = r.file("USHER_WEBHOOK_SCHEMA_FILE", w.SchemaFile); schema == nil {
			return
		}
	} else if !w.on() {
		return
	}
	var err error
	if w.Rules, err = content.NewRules(slices.Concat(w.Types, w.SyncTypes), schema); err != nil {
		r.problem("USHER_WEBHOOK_SCHEMA_FILE", "is %q, but should name a file with a JSON Schema: %v", w.SchemaFile, err)
	}
}

func forwardURL(r *reader, name, value string) *url.URL {
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Fragment != "" || !portNumber(cmp.Or(u.Port(), "0")) {
		holds := ""
		if start := startOf(value); start != "" {
			holds = fmt.Sprintf("is %q, but ", start)
		}
		r.problem(name, "%sshould hold the receiver's address, such as http://127.0.0.1:3000/provisioning", holds)
		return nil
	}
	return u
}

// startOf returns what can be shown of a receiver's address: not its path, which may hold a
// secret, and nothing at all if there may be a password before that.
func startOf(value string) string {
	host, end := value, ""
	if _, rest, found := strings.Cut(value, "://"); found {
		host = rest
	}
	scheme := strings.TrimSuffix(value, host)
	if i := strings.IndexAny(host, "/?#"); i >= 0 {
		host, end = host[:i], "/…"
	}
	_, port, found := strings.Cut(host, ":")
	if strings.Contains(value, "@") || found && !portNumber(port) {
		return ""
	}
	return scheme + host + end
}

func (w *Webhook) checkSecrets(r *reader) {
	r.keys("USHER_WEBHOOK_TOKEN", w.Token, false)
	if !httpguts.ValidHeaderFieldName(w.HMACHeader) {
		r.invalid("USHER_WEBHOOK_HMAC_HEADER", "the name of a header, such as X-Signature")
	}
	switch w.HMACScheme {
	case "body":
	case "standard":
		w.checkStandard(r)
	default:
		r.invalid("USHER_WEBHOOK_HMAC_SCHEME", "body or standard")
	}
	r.signSecret("USHER_WEBHOOK_SIGN_SECRET", w.SignSecret)
}

// checkStandard checks the Standard Webhooks scheme, which has its own form of a key, and one
// algorithm.
func (w *Webhook) checkStandard(r *reader) {
	if w.HMAC.Name != "sha256" {
		r.problem("USHER_WEBHOOK_HMAC_ALGORITHM", "is %q, but should be sha256, as USHER_WEBHOOK_HMAC_SCHEME is standard", w.HMAC.Name)
	}
	if w.HMACSecret == nil {
		if w.on() {
			r.problem("USHER_WEBHOOK_HMAC_SCHEME", "is standard, but USHER_WEBHOOK_HMAC_SECRET is not set")
		}
		return
	}
	if _, err := signature.ParseKey(w.HMACSecret.Get()); err != nil {
		r.problem("USHER_WEBHOOK_HMAC_SECRET", "should hold whsec_ and the key in base64, as USHER_WEBHOOK_HMAC_SCHEME is standard")
	}
}

func (w *Webhook) checkTLS(r *reader) {
	const certName, keyName = "USHER_WEBHOOK_TLS_CERT_FILE", "USHER_WEBHOOK_TLS_KEY_FILE"
	if (w.TLSCertFile == "") != (w.TLSKeyFile == "") {
		r.problem(certName, "and %s should be set both, or neither", keyName)
	} else if w.TLSCertFile != "" {
		cert, key := r.file(certName, w.TLSCertFile), r.file(keyName, w.TLSKeyFile)
		if _, err := tls.X509KeyPair(cert, key); err != nil && cert != nil && key != nil {
			r.problem(certName, "and %s should hold a certificate and its key in PEM: %v (they are %q and %q)", keyName, err, w.TLSCertFile, w.TLSKeyFile)
		}
	}
	switch {
	case w.TLSClientCA == "":
	case w.TLSCertFile == "" && w.TLSKeyFile == "":
		r.problem("USHER_WEBHOOK_TLS_CLIENT_CA_FILE", "is set, but client certificates need TLS: set USHER_WEBHOOK_TLS_CERT_FILE and USHER_WEBHOOK_TLS_KEY_FILE too")
	default:
		r.certificates("USHER_WEBHOOK_TLS_CLIENT_CA_FILE", w.TLSClientCA)
	}
}

func (w *Webhook) checkInbox(r *reader) {
	if w.Inbox != "" {
		var err error
		if w.InboxAddress, err = inbox.ParseAddress(w.Inbox); err != nil {
			w.InboxAddress = nil
			// The address may hold a password, so it is not shown.
			r.problem("USHER_WEBHOOK_INBOX", "can't be used: %v; it should hold file:/path, such as file:/var/lib/usher/inbox.db, or postgres://user@host/database", err)
		}
	}
	if w.InboxPassword != nil && w.InboxAddress != nil {
		switch {
		case !w.InboxAddress.Shared():
			r.problem("USHER_WEBHOOK_INBOX_PASSWORD", "is set, but is only for a database: USHER_WEBHOOK_INBOX should then hold postgres://user@host/database")
		case w.InboxAddress.HasPassword():
			r.problem("USHER_WEBHOOK_INBOX_PASSWORD", "is set, and USHER_WEBHOOK_INBOX has a password too (not shown): one of them should go")
		}
	}
	if w.InboxKeep != "all" && w.InboxKeep != "latest" {
		r.invalid("USHER_WEBHOOK_INBOX_KEEP", "all or latest")
	}
}

// SharedInbox says whether replicas share the inbox.
func (w *Webhook) SharedInbox() bool { return w.InboxAddress != nil && w.InboxAddress.Shared() }

// receiverVars are the variables of one further receiver, USHER_WEBHOOK_RECEIVERS_n_…. What is
// not given is inherited from the gate's settings.
type receiverVars struct {
	Name        string        `env:"NAME"`
	Platforms   List          `env:"PLATFORMS"`
	ForwardURL  string        `env:"FORWARD_URL"`
	SignSecret  *secret.Value `secret:"SIGN_SECRET"`
	Timeout     time.Duration `env:"TIMEOUT" above:"0"`
	Concurrency int           `env:"CONCURRENCY" above:"0"`
}

// readReceivers reads the receivers: the main one first, if there is one, then
// USHER_WEBHOOK_RECEIVERS_0_…, USHER_WEBHOOK_RECEIVERS_1_….
func (w *Webhook) readReceivers(r *reader) {
	var all []*receiver.Receiver
	if w.ForwardURL != "" {
		all = append(all, w.newReceiver(r, "USHER_WEBHOOK_", receiverVars{Name: receiver.Main, ForwardURL: w.ForwardURL}))
	}
	names := map[string]string{receiver.Main: "USHER_WEBHOOK_FORWARD_URL"}
	claims := make(map[string]string) // by platform
	for _, index := range r.indexes(receiverIndex) {
		prefix := "USHER_WEBHOOK_RECEIVERS_" + index + "_"
		c := w.readReceiver(r, prefix)
		c.Name = r.name(names, prefix, c.Name, index)
		for _, platform := range c.Platforms {
			if other, taken := claims[platform]; taken && other != prefix {
				r.problem(prefix+"PLATFORMS", "has %q, which %sPLATFORMS has too: a platform's webhooks should go to one receiver", platform, other)
			}
			claims[platform] = prefix
		}
		all = append(all, w.newReceiver(r, prefix, c))
	}
	if len(all) > 1 && w.MaxInflight > 0 && w.MaxInflight <= len(all) {
		r.invalid("USHER_WEBHOOK_MAX_INFLIGHT", "more than there are receivers: each has an equal share")
	}
	w.Receivers = receiver.NewSet(all...)
}

func (w *Webhook) readReceiver(r *reader, prefix string) (c receiverVars) {
	r.section(prefix, &c)
	r.require(prefix+"PLATFORMS", len(c.Platforms) > 0 || !w.on(), "the codes of the platforms whose webhooks go there, separated by commas")
	r.require(prefix+"FORWARD_URL", c.ForwardURL != "" || !w.on(), "the receiver's address, such as http://127.0.0.1:3000/provisioning")
	r.signSecret(prefix+"SIGN_SECRET", c.SignSecret)
	if c.SignSecret != nil {
		w.signSecrets = append(w.signSecrets, c.SignSecret)
	}
	return c
}

// newReceiver makes a receiver of its variables and of what it inherits.
func (w *Webhook) newReceiver(r *reader, prefix string, c receiverVars) *receiver.Receiver {
	to := &receiver.Receiver{
		Name: c.Name, Platforms: c.Platforms, Variable: prefix + "FORWARD_URL",
		Timeout: cmp.Or(c.Timeout, w.Timeout), Concurrency: cmp.Or(c.Concurrency, w.InboxConcurrency),
		SignSecret: cmp.Or(c.SignSecret, w.SignSecret).Getter(), Transport: receiver.NewTransport(w.MaxInflight),
	}
	if c.ForwardURL != "" {
		to.URL = forwardURL(r, to.Variable, c.ForwardURL)
	}
	return to
}
