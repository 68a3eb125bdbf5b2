package content

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"usher/internal/clip"
)

// faultsIn lists what the library found wrong.
func faultsIn(e *jsonschema.ValidationError) []Fault {
	faults := leaves(nil, e)
	// Maps have no order, and a sender that tries again should see the same list.
	slices.SortFunc(faults, func(a, b Fault) int {
		if c := strings.Compare(a.Path, b.Path); c != 0 {
			return c
		}
		return strings.Compare(a.Message, b.Message)
	})
	return slices.Compact(faults)
}

// leaves collects the causes, the leaves of the library's tree of errors.
func leaves(faults []Fault, e *jsonschema.ValidationError) []Fault {
	add := func(message string, member ...string) {
		faults = append(faults, Fault{pointer(slices.Concat(e.InstanceLocation, member)), message})
	}
	missing := func(names []string) {
		for _, name := range names {
			add("is missing", name)
		}
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		missing(k.Missing)
	case *kind.DependentRequired:
		missing(k.Missing)
	case *kind.Dependency:
		missing(k.Missing)
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			add("is not expected here", name)
		}
	case *kind.AnyOf, *kind.OneOf:
		add(message(e))
	default:
		if len(e.Causes) == 0 {
			add(message(e))
		}
	}
	for _, cause := range e.Causes {
		faults = leaves(faults, cause)
	}
	return faults
}

// message says what is wrong, for the person who reads the sender's webhook log. It shows no
// values except dates, because it is also in usher's log.
func message(e *jsonschema.ValidationError) string {
	switch k := e.ErrorKind.(type) {
	case *kind.Type:
		got := articles([]string{k.Got})
		if k.Got == "number" && slices.Contains(k.Want, "integer") {
			got = "a fraction"
		}
		return fmt.Sprintf("must be %s, not %s", articles(k.Want), got)
	case *kind.MinLength:
		if k.Want == 1 {
			return "must not be empty"
		}
		return fmt.Sprintf("must be at least %d characters long", k.Want)
	case *kind.Minimum:
		return "must be at least " + number(k.Want)
	case *kind.Maximum:
		return "must be at most " + number(k.Want)
	case *kind.ExclusiveMinimum:
		return "must be more than " + number(k.Want)
	case *kind.ExclusiveMaximum:
		return "must be less than " + number(k.Want)
	case *kind.MultipleOf:
		return "must be a multiple of " + number(k.Want)
	case *kind.Format:
		if k.Want == "date" {
			return fmt.Sprintf("must be a real date written as YYYY-MM-DD, not %q", clip.Text(fmt.Sprint(k.Got), 20))
		}
		return "is not a valid " + k.Want
	case *kind.Pattern:
		return "must match the pattern " + k.Want
	case *kind.FalseSchema:
		return "is not expected here"
	case *kind.Not:
		return "has a form that is not allowed"
	case *kind.AnyOf:
		return "has none of the allowed forms"
	case *kind.OneOf:
		return "must have exactly one of the allowed forms"
	default:
		bare := jsonschema.ValidationError{ErrorKind: e.ErrorKind}
		return strings.TrimPrefix(strings.TrimPrefix(bare.Error(), "at '': "), "value ")
	}
}

func number(r *big.Rat) string {
	if r.IsInt() {
		return r.RatString()
	}
	f, _ := r.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// articles writes types as in a sentence: "an integer or null".
func articles(types []string) string {
	var named []string
	for _, t := range types {
		switch t {
		case "null": // comes last
		case "array", "integer", "object":
			named = append(named, "an "+t)
		default:
			named = append(named, "a "+t)
		}
	}
	if slices.Contains(types, "null") {
		named = append(named, "null")
	}
	return strings.Join(named, " or ")
}
