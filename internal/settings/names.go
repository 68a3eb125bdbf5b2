package settings

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"usher/internal/text"
)

var (
	indexed   = regexp.MustCompile(`^(USHER_PORTS_|USHER_WEBHOOK_RECEIVERS_)(0|[1-9][0-9]*)_`)
	nearIndex = regexp.MustCompile(`^USHER_[A-Z_]+_([0-9]+)_`) // in a name with a slip
	// The variables that Kubernetes sets in every pod if there is a service called usher, or usher-….
	kubernetes = regexp.MustCompile(`^USHER_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_.*)?)$`)
	serviceURL = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

const (
	portsPrefix     = "USHER_PORTS_"
	receiversPrefix = "USHER_WEBHOOK_RECEIVERS_"
)

// indexes returns the indexes in the names of the variables that begin with prefix, in order. They may have
// gaps.
func (r *reader) indexes(prefix string) []string {
	var indexes []string
	for name, value := range r.env {
		m := indexed.FindStringSubmatch(name)
		if m != nil && m[1] == prefix && !slices.Contains(indexes, m[2]) && !fromKubernetes(name, value) {
			indexes = append(indexes, m[2])
		}
	}
	slices.SortFunc(indexes, func(a, b string) int { // as numbers, of any length
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
	return indexes
}

// fromKubernetes reports whether Kubernetes, and not the user, has set a variable.
func fromKubernetes(name, value string) bool {
	if name == "USHER_PORT" || kubernetes.MatchString(name) {
		return true
	}
	return strings.HasSuffix(name, "_PORT") && serviceURL.MatchString(value)
}

// unknown returns the USHER_ variables that usher does not know. If the name of one looks like a slip of a known name, it
// reports that as a problem instead: the setting may be the one that protects a port.
func (r *reader) unknown() (unknown []string) {
	known := names(Variables())
	for _, name := range slices.Sorted(maps.Keys(r.env)) {
		capitals := strings.ToUpper(name)
		if !strings.HasPrefix(capitals, "USHER_") || name == "USHER_URL" || fromKubernetes(name, r.env[name]) {
			continue
		}
		if slices.Contains(known, withoutIndex(name)) && !strings.Contains(name, "_n_") {
			continue
		}
		if meant := Nearest(capitals, known); meant != "" {
			r.problem(name, "is not known: did you mean %s?", meant)
		} else {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// withoutIndex replaces the index in a name with n, as in the table of settings.
func withoutIndex(name string) string { return indexed.ReplaceAllString(name, "${1}n_") }

// Nearest returns the known name that differs from name only by a typing error or in the order of its words, or the
// empty string.
func Nearest(name string, known []string) string {
	index := "0"
	if m := nearIndex.FindStringSubmatch(name); m != nil {
		index = cmp.Or(strings.TrimLeft(m[1], "0"), "0") // somebody who writes 00 means 0
	}
	for edits := range 3 {
		for _, k := range known {
			k = strings.Replace(k, "_n_", "_"+index+"_", 1)
			short := len(k) < len("USHER_")+6 // two edits make too many other words of a short name
			if (edits < 2 || !short) && text.WithinEdits(name, k, edits) || slices.Equal(words(name), words(k)) {
				return k
			}
		}
	}
	return ""
}

func words(name string) []string { return slices.Sorted(strings.SplitSeq(name, "_")) }

// Known reports whether name is a setting of usher, with a number or n for a further port or receiver.
func Known(name string) bool { return slices.Contains(names(Variables()), withoutIndex(name)) }
