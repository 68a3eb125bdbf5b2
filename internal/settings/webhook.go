package settings

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"usher/internal/inbox"
	"usher/internal/secret"
	"usher/webhookgate/content"
	"usher/webhookgate/signature"
)

// Webhook is the gate and its inbox. See on for what switches the gate on.
type Webhook struct {
	ForwardURL     string        `env:"USHER_WEBHOOK_FORWARD_URL"`
	Listen         string        `env:"USHER_WEBHOOK_LISTEN" envDefault:"127.0.0.1:8090"`
	Path           string        `env:"USHER_WEBHOOK_PATH" envDefault:"/webhooks"`
	Token          *secret.Value `secret:"USHER_WEBHOOK_TOKEN"`
	HMACSecret     *secret.Value `secret:"USHER_WEBHOOK_HMAC_SECRET"`
	HMACHeader     string        `env:"USHER_WEBHOOK_HMAC_HEADER" envDefault:"X-Signature"`
	HMACAlgorithm  string        `env:"USHER_WEBHOOK_HMAC_ALGORITHM" envDefault:"sha256"`
	HMACScheme     string        `env:"USHER_WEBHOOK_HMAC_SCHEME" envDefault:"body"`
	AllowCIDRs     List          `env:"USHER_WEBHOOK_ALLOW_CIDRS"`
	TrustedProxies List          `env:"USHER_WEBHOOK_TRUSTED_PROXIES"`
	TLSCertFile    string        `env:"USHER_WEBHOOK_TLS_CERT_FILE"`
	TLSKeyFile     string        `env:"USHER_WEBHOOK_TLS_KEY_FILE"`
	TLSClientCA    string        `env:"USHER_WEBHOOK_TLS_CLIENT_CA_FILE"`
	Insecure       bool          `env:"USHER_WEBHOOK_INSECURE" envDefault:"false"`
	Types          List          `env:"USHER_WEBHOOK_TYPES" envDefault:"TenantProvisioningChange"`
	SyncTypes      List          `env:"USHER_WEBHOOK_SYNC_TYPES"`
	SchemaFile     string        `env:"USHER_WEBHOOK_SCHEMA_FILE"`
	MaxBody        Size          `env:"USHER_WEBHOOK_MAX_BODY" envDefault:"1MiB"`
	DedupSize      int           `env:"USHER_WEBHOOK_DEDUP_SIZE" envDefault:"10000"`
	DedupWindow    time.Duration `env:"USHER_WEBHOOK_DEDUP_WINDOW" envDefault:"10m"`
	Timeout        time.Duration `env:"USHER_WEBHOOK_TIMEOUT" envDefault:"10s"`
	Attempts       int           `env:"USHER_WEBHOOK_ATTEMPTS" envDefault:"3"`
	MaxInflight    int           `env:"USHER_WEBHOOK_MAX_INFLIGHT" envDefault:"256"`
	SignSecret     *secret.Value `secret:"USHER_WEBHOOK_SIGN_SECRET"`

	Inbox            string        `env:"USHER_WEBHOOK_INBOX"`
	InboxAttempts    int           `env:"USHER_WEBHOOK_INBOX_ATTEMPTS" envDefault:"20"`
	InboxMaxAge      time.Duration `env:"USHER_WEBHOOK_INBOX_MAX_AGE" envDefault:"72h"`
	InboxConcurrency int           `env:"USHER_WEBHOOK_INBOX_CONCURRENCY" envDefault:"32"`
	InboxMaxBytes    Size          `env:"USHER_WEBHOOK_INBOX_MAX_BYTES" envDefault:"1GiB"`
	InboxKeep        string        `env:"USHER_WEBHOOK_INBOX_KEEP" envDefault:"all"`

	// Of an inbox on NATS.
	InboxUser      string        `env:"USHER_WEBHOOK_INBOX_USER"`
	InboxPassword  *secret.Value `secret:"USHER_WEBHOOK_INBOX_PASSWORD"`
	InboxToken     *secret.Value `secret:"USHER_WEBHOOK_INBOX_TOKEN"`
	InboxNKey      *secret.Value `secret:"USHER_WEBHOOK_INBOX_NKEY"`
	InboxCredsFile string        `env:"USHER_WEBHOOK_INBOX_CREDS_FILE"`
	InboxCAFile    string        `env:"USHER_WEBHOOK_INBOX_CA_FILE"`
	InboxCertFile  string        `env:"USHER_WEBHOOK_INBOX_CERT_FILE"`
	InboxKeyFile   string        `env:"USHER_WEBHOOK_INBOX_KEY_FILE"`

	KeepUnclaimed bool           `env:"-"` // keep webhooks of platforms without a receiver, for entitlements
	Receivers     []Receiver     `env:"-"` // that of ForwardURL, then USHER_WEBHOOK_RECEIVERS_0_…, USHER_WEBHOOK_RECEIVERS_1_…
	Schema        []byte         `env:"-"` // of SchemaFile
	Allow         []netip.Prefix `env:"-"` // of AllowCIDRs
	Trusted       []netip.Prefix `env:"-"` // of TrustedProxies
	NATS          *inbox.NATS    `env:"-"` // of Inbox, if it is on NATS

	further bool // there are USHER_WEBHOOK_RECEIVERS_n_…
}

