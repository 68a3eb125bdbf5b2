package settings

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

var (
	indexed   = regexp.MustCompile(`^(USHER_PORTS_|USHER_WEBHOOK_RECEIVERS_)(0|[1-9][0-9]*)_`)
	nearIndex = regexp.MustCompile(`^USHER_[A-Z_]+_([0-9]+)_`) // of a slip
	// What Kubernetes puts into every pod for a service called usher, or usher-….
	kubernetes = regexp.MustCompile(`^USHER_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_.*)?)$`)
	serviceURL = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

const (
	portsPrefix     = "USHER_PORTS_"
	receiversPrefix = "USHER_WEBHOOK_RECEIVERS_"
)

// indexes returns the indexes that are in use after one of these prefixes, in order. There may
// be gaps.
func (r *reader) indexes(prefix string) []string {
	var indexes []string
	for name, value := range r.env {
		m := indexed.FindStringSubmatch(name)
		if m != nil && m[1] == prefix && !slices.Contains(indexes, m[2]) && !ofKubernetes(name, value) {
			indexes = append(indexes, m[2])
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
func generic(name string) string { return indexed.ReplaceAllString(name, "${1}n_") }

// Nearest returns the known name that name is a slip of, or the empty string.
func Nearest(name string, known []string) string {
	index := "0"
	if m := nearIndex.FindStringSubmatch(name); m != nil {
		index = cmp.Or(strings.TrimLeft(m[1], "0"), "0") // 00 is a slip of 0
	}
	for edits := range 3 {
		for _, k := range known {
			k = strings.Replace(k, "_n_", "_"+index+"_", 1)
			short := len(k) < len("USHER_")+6 // a short name is near to too many others
			if (edits < 2 || !short) && near(name, k, edits) {
				return k
			}
		}
	}
	return ""
}

// near says whether a becomes b with so many letters added, dropped, replaced or swapped with their
// neighbour.
func near(a, b string, edits int) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	if a == "" || b == "" || edits == 0 {
		return len(a)+len(b) <= edits
	}
	swapped := len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0]
	return near(a[1:], b, edits-1) || near(a, b[1:], edits-1) || near(a[1:], b[1:], edits-1) ||
		swapped && near(a[2:], b[2:], edits-1)
}
