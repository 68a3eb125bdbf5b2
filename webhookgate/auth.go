package webhookgate

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/netip"
	"strings"

	"usher/internal/guard"
)

const tokenHeader = "X-Webhook-Token"

// checkPath accepts a POST to the gate's path. If tokens are configured, the path may have one more
// segment, which it returns.
func (c *Config) checkPath(r *http.Request) (secret string, rejection *answer) {
	wrongMethod := reject(http.StatusMethodNotAllowed, "webhooks are sent with POST").with("Allow", http.MethodPost)
	if guard.Refused(r.Method) {
		return "", wrongMethod
	}
	if path := guard.SentPath(r.URL); path != c.Path {
		below := false
		secret, below = strings.CutPrefix(path, strings.TrimSuffix(c.Path, "/")+"/")
		if !below || strings.Contains(secret, "/") || c.Tokens == nil {
			return "", reject(http.StatusNotFound, "there is nothing at this path")
		}
		if secret == "" {
			return "", wrongToken() // the path is "{path}/"
		}
	}
	if r.Method != http.MethodPost {
		return "", wrongMethod
	}
	return secret, nil
}

// checkToken looks for a token in the four places where senders can put one. If the path
// has a segment for a secret, that one must be right, whatever the headers say.
func (c *Config) checkToken(r *http.Request, pathSecret string) *answer {
	if c.Tokens == nil {
		return nil
	}
	good := c.Tokens()
	presented := []string{pathSecret}
	switch {
	case pathSecret == "":
		presented = headerSecrets(r, len(good))
	case len(pathSecret) <= 3*len(good): // some senders escape more than they must, others escape nothing
		presented = append(presented, unescaped(pathSecret))
	}
	if !guard.OneOf(presented, good) {
		return wrongToken()
	}
	return nil
}

func wrongToken() *answer {
	return reject(http.StatusUnauthorized, "the token is missing or wrong").with("WWW-Authenticate", "Bearer")
}

// unescaped decodes the escapes of an address. Unlike url.PathUnescape it leaves what is no valid escape as it is.
func unescaped(s string) string {
	before, after, found := strings.Cut(s, "%")
	if !found {
		return s
	}
	parts := []string{before}
	for part := range strings.SplitSeq(after, "%") {
		if c, err := hex.DecodeString(part[:min(len(part), 2)]); err == nil && len(c) == 1 {
			parts = append(parts, string(c), part[2:])
		} else {
			parts = append(parts, "%", part)
		}
	}
	return strings.Join(parts, "")
}

// maxUser is how long the user name of Basic auth may be; usher does not use it.
const maxUser = 1 << 10

// headerSecrets returns the secrets in the headers. It does not decode a value that is too long to be a good secret:
// that would cost usher more than the stranger who sends it.
func headerSecrets(r *http.Request, longest int) []string {
	presented := []string{r.Header.Get(tokenHeader), guard.Bearer(r.Header)}
	if len(r.Header.Get("Authorization")) <= len("Basic ")+base64.StdEncoding.EncodedLen(maxUser+1+longest) {
		_, password, _ := r.BasicAuth()
		presented = append(presented, password)
	}
	return presented
}

// checkSignature checks the signature over the body.
func (c *Config) checkSignature(r *http.Request, body []byte) *answer {
	if c.SigningKeys == nil || c.HMAC.Verify(c.SigningKeys(), r.Header.Values(c.SignatureHeader), body) {
		return nil
	}
	return reject(http.StatusUnauthorized, "the signature in "+c.SignatureHeader+" is missing or does not fit the body")
}

// checkPage refuses what comes from a web page, if senders need no secret: a browser on this machine can reach the gate
// for every page that it shows.
func (c *Config) checkPage(r *http.Request) *answer {
	switch hasSecret := c.Tokens != nil || c.SigningKeys != nil; {
	case c.Hosts != nil && !c.Hosts.Allowed(r.Host):
		return reject(http.StatusMisdirectedRequest,
			"this Host is not allowed on a gate without a check of its senders: call the gate by its "+
				"address, add the name to USHER_ALLOWED_HOSTS, or set a check such as USHER_WEBHOOK_TOKEN")
	case !hasSecret && (guard.FromBrowser(r.Header) || guard.Navigation(r.Header)):
		return reject(http.StatusForbidden, "this comes from a web page, and the gate has no secret that only its "+
			"senders know, such as USHER_WEBHOOK_TOKEN")
	}
	return nil
}

// peerAddr returns the address of the other end of the connection. A unix socket has none: the
// result is the invalid Addr. A dual-stack socket reports 10.0.0.1 as ::ffff:10.0.0.1.
func peerAddr(r *http.Request) netip.Addr {
	ap, _ := netip.ParseAddrPort(r.RemoteAddr)
	return ap.Addr().Unmap().WithZone("")
}