func (w *Webhook) check(r *reader) {
	w.checkListener(r)
	// The gate compares it with the path as the sender wrote it, escapes included.
	if u, err := url.Parse(w.Path); err != nil || u.EscapedPath() != w.Path || w.Path[0] != '/' || len(w.Path) > 1 && strings.HasSuffix(w.Path, "/") {
		r.invalid("USHER_WEBHOOK_PATH", "a path such as /webhooks, escaped as in a URL, without a slash at its end")
	}
	w.checkSecrets(r)
	w.Allow = r.prefixes("USHER_WEBHOOK_ALLOW_CIDRS", w.AllowCIDRs)
	w.Trusted = r.prefixes("USHER_WEBHOOK_TRUSTED_PROXIES", w.TrustedProxies)
	w.checkTLS(r)
	w.checkTypes(r)
	w.checkSchema(r)
	r.positive("USHER_WEBHOOK_MAX_BODY", int64(w.MaxBody))
	r.positive("USHER_WEBHOOK_DEDUP_SIZE", int64(w.DedupSize))
	r.positive("USHER_WEBHOOK_ATTEMPTS", int64(w.Attempts))
	r.positive("USHER_WEBHOOK_MAX_INFLIGHT", int64(w.MaxInflight))
	w.checkInbox(r)
	w.Receivers = readReceivers(r, w)
	if w.DedupWindow < 0 {
		r.invalid("USHER_WEBHOOK_DEDUP_WINDOW", "a duration such as 10m, or 0 to turn dedup off")
	}
	if w.Timeout <= 0 {
		r.invalid("USHER_WEBHOOK_TIMEOUT", "a duration above zero, such as 10s")
	}
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
	checked := w.Token != nil || w.HMACSecret != nil || len(w.AllowCIDRs) > 0 || w.TLSClientCA != ""
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

func (w *Webhook) checkSchema(r *reader) {
	if w.SchemaFile == "" {
		return
	}
	if w.Schema = r.file("USHER_WEBHOOK_SCHEMA_FILE", w.SchemaFile); w.Schema == nil {
		return
	}
	if _, err := content.NewRules(nil, w.Schema); err != nil {
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
	for _, token := range strings.Split(w.Token.Get(), ",") {
		if w.Token != nil && strings.TrimSpace(token) == "" {
			r.problem("USHER_WEBHOOK_TOKEN", "has an empty part: it should hold one secret, or several separated by commas")
			break
		}
	}
	r.headerSafe("USHER_WEBHOOK_TOKEN", w.Token)
	if !httpguts.ValidHeaderFieldName(w.HMACHeader) {
		r.invalid("USHER_WEBHOOK_HMAC_HEADER", "the name of a header, such as X-Signature")
	}
	switch w.HMACAlgorithm {
	case "sha256", "sha512", "sha1":
	default:
		r.invalid("USHER_WEBHOOK_HMAC_ALGORITHM", "sha256, sha512 or sha1")
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
	if w.HMACAlgorithm != "sha256" {
		r.problem("USHER_WEBHOOK_HMAC_ALGORITHM", "is %q, but should be sha256, as USHER_WEBHOOK_HMAC_SCHEME is standard", w.HMACAlgorithm)
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
	r.keyPair("USHER_WEBHOOK_TLS", w.TLSCertFile, w.TLSKeyFile)
	switch {
	case w.TLSClientCA == "":
	case w.TLSCertFile == "" && w.TLSKeyFile == "":
		r.problem("USHER_WEBHOOK_TLS_CLIENT_CA_FILE", "is set, but client certificates need TLS: set USHER_WEBHOOK_TLS_CERT_FILE and USHER_WEBHOOK_TLS_KEY_FILE too")
	default:
		r.certificates("USHER_WEBHOOK_TLS_CLIENT_CA_FILE", w.TLSClientCA)
	}
}
