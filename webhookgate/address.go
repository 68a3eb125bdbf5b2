package webhookgate

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// checkAddress finds the sender's address. If addresses are checked, it refuses one that is
// not allowed or not known.
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

// senderAddr returns the peer's address. Behind trusted proxies it is the rightmost hop in
// X-Forwarded-For that is not a trusted proxy: everything to the left of it is only the
// sender's claim. If all hops are trusted the leftmost is the sender. If the hop that counts
// cannot be read, the address is unknown. To skip it would mean to believe a hop further left
// that no trusted proxy has written.
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

// peerAddr returns the address of the other end; a unix socket has none.
func peerAddr(r *http.Request) (netip.Addr, bool) {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	return plain(ap.Addr()), err == nil
}

// parseHop reads an address in the forms that proxies write: plain, in brackets, with a port.
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

// plain makes addresses comparable. A dual-stack socket reports 10.0.0.1 as ::ffff:10.0.0.1,
// and no prefix contains an address with a zone.
func plain(a netip.Addr) netip.Addr {
	return a.Unmap().WithZone("")
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// unmapped turns prefixes of mapped addresses (::ffff:10.0.0.0/104) into prefixes of the
// addresses that plain returns. Otherwise they would contain none of them.
func unmapped(prefixes []netip.Prefix) []netip.Prefix {
	out := slices.Clone(prefixes)
	for i, p := range out {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			out[i] = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
	}
	return out
}
