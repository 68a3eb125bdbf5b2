package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"usher/internal/text"
	"usher/webhookgate/signature"
)

// Problems is everything that is wrong with the settings, one line each.
type Problems []string

func (p Problems) Error() string { return strings.Join(p, "\n") }

// reader reads settings and gathers what is wrong with them.
type reader struct {
	env      map[string]string
	problems Problems
	bad      map[string]bool // variables with a problem: only the first one is reported
}

func newReader(environ []string) *reader {
	return &reader{env: Environment(environ), bad: make(map[string]bool)}
}

// Environment returns the variables of environ, which is like os.Environ's, by name. If a name
// occurs twice, the last one counts. An empty variable counts as not set. Windows keeps a
// current folder for each drive in variables such as =C:, which have no name.
func Environment(environ []string) map[string]string {
	env := make(map[string]string)
	for _, kv := range environ {
		switch name, value, _ := strings.Cut(kv, "="); {
		case name == "":
		case value != "":
			env[name] = value
		default:
			delete(env, name)
		}
	}
	return env
}

func (r *reader) problem(name, format string, args ...any) {
	if r.bad[name] {
		return
	}
	r.bad[name] = true
	r.problems = append(r.problems, text.Visible(name+" "+fmt.Sprintf(format, args...))) // one line, also if an error quotes line breaks
}

// invalid reports a variable that holds the wrong thing. It must not be a secret.
func (r *reader) invalid(name, want string) {
	if mayBeSecret(r.env[name]) {
		r.problem(name, "should hold %s (what it holds is not shown: there may be a secret in it)", want)
		return
	}
	r.problem(name, "is %q, but should hold %s", r.env[name], want)
}

// mayBeSecret recognises an address with a password, a query or a fragment, a signing secret and a
// private key, also where they were put in the wrong place.
func mayBeSecret(value string) bool {
	return strings.ContainsAny(strings.TrimRight(value, "?#"), "@?#") || strings.Contains(value, "whsec_") || strings.Contains(value, "-----BEGIN")
}

func (r *reader) require(name string, ok bool, want string) {
	if !ok {
		r.problem(name, "is not set, but should hold %s", want)
	}
}

// section reads the variables of one struct; its fields' names start with prefix. What a field's type
// or its tag (above) demands is checked here.
func (r *reader) section(prefix string, dst any) {
	// env takes a variable whose name is the prefix for each field without a tag.
	environment := maps.Clone(r.env)
	delete(environment, prefix)
	err := env.ParseWithOptions(dst, env.Options{Environment: environment, Prefix: prefix, FuncMap: parsers})
	if all, ok := errors.AsType[env.AggregateError](err); ok {
		for _, err := range all.Errors {
			parse, ok := errors.AsType[env.ParseError](err)
			if !ok {
				panic(err) // a mistake in the struct's tags
			}
			field, _ := reflect.TypeOf(dst).Elem().FieldByName(parse.Name)
			r.invalid(prefix+field.Tag.Get("env"), wanted[field.Type])
		}
	}
	v := reflect.ValueOf(dst).Elem()
	for i := range v.NumField() {
		field, tag := v.Field(i), v.Type().Field(i).Tag
		if name := tag.Get("secret"); name != "" {
			field.Set(reflect.ValueOf(r.secret(prefix + name)))
		}
		name := prefix + tag.Get("env")
		if tag.Get("above") == "0" && r.env[name] != "" && field.Int() <= 0 {
			r.invalid(name, "a value above zero: "+wanted[field.Type()])
		}
	}
}

// parsers read the types that cannot read themselves. No duration is negative.
var parsers = map[reflect.Type]env.ParserFunc{
	reflect.TypeFor[signature.HMAC](): func(s string) (any, error) { return signature.ByName(s) },
	reflect.TypeFor[[]netip.Prefix](): func(s string) (any, error) { return prefixes(s) },
	reflect.TypeFor[time.Duration](): func(s string) (any, error) {
		d, err := time.ParseDuration(s)
		if d < 0 {
			err = errors.New("negative")
		}
		return d, err
	},
}

// wanted says what a variable of a type should hold.
var wanted = map[reflect.Type]string{
	reflect.TypeFor[bool]():           "true or false",
	reflect.TypeFor[int]():            "a whole number, up to 2147483647",
	reflect.TypeFor[time.Duration]():  "a duration that is not negative, such as 90s or 10m",
	reflect.TypeFor[List]():           "a list, separated by commas",
	reflect.TypeFor[slog.Level]():     "debug, info, warn or error",
	reflect.TypeFor[signature.HMAC](): "sha256, sha512 or sha1",
	reflect.TypeFor[[]netip.Prefix](): "networks such as 192.0.2.0/24, separated by commas",
	reflect.TypeFor[Size]():           "a size in bytes, or with KiB, MiB or GiB, such as 1MiB",
}

// List is a setting of several values, separated by commas. A list that is set
// but empty is an error: the check that it configures would be off.
type List []string

func (l *List) UnmarshalText(text []byte) error {
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

// Size is a number of bytes.
type Size int64

func (s *Size) UnmarshalText(text []byte) error {
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
	*s = Size(n * unit)
	return nil
}

// prefixes reads networks; a single address is a network of one. A network of mapped addresses
// (::ffff:10.0.0.0/104) becomes one of the addresses themselves, which is how the gate sees them.
func prefixes(text string) ([]netip.Prefix, error) {
	var values List
	err := values.UnmarshalText([]byte(text))
	var all []netip.Prefix
	for _, value := range values {
		p, notPrefix := netip.ParsePrefix(value)
		if addr, notAddr := netip.ParseAddr(value); notAddr == nil {
			p = netip.PrefixFrom(addr, addr.BitLen())
		} else if notPrefix != nil {
			return nil, notPrefix
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		all = append(all, p)
	}
	return all, err
}
