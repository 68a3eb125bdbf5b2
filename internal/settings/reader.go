package settings

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"usher/internal/terminal"
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
	r.problems = append(r.problems, terminal.Visible(name+" "+fmt.Sprintf(format, args...))) // one line, also if an error quotes line breaks
}

// invalid reports a variable that holds the wrong thing. It must not be a secret.
func (r *reader) invalid(name, want string) {
	if mayBeSecret(r.env[name]) {
		r.problem(name, "should hold %s (what it holds is not shown: there may be a password in it)", want)
		return
	}
	r.problem(name, "is %q, but should hold %s", r.env[name], want)
}

// mayBeSecret recognises an address with a password, a signing secret and a private key, also
// where they were put in the wrong place.
func mayBeSecret(value string) bool {
	return strings.Contains(value, "@") || strings.Contains(value, "whsec_") || strings.Contains(value, "-----BEGIN")
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
	// env takes a variable whose name is the prefix for each field without a tag.
	environment := maps.Clone(r.env)
	delete(environment, prefix)
	err := env.ParseWithOptions(dst, env.Options{Environment: environment, Prefix: prefix})
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
	reflect.TypeFor[List]():          "a list, separated by commas",
	reflect.TypeFor[Size]():          "a size in bytes, or with KiB, MiB or GiB, such as 1MiB",
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
