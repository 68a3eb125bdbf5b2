package command

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/caarlos0/env/v11"

	"usher/internal/secret"
)

// problems is everything that is wrong with the settings, one line each.
type problems []string

func (p problems) Error() string { return strings.Join(p, "\n") }

// reader reads settings and gathers what is wrong with them.
type reader struct {
	env      map[string]string
	problems problems
	bad      map[string]bool // variables with a problem: no second one about the same
}

// newReader takes an environment as os.Environ gives it; of a name that is there
// twice the last counts. An empty variable counts as not set. What has no name is
// passed over: Windows keeps a current folder for each drive in variables such as
// =C:, and a field without a name would be taken for it.
func newReader(environ []string) *reader {
	r := &reader{env: make(map[string]string), bad: make(map[string]bool)}
	for _, kv := range environ {
		switch name, value, _ := strings.Cut(kv, "="); {
		case name == "":
		case value != "":
			r.env[name] = value
		default:
			delete(r.env, name)
		}
	}
	return r
}

func (r *reader) problem(name, format string, args ...any) {
	if r.bad[name] {
		return
	}
	r.bad[name] = true
	r.problems = append(r.problems, visible(name+" "+fmt.Sprintf(format, args...))) // one line, whatever an error quotes
}

// invalid says that name, which is no secret, holds the wrong thing.
func (r *reader) invalid(name, want string) {
	if strings.Contains(r.env[name], "@") {
		r.problem(name, "should hold %s (what it holds is not shown: there may be a password in it)", want)
		return
	}
	r.problem(name, "is %q, but should hold %s", r.env[name], want)
}

func (r *reader) require(name string, ok bool, want string) {
	if !ok {
		r.problem(name, "is not set, but should hold %s", want)
	}
}

func (r *reader) positive(name string, n int64) {
	if n <= 0 {
		r.invalid(name, "a number above zero")
	}
}

// section reads the variables of one struct; its fields' names start with prefix.
func (r *reader) section(prefix string, dst any) {
	err := env.ParseWithOptions(dst, env.Options{Environment: r.env, Prefix: prefix})
	var all env.AggregateError
	if errors.As(err, &all) {
		for _, err := range all.Errors {
			var parse env.ParseError
			if !errors.As(err, &parse) {
				panic(err) // a mistake in the struct's tags
			}
			field, _ := reflect.TypeOf(dst).Elem().FieldByName(parse.Name)
			r.invalid(prefix+field.Tag.Get("env"), wanted[field.Type])
		}
	}
	v := reflect.ValueOf(dst).Elem()
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("secret"); name != "" {
			v.Field(i).Set(reflect.ValueOf(r.secret(prefix + name)))
		}
	}
}

// wanted says what a variable of a type should hold.
var wanted = map[reflect.Type]string{
	reflect.TypeFor[bool]():          "true or false",
	reflect.TypeFor[int]():           "a whole number, up to 2147483647",
	reflect.TypeFor[time.Duration](): "a duration, such as 90s or 10m",
	reflect.TypeFor[list]():          "a list, separated by commas",
	reflect.TypeFor[size]():          "a size in bytes, or with KiB, MiB or GiB, such as 1MiB",
}

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
		// Something, so that what builds on it is not reported missing as well.
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

// shortestKey is the least that a key of a port has which others can reach: they can try
// many.
const shortestKey = 16

// keys checks what callers of a port must know: one key, or several separated by commas.
// What its file holds later is held to the same.
func (r *reader) keys(name string, v *secret.Value, reachable bool) {
	if v == nil || r.bad[name] {
		return
	}
	r.headerSafe(name, v)
	if err := checkKeys(v.Get(), reachable); err != nil {
		r.problem(name, "%v", err)
	}
	if reachable { // another port may have the same key, and not be
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

// scope returns the scope names of value with one space between them. None at all is
// a problem: a port that is to have few would inherit many.
func (r *reader) scope(name, value string) string {
	names := strings.Fields(value)
	if len(names) == 0 {
		r.problem(name, "holds only white space, but should hold scope names, separated by spaces")
	}
	return strings.Join(names, " ")
}

// listen checks the address of a listener, and says whether it is reached from
// this machine alone.
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
func (r *reader) prefixes(name string, values list) []netip.Prefix {
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
	if err != nil {
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

// keyPair checks the files of prefix_CERT_FILE and prefix_KEY_FILE, and says whether
// there are two that fit.
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

// list is a setting of several values, separated by commas. One that is set but has
// none is an error: a check that it was to configure would be off.
type list []string

func (l *list) UnmarshalText(text []byte) error {
	*l = nil
	for part := range strings.SplitSeq(string(text), ",") {
		if part = strings.TrimSpace(part); part != "" {
			*l = append(*l, part)
		}
	}
	if *l == nil {
		return errors.New("an empty list")
	}
	return nil
}

// size is a number of bytes.
type size int64

func (s *size) UnmarshalText(text []byte) error {
	number, unit := string(text), int64(1)
	for suffix, bytes := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if n, ok := strings.CutSuffix(number, suffix); ok {
			number, unit = n, bytes
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n < 0 || n > (1<<40)/unit {
		return errors.New("not a size")
	}
	*s = size(n * unit)
	return nil
}
