package webhookgate

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"usher/internal/guard"
	"usher/internal/signature"
)

const tokenHeader = "X-Webhook-Token"

// checkToken looks for a shared secret in the four places where senders can put one. If the path
// has a segment for a secret, that one must be right, whatever the headers say.
func (g *Gate) checkToken(in *arrival) *answer {
	if g.cfg.Tokens == nil {
		return nil
	}
	good := g.cfg.Tokens()
	presented := []string{in.pathSecret}
	switch {
	case in.pathSecret == "":
		presented = headerSecrets(in.r, len(good))
	case len(in.pathSecret) <= 3*len(good): // some senders escape more than they must, others escape nothing
		presented = append(presented, unescaped(in.pathSecret))
	}
	if !guard.OneOf(presented, good) {
		return wrongSecret()
	}
	return nil
}

func wrongSecret() *answer {
	return reject(http.StatusUnauthorized, "the shared secret is missing or wrong").with("WWW-Authenticate", "Bearer")
}

// unescaped decodes the escapes of an address. Unlike url.PathUnescape it accepts any text, and
// leaves what is not a valid escape as it is.
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

// headerSecrets returns the secrets in the headers. Strangers send them, too, so it does not decode
// a value that is too long to be a good secret: that would cost usher more than the stranger.
func headerSecrets(r *http.Request, longest int) []string {
	presented := []string{r.Header.Get(tokenHeader), guard.Bearer(r.Header)}
	if len(r.Header.Get("Authorization")) <= len("Basic ")+base64.StdEncoding.EncodedLen(maxUser+1+longest) {
		_, password, _ := r.BasicAuth()
		presented = append(presented, password)
	}
	return presented
}

// checkSignature checks the signature over the body, in the configured scheme.
func (g *Gate) checkSignature(in *arrival, body []byte) *answer {
	if g.cfg.HMACSecret == nil {
		return nil
	}
	secret, h := g.cfg.HMACSecret(), in.r.Header
	if g.cfg.HMACStandard {
		key, err := signature.ParseKey(secret)
		if err != nil {
			g.cfg.Log.Error("webhook signatures can't be checked", "error", err)
			return reject(http.StatusUnauthorized, "signatures cannot be checked right now")
		}
		if why := signature.VerifyStandard(key, h, body, time.Now()); why != "" {
			return reject(http.StatusUnauthorized, why)
		}
		in.signedID = h.Get("webhook-id")
		return nil
	}
	if !g.cfg.HMAC.Verify(secret, h.Values(g.cfg.HMACHeader), body) {
		return reject(http.StatusUnauthorized,
			"the signature in "+g.cfg.HMACHeader+" is missing or does not fit the body")
	}
	return nil
}

// checkPage refuses what comes from a web page, if senders need no secret: a browser may have an address that is
// allowed, or a client certificate, and uses them for every page that it shows.
func (g *Gate) checkPage(in *arrival) *answer {
	hasSecret := g.cfg.Tokens != nil || g.cfg.HMACSecret != nil
	switch {
	case g.cfg.Hosts != nil && !g.cfg.Hosts.Allowed(in.r.Host):
		return reject(http.StatusMisdirectedRequest,
			"this Host is not allowed on a gate without a check of its senders: call the gate by its "+
				"address, add the name to USHER_ALLOWED_HOSTS, or set a check such as USHER_WEBHOOK_TOKEN")
	case !hasSecret && (guard.FromBrowser(in.r.Header) || guard.Navigation(in.r.Header)):
		return reject(http.StatusForbidden,
			"this comes from a web page, and the gate has no secret that only its senders know, "+
				"such as USHER_WEBHOOK_TOKEN")
	}
	return nil
}

// checkAddress finds the sender's address. If AllowCIDRs is set, it refuses an address that is not
// in it, or unknown.
func (g *Gate) checkAddress(in *arrival) *answer {
	in.From = senderAddr(in.r, g.cfg.TrustedProxies)
	if len(g.cfg.AllowCIDRs) == 0 || contains(g.cfg.AllowCIDRs, in.From) {
		return nil
	}
	return reject(http.StatusForbidden, "webhooks are not accepted from this address")
}

// senderAddr returns the address of the sender: the other end of the connection or, behind trusted
// proxies, the rightmost hop in X-Forwarded-For that is not a trusted proxy. Everything to the left
// of that hop is only the sender's claim. If all hops are trusted proxies, the leftmost is the
// sender. If the hop cannot be read, or there are too many hops, the address is unknown, and the
// result is the invalid Addr.
func senderAddr(r *http.Request, trusted []netip.Prefix) netip.Addr {
	addr := peerAddr(r)
	hops := r.Header.Values("X-Forwarded-For")
	if !contains(trusted, addr) || len(hops) == 0 {
		return addr
	}
	list := strings.Join(hops[max(0, len(hops)-maxHops-1):], ",")
	for range maxHops {
		comma := strings.LastIndexByte(list, ',')
		addr = parseHop(list[comma+1:])
		if comma < 0 || !contains(trusted, addr) {
			return addr
		}
		list = list[:comma]
	}
	return netip.Addr{}
}

// maxHops is how many trusted proxies there can be in a row. A stranger could list thousands.
const maxHops = 64

// peerAddr returns the address of the other end of the connection. A unix socket has none: the
// result is the invalid Addr.
func peerAddr(r *http.Request) netip.Addr {
	ap, _ := netip.ParseAddrPort(r.RemoteAddr)
	return plain(ap.Addr())
}

// parseHop reads an address as proxies write it: plain, in brackets, or with a port.
func parseHop(s string) netip.Addr {
	s = strings.Trim(s, " \t")
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return plain(ap.Addr())
	}
	addr, _ := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return plain(addr)
}

// plain makes addresses comparable. A dual-stack socket reports 10.0.0.1 as ::ffff:10.0.0.1,
// and no prefix contains an address with a zone.
func plain(a netip.Addr) netip.Addr {
	return a.Unmap().WithZone("")
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}
