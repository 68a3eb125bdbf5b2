package settings

import (
	"cmp"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Variable is one that usher knows.
type Variable struct {
	Name, Default string
	Secret        bool // can be given as Name_FILE too
}

// Variables returns all, those of a further port or receiver with n instead of the index.
func Variables() []Variable {
	var all []Variable
	for _, section := range []struct {
		prefix string
		of     reflect.Type
	}{
		{"", reflect.TypeFor[Outbound]()},
		{"USHER_PORTS_n_", reflect.TypeFor[Port]()},
		{"", reflect.TypeFor[Webhook]()},
		{"USHER_WEBHOOK_RECEIVERS_n_", reflect.TypeFor[receiverVars]()},
		{"", reflect.TypeFor[Entitlements]()},
		{"", reflect.TypeFor[Admin]()},
	} {
		all = append(all, variablesIn(section.prefix, section.of)...)
	}
	return all
}

func variablesIn(prefix string, of reflect.Type) []Variable {
	var all []Variable
	for i := range of.NumField() {
		tag := of.Field(i).Tag
		if name := tag.Get("env"); name != "" && name != "-" {
			all = append(all, Variable{prefix + name, tag.Get("envDefault"), false})
		}
		if name := tag.Get("secret"); name != "" {
			all = append(all, Variable{prefix + name, "", true})
		}
	}
	return all
}

func byName() map[string]Variable {
	all := make(map[string]Variable)
	for _, v := range Variables() {
		all[v.Name] = v
	}
	return all
}

// Default is the value of a variable that nobody sets; empty for none.
func Default(name string) string { return byName()[name].Default }

// Known says whether usher knows a variable.
func Known(name string) bool { return slices.Contains(names(Variables()), generic(name)) }

// names returns the names of variables, with the _FILE of each secret.
func names(variables []Variable) []string {
	var names []string
	for _, v := range variables {
		names = append(names, v.Name)
		if v.Secret {
			names = append(names, v.Name+"_FILE")
		}
	}
	return names
}

var (
	portIndex     = regexp.MustCompile(`^USHER_PORTS_(0|[1-9][0-9]*)_`)
	receiverIndex = regexp.MustCompile(`^USHER_WEBHOOK_RECEIVERS_(0|[1-9][0-9]*)_`)
	nearIndex     = regexp.MustCompile(`^USHER_[A-Z_]+_([0-9]+)_`) // of a slip
	// What Kubernetes puts into every pod for a service called usher, or usher-….
	kubernetes = regexp.MustCompile(`^USHER_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_.*)?)$`)
	serviceURL = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

// indexes returns the indexes that are in use, n of USHER_PORTS_n_… or of another pattern,
// in order. There may be gaps.
func (r *reader) indexes(pattern *regexp.Regexp) []string {
	var indexes []string
	for name, value := range r.env {
		m := pattern.FindStringSubmatch(name)
		if m != nil && !slices.Contains(indexes, m[1]) && !ofKubernetes(name, value) {
			indexes = append(indexes, m[1])
		}
	}
	slices.SortFunc(indexes, func(a, b string) int { // as numbers, of any length
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
	return indexes
}

func ofKubernetes(name, value string) bool {
	return name == "USHER_PORT" || kubernetes.MatchString(name) || strings.HasSuffix(name, "_PORT") && serviceURL.MatchString(value)
}

// unknown looks at the USHER_ variables that usher does not know. One that looks like a slip
// of a known name is a problem: the setting that is missing may be the one that keeps a port
// closed. unknown returns the others.
func (r *reader) unknown() []string {
	known := names(Variables())
	var strangers []string
	for name, value := range r.env {
		if strings.HasPrefix(name, "USHER_") && name != "USHER_URL" && !slices.Contains(known, generic(name)) && !ofKubernetes(name, value) {
			strangers = append(strangers, name)
		}
	}
	slices.Sort(strangers)
	return slices.DeleteFunc(strangers, func(name string) bool {
		meant := Nearest(name, known)
		if meant != "" {
			r.problem(name, "is not known: did you mean %s?", meant)
		}
		return meant != ""
	})
}

// generic replaces an index with n.
func generic(name string) string {
	name = portIndex.ReplaceAllString(name, "USHER_PORTS_n_")
	return receiverIndex.ReplaceAllString(name, "USHER_WEBHOOK_RECEIVERS_n_")
}

// Nearest returns the known name that name is a slip of, or the empty string.
func Nearest(name string, known []string) string {
	index := "0"
	if m := nearIndex.FindStringSubmatch(name); m != nil {
		index = cmp.Or(strings.TrimLeft(m[1], "0"), "0") // 00 is a slip of 0
	}
	best, least := "", 3
	for _, k := range known {
		k = strings.Replace(k, "_n_", "_"+index+"_", 1)
		allowed := 2
		if len(k) < len("USHER_")+6 { // a short name is near to too many others
			allowed = 1
		}
		if d := distance(name, k); d <= allowed && d < least {
			best, least = k, d
		}
	}
	return best
}

// distance counts the letters to add, drop, replace or swap with their neighbour.
func distance(a, b string) int {
	if d := len(a) - len(b); d > 2 || d < -2 {
		return 3
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
