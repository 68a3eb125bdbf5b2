package webhookgate

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// checkAddress finds out whose address the webhook comes from, and refuses it
// when addresses are checked and this one is not among them, or can't be told.
func (g *Gate) checkAddress(v *visit) *answer {
	from, ok := senderAddr(v.r, g.cfg.TrustedProxies)
	if ok {
		v.from = from
	}
	if len(g.cfg.AllowCIDRs) == 0 || ok && contains(g.cfg.AllowCIDRs, from) {
		return nil
	}
	return reject(http.StatusForbidden, "webhooks are not accepted from this address")
}

// senderAddr is the peer's address, or, behind trusted proxies, the rightmost
// hop in X-Forwarded-For that is not one of them: what stands to its left is the
// sender's own word. When all hops are trusted the leftmost is the sender. A hop
// that can't be read, where it would have counted, makes the address unknown;
// skipping it would believe a hop further left that nobody vouches for.
func senderAddr(r *http.Request, trusted []netip.Prefix) (netip.Addr, bool) {
	addr, ok := peerAddr(r)
	if !ok || !contains(trusted, addr) {
		return addr, ok
	}
	for _, line := range slices.Backward(r.Header.Values("X-Forwarded-For")) {
		for _, hop := range slices.Backward(strings.Split(line, ",")) {
			addr, ok = parseHop(hop)
			if !ok || !contains(trusted, addr) {
				return addr, ok
			}
		}
	}
	return addr, true
}

// peerAddr is the other end of the connection; a unix socket's has none.
func peerAddr(r *http.Request) (netip.Addr, bool) {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	return plain(ap.Addr()), err == nil
}

// parseHop reads an address as proxies write it: bare, in brackets, or with a
// port.
func parseHop(s string) (netip.Addr, bool) {
	s = strings.Trim(s, " \t")
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return plain(ap.Addr()), true
	}
	if inner, ok := strings.CutPrefix(s, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); !ok || !strings.Contains(inner, ":") {
			return netip.Addr{}, false
		}
		s = inner
	}
	addr, err := netip.ParseAddr(s)
	return plain(addr), err == nil
}

// plain makes addresses comparable: 10.0.0.1 is the same sender when a
// dual-stack socket calls it ::ffff:10.0.0.1, and no prefix contains an address
// with a zone.
func plain(a netip.Addr) netip.Addr {
	return a.Unmap().WithZone("")
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// unmapped writes prefixes of mapped addresses (::ffff:10.0.0.0/104) as those of
// the addresses that plain makes of them, which they would else never contain.
func unmapped(prefixes []netip.Prefix) []netip.Prefix {
	out := slices.Clone(prefixes)
	for i, p := range out {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			out[i] = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
	}
	return out
}
