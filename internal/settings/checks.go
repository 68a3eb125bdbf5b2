package settings

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"usher/internal/secret"
	"usher/webhookgate/signature"
)

// secret reads the secret name, or the file that name_FILE gives.
func (r *reader) secret(name string) *secret.Value {
	value, path := r.env[name], r.env[name+"_FILE"]
	switch {
	case value != "" && path != "":
		r.problem(name, "and %s_FILE are both set, but only one of them should be", name)
		return secret.New("undecided")
	case value != "":
		if strings.TrimSpace(value) == "" {
			r.problem(name, "holds only white space, but should hold a secret")
		}
		return secret.New(value)
	case path != "":
		v, err := secret.FromFile(path)
		if err == nil {
			return v
		}
		if _, gone := os.Lstat(path); gone != nil && !filepath.IsAbs(path) && !strings.HasPrefix(path, ".") {
			r.problem(name+"_FILE", "names a file that does not exist; if it holds the secret itself (not shown), set %s instead", name)
		} else {
			r.problem(name+"_FILE", "is %q, but should name a file that holds the secret: %v%s", path, err, adviseUser(err))
		}
		r.bad[name] = true
		// A value, so that the secret is not reported as missing, too.
		return secret.New("unreadable")
	}
	return nil
}

// headerSafe makes sure that a secret that callers send in a header can be sent.
func (r *reader) headerSafe(name string, v *secret.Value) {
	s := v.Get()
	if strings.TrimSpace(s) != s || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		r.problem(name, "has white space at an end, or a control character (not shown), but should hold what can be sent in a header")
	}
}

// shortestKey is the least length of a key on a port that others can reach: they can try
// many.
const shortestKey = 16

// keys checks the keys of a port: one, or several separated by commas. The same check
// applies whenever the key's file changes.
func (r *reader) keys(name string, v *secret.Value, reachable bool) {
	if v == nil || r.bad[name] {
		return
	}
	r.headerSafe(name, v)
	if err := checkKeys(v.Get(), reachable); err != nil {
		r.problem(name, "%v", err)
	}
	if reachable { // only then: another port may have the same key, and be on loopback
		v.Require(func(keys string) error { return checkKeys(keys, true) })
	}
}

// checkKeys says what is wrong with keys, without showing them.
func checkKeys(keys string, reachable bool) error {
	for key := range strings.SplitSeq(keys, ",") {
		switch key = strings.TrimSpace(key); {
		case key == "":
			return errors.New("has an empty part (not shown): it should hold one key, or several separated by commas")
		case reachable && utf8.RuneCountInString(key) < shortestKey:
			return fmt.Errorf("holds a key (not shown) that is shorter than %d characters: on a port that others can reach, keys should be longer", shortestKey)
		}
	}
	return nil
}

// scope returns the scope names of value with one space between them. An empty list
// is a problem: a port that should have few scopes would inherit many.
func (r *reader) scope(name, value string) string {
	names := strings.Fields(value)
	if len(names) == 0 {
		r.problem(name, "holds only white space, but should hold scope names, separated by spaces")
	}
	return strings.Join(names, " ")
}

// listen checks the address of a listener, and says whether only this machine can
// reach it.
func (r *reader) listen(name, value string) (loopback, ok bool) {
	want := "host:port, such as 127.0.0.1:8080, or unix:/path"
	switch name {
	case "USHER_ADMIN_LISTEN":
		want = "host:port, such as 127.0.0.1:9095, unix:/path, or off"
	case "USHER_WEBHOOK_LISTEN":
		want = "host:port, such as 127.0.0.1:8090, unix:/path, or off"
	}
	if path, found := strings.CutPrefix(value, "unix:"); found {
		most := len(syscall.RawSockaddrUnix{}.Path) - 1
		switch {
		case path == "":
			r.invalid(name, want)
		case path[0] == '@':
			r.problem(name, "is %q, but should hold the path of a file: an abstract socket has no mode that keeps other users out", value)
		case len(path) > most:
			r.invalid(name, fmt.Sprintf("%s; a socket's path has at most %d bytes, and this one %d", want, most, len(path)))
		}
		return true, !r.bad[name]
	}
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		r.invalid(name, want)
		return false, false
	}
	if !portNumber(port) {
		r.invalid(name, want+"; the port is a number up to 65535")
		return false, false
	}
	return loopbackHost(host), true
}

func portNumber(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

func loopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// prefixes reads networks; a single address is a network of one.
func (r *reader) prefixes(name string, values List) []netip.Prefix {
	var out []netip.Prefix
	for _, value := range values {
		p, err := netip.ParsePrefix(value)
		if addr, addrErr := netip.ParseAddr(value); addrErr == nil {
			p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			r.problem(name, "has %q, but should hold networks such as 192.0.2.0/24, separated by commas", value)
			return nil
		}
		out = append(out, p)
	}
	return out
}

func (r *reader) file(name, path string) []byte {
	data, err := os.ReadFile(path)
	switch {
	case err != nil && mayBeSecret(path):
		r.invalid(name, "the name of a file")
		return nil
	case err != nil:
		r.problem(name, "is %q, but should name a file that can be read: %v%s", path, err, adviseUser(err))
		return nil
	}
	return data
}

func (r *reader) certificates(name, path string) []byte {
	data := r.file(name, path)
	if data != nil && !x509.NewCertPool().AppendCertsFromPEM(data) {
		r.problem(name, "is %q, but should name a file with certificates in PEM", path)
	}
	return data
}

// keyPair checks the files of prefix_CERT_FILE and prefix_KEY_FILE, and says whether they
// are a certificate and its key.
func (r *reader) keyPair(prefix, certFile, keyFile string) bool {
	certName, keyName := prefix+"_CERT_FILE", prefix+"_KEY_FILE"
	if certFile == "" || keyFile == "" {
		if certFile != keyFile {
			r.problem(certName, "and %s should be set both, or neither", keyName)
		}
		return false
	}
	cert, key := r.file(certName, certFile), r.file(keyName, keyFile)
	if cert == nil || key == nil {
		return false
	}
	_, err := tls.X509KeyPair(cert, key)
	if err != nil {
		r.problem(certName, "and %s should hold a certificate and its key in PEM: %v (they are %q and %q)", keyName, err, certFile, keyFile)
	}
	return err == nil
}

// signSecret makes sure that deliveries can be signed.
func (r *reader) signSecret(name string, v *secret.Value) {
	if v == nil {
		return
	}
	if _, err := signature.ParseKey(v.Get()); err != nil {
		r.problem(name, "should hold whsec_ and the key in base64")
	}
}

// shortName says whether a name can be used in logs, metrics and commands.
func shortName(name string) bool {
	return !strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || c == '"' || c == '\\' })
}
