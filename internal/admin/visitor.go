package admin

import (
	"net"
	"net/http"

	"usher/internal/guard"
	"usher/internal/secret"
)

// visitor is who sends a request.
type visitor struct {
	name  string // of the token; may be empty
	looks bool   // and may not act
}

// visitor returns whose token a request has, and whether it has one, or needs none. It always
// compares all of them, so that the time it takes says nothing.
func (h *Handler) visitor(r *http.Request) (v visitor, known bool) {
	if h.cfg.Token == nil {
		return v, true
	}
	bearer, _ := guard.Bearer(r.Header)
	_, password, _ := r.BasicAuth()
	compare := func(list func() string, looks bool) {
		if list == nil {
			return
		}
		tokens, _ := secret.Tokens(list()) // none lets nobody in
		for _, t := range tokens {
			asBearer, asPassword := guard.Equal(bearer, t.Value), guard.Equal(password, t.Value)
			if asBearer || asPassword {
				v, known = visitor{t.Name, looks}, true
			}
		}
	}
	compare(h.cfg.ReadToken, true)
	compare(h.cfg.Token, false)
	return v, known
}

type visitorKey struct{}

// visitorOf returns who sent a request that this port has let in.
func visitorOf(r *http.Request) visitor {
	v, _ := r.Context().Value(visitorKey{}).(visitor)
	return v
}

// Who says who sent a request that this port has let in: the name of the token or, if it has none,
// the address.
func Who(r *http.Request) string {
	if name := visitorOf(r).name; name != "" {
		return name
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}
