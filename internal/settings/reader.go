package settings

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"usher/internal/secret"
	"usher/internal/signature"
	"usher/internal/text"
)

// Problems is everything that is wrong with the settings, one line each.
type Problems []string

func (p Problems) Error() string { return strings.Join(p, "\n") }

// reader reads settings and collects their problems.
type reader struct {
	env      map[string]string
	problems Problems
	bad      map[string]bool // the variables that have a problem; only the first of each is reported
	files    []*secret.Value // the secrets that are in files
	secrets  []*secret.Value // all secrets
}

func newReader(environ []string) *reader {
	return &reader{env: Environment(environ), bad: make(map[string]bool)}
}

// Environment returns the variables of environ, which has the form of os.Environ, by name. If a name occurs
// twice the last one counts. An empty variable counts as not set. Variables without a name are ignored:
// Windows has them (=C:=C:\folder) for the current folder of each drive.
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
	// Visible makes one line of an error that quotes line breaks
	r.problems = append(r.problems, text.Visible(name+" "+fmt.Sprintf(format, args...)))
}

// invalid reports a variable whose value is wrong, and shows the value. The variable must not be a secret.
func (r *reader) invalid(name, want string) {
	if mayBeSecret(r.env[name]) {
		r.problem(name, "should hold %s (what it holds is not shown: there may be a secret in it)", want)
		return
	}
	r.problem(name, "is %q, but should hold %s", r.env[name], want)
}

// mayBeSecret recognises values that must not be shown, because a user may have put a secret into the wrong
// variable: an address with a password, a query or a fragment, a signing secret, a private key.
func mayBeSecret(value string) bool {
	return strings.ContainsAny(strings.TrimRight(value, "?#"), "@?#") ||
		strings.Contains(value, "whsec_") ||
		strings.Contains(value, "-----BEGIN")
}

func (r *reader) require(name string, ok bool, want string) {
	if !ok {
		r.problem(name, "is not set, but should hold %s", want)
	}
}

// read reads variables into their fields. index replaces the n in the names of a further port or receiver.
func (r *reader) read(variables []Variable, index string) {
	for _, v := range variables {
		name := strings.Replace(v.Name, "_n_", "_"+index+"_", 1)
		if field, ok := v.field.(**secret.Value); ok {
			*field = r.secret(name)
			continue
		}
		if value := cmp.Or(r.env[name], v.Default()); value != "" {
			if want, err := parse(value, v.field); err != nil {
				r.invalid(name, want)
			}
		}
	}
}

// parse sets a field to what value says. want says what a value of the field's type is. Package env reads variables into
// structs, so it gets a struct with one field.
func parse(value string, field any) (want string, err error) {
	if above, ok := field.(positive); ok {
		want, err = parse(value, above.field)
		if err == nil && reflect.ValueOf(above.field).Elem().Int() <= 0 {
			err = strconv.ErrRange
		}
		return want + ", above zero", err
	}
	to := reflect.ValueOf(field).Elem()
	one := reflect.New(reflect.StructOf([]reflect.StructField{{Name: "Value", Type: to.Type(), Tag: `env:"VALUE"`}}))
	options := env.Options{Environment: map[string]string{"VALUE": value}, FuncMap: parsers}
	if err = env.ParseWithOptions(one.Interface(), options); err == nil {
		to.Set(one.Elem().Field(0))
	}
	return expected[to.Type()], err
}

// parsers parse the types that package env does not know, or parses differently.
var parsers = map[reflect.Type]env.ParserFunc{
	reflect.TypeFor[int64]():          func(s string) (any, error) { return parseSize(s) },
	reflect.TypeFor[[]string]():       func(s string) (any, error) { return parseList(s) },
	reflect.TypeFor[signature.HMAC](): func(s string) (any, error) { return signature.ByName(s) },
	reflect.TypeFor[time.Duration](): func(s string) (any, error) {
		d, err := time.ParseDuration(s)
		if d < 0 {
			err = strconv.ErrRange
		}
		return d, err
	},
}

// expected describes, for problems, what a variable of each type should hold.
var expected = map[reflect.Type]string{
	reflect.TypeFor[bool]():           "true or false",
	reflect.TypeFor[int]():            "a whole number, up to 2147483647",
	reflect.TypeFor[int64]():          "a size in bytes, or with KiB, MiB or GiB, such as 1MiB",
	reflect.TypeFor[time.Duration]():  "a duration that is not negative, such as 90s or 10m",
	reflect.TypeFor[[]string]():       "a list, separated by commas",
	reflect.TypeFor[slog.Level]():     "debug, info, warn or error",
	reflect.TypeFor[signature.HMAC](): "sha1, sha256 or sha512",
}

// parseList parses values that are separated by commas. A list that is set but has no values is an error:
// otherwise a check that the user wanted would be off.
func parseList(text string) (list []string, err error) {
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	if list == nil {
		err = errors.New("an empty list")
	}
	return list, err
}

// parseSize parses a number of bytes.
func parseSize(text string) (int64, error) {
	unit := int64(1)
	for suffix, bytes := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if number, ok := strings.CutSuffix(text, suffix); ok {
			text, unit = number, bytes
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err == nil && (n < 0 || n > (1<<40)/unit) {
		err = strconv.ErrRange
	}
	return n * unit, err
}

// secret reads a secret from the variable called name, or from the file that name_FILE names, and remembers it: it must
// not be shown.
func (r *reader) secret(name string) *secret.Value {
	v, value, path := (*secret.Value)(nil), r.env[name], r.env[name+"_FILE"]
	switch {
	case value == "" && path == "":
		return nil
	case value != "" && path != "":
		r.problem(name, "and %s_FILE are both set, but only one of them should be", name)
		v = secret.New("undecided")
	case value != "":
		if strings.TrimSpace(value) == "" {
			r.problem(name, "holds only white space, but should hold a secret")
		}
		v = secret.New(value)
	default:
		v = r.secretFile(name, path)
	}
	r.secrets = append(r.secrets, v)
	return v
}

func (r *reader) secretFile(name, path string) *secret.Value {
	v, err := secret.FromFile(path)
	if err == nil {
		r.files = append(r.files, v)
		return v
	}
	if _, gone := os.Lstat(path); gone != nil && !filepath.IsAbs(path) && !strings.HasPrefix(path, ".") {
		r.problem(name+"_FILE",
			"names a file that does not exist; if it holds the secret itself (not shown), set %s instead", name)
	} else {
		r.problem(name+"_FILE", "is %q, but should name a file that holds the secret: %v", path, err)
	}
	r.bad[name] = true
	return secret.New("unreadable") // any value will do: with nil the secret would be reported as missing, too
}
