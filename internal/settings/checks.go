package settings

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"usher/internal/secret"
	"usher/internal/signature"
)

// checkSecret checks a secret now, and whenever its file changes. It may be nil: then it is not set.
func (r *reader) checkSecret(name string, v *secret.Value, problem func(string) error) {
	if v == nil || r.bad[name] {
		return
	}
	if err := problem(v.Get()); err != nil {
		r.problem(name, "%v", err)
	}
	v.Require(problem)
}

// checkTokens checks tokens of the admin port, which may have names, and returns them.
func (r *reader) checkTokens(name string, v *secret.Value, reachable bool) []secret.Token {
	r.checkSecret(name, v, func(list string) error {
		all, err := secret.Tokens(list)
		for _, t := range all {
			err = cmp.Or(err, lengthProblem("token", t.Value, reachable))
		}
		return cmp.Or(headerProblem(list), err)
	})
	if v == nil || r.bad[name] {
		return nil
	}
	all, _ := secret.Tokens(v.Get())
	return all
}

// checkKeys checks the keys or tokens of a port: one, or several separated by commas.
func (r *reader) checkKeys(name string, v *secret.Value, reachable bool) {
	r.checkSecret(name, v, func(keys string) error {
		return cmp.Or(headerProblem(keys), partsProblem(keys, reachable))
	})
}

// headerProblem says why a secret that callers send in a header cannot be sent.
func headerProblem(s string) error {
	if strings.TrimSpace(s) != s || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return errors.New("has white space at an end, or a control character (not shown), but should hold " +
			"what can be sent in a header")
	}
	return nil
}

// partsProblem says what is wrong with secrets that are separated by commas, without showing them.
func partsProblem(keys string, reachable bool) (err error) {
	for key := range strings.SplitSeq(keys, ",") {
		key = strings.TrimSpace(key)
		if key == "" {
			return errors.New("has an empty part (not shown): it should hold one secret, " +
				"or several separated by commas")
		}
		err = cmp.Or(err, lengthProblem("key", key, reachable))
	}
	return err
}

// shortestKey is the minimum length of a key or a token on a port that other machines can
// reach, because they can guess.
const shortestKey = 16

func lengthProblem(what, value string, reachable bool) error {
	if reachable && utf8.RuneCountInString(value) < shortestKey {
		return fmt.Errorf("holds a %s (not shown) that is shorter than %d characters: on a port that others "+
			"can reach, %ss should be longer", what, shortestKey, what)
	}
	return nil
}

// signingKeysProblem says what is wrong with keys of Standard Webhooks.
func signingKeysProblem(keys string) error {
	if _, err := signature.ParseKeys(keys); err != nil {
		return errors.New("should hold whsec_ and the key in base64; " +
			"several, separated by commas, while you rotate them")
	}
	return nil
}

// cleanScope returns the scopes in value with one space between them. A value of nothing but white space is a
// problem: a port that should have few scopes would inherit all of the main port's.
func (r *reader) cleanScope(name, value string) string {
	names := strings.Fields(value)
	if len(names) == 0 {
		r.problem(name, "holds only white space, but should hold scope names, separated by spaces")
	}
	return strings.Join(names, " ")
}

// checkListen checks the address of a listener, and reports whether other machines can reach it.
func (r *reader) checkListen(name, value string) (reachable bool) {
	want := "host:port, such as 127.0.0.1:8080, or unix:/path"
	if name == "USHER_LISTEN" || name == "USHER_ADMIN_LISTEN" || name == "USHER_WEBHOOK_LISTEN" {
		want = "host:port, such as " + Default(name) + ", unix:/path, or off"
		if value == "off" {
			return false
		}
	}
	if path, found := strings.CutPrefix(value, "unix:"); found {
		if path == "" || path[0] == '@' { // an abstract socket has no mode that keeps other users out
			r.invalid(name, want)
		}
		return false
	}
	host, port, err := net.SplitHostPort(value)
	switch {
	case err != nil:
		r.invalid(name, want)
	case !isPortNumber(port):
		r.invalid(name, want+"; the port is a number up to 65535")
	default:
		return !isLoopback(host)
	}
	return false
}

func isPortNumber(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// readFile reads the file that a variable names, with secret.ReadFile, or with secret.ReadRegular if usher reads
// it again later.
func (r *reader) readFile(name, path string, read func(string) ([]byte, error)) []byte {
	data, err := read(path)
	switch {
	case err != nil && mayBeSecret(path):
		r.invalid(name, "the name of a file")
		return nil
	case err != nil:
		r.problem(name, "is %q, but should name a file that can be read: %v", path, err)
		return nil
	}
	return data
}

// uniqueName returns the name of a further port or receiver, which by default is its index. It reports a name
// that others have; taken has their names. Names appear in logs, metrics and commands.
func (r *reader) uniqueName(taken map[string]string, prefix, given, index string) string {
	name := cmp.Or(given, index)
	if strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || c == '"' || c == '\\' }) {
		r.invalid(prefix+"NAME", "a short name without white space")
	}
	if other, ok := taken[name]; ok {
		r.problem(prefix+"NAME", "is %q, but should differ from the name of %s", name, other)
	}
	taken[name] = prefix + "…"
	return name
}

// isHTTP reports whether an address is one of a host, for HTTP.
func isHTTP(u *url.URL) bool {
	return (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
}
