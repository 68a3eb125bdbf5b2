package content

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"usher/internal/text"
)

//go:embed schema.json
var builtIn []byte

// Rules say which webhooks have the right type and shape.
type Rules struct {
	types  []string
	schema *jsonschema.Schema
	own    bool // it is the user's own, and applies to every type
}

// NewRules makes the rules for the event types that are accepted; "*" accepts any. own is the
// user's JSON Schema. Nil: the built-in one.
func NewRules(types []string, own []byte) (*Rules, error) {
	source := own
	if own == nil {
		source = builtIn
	}
	doc, fault := Parse(source) // strict: if a name occurred twice, one of two rules would be ignored
	if fault != nil {
		return nil, errors.New(cmp.Or(fault.Path, "it") + " " + fault.Message)
	}
	schema, err := compile(doc)
	if err != nil {
		return nil, err
	}
	return &Rules{types, schema, own != nil}, nil
}

func compile(doc any) (*jsonschema.Schema, error) {
	const base = "schema:///"
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat() // otherwise "format": "date" checks nothing, since draft 2019-09
	c.UseLoader(noLoader{})
	if err := c.AddResource(base, doc); err != nil {
		return nil, err
	}
	schema, err := c.Compile(base)
	var invalid *jsonschema.SchemaValidationError
	var why *jsonschema.ValidationError
	switch {
	case errors.As(err, &invalid) && errors.As(invalid.Err, &why):
		var parts []string
		for _, f := range faultsIn(why) {
			parts = append(parts, f.Path+" "+f.Message)
		}
		return nil, errors.New("not a JSON Schema: " + strings.Join(parts[:min(len(parts), 20)], "; "))
	case err != nil:
		return nil, errors.New(strings.ReplaceAll(err.Error(), base, "")) // users do not know this name
	}
	return schema, nil
}

// noLoader refuses references to other files and addresses: which webhooks usher accepts must not
// depend on what it loads from the network or the disk.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, errors.New("other files and addresses are not loaded; put what is referred to under $defs")
}

// Faults returns everything that is wrong with the type or shape of a parsed value.
func (r *Rules) Faults(value any) []Fault {
	typ, typed := Member(value, "type").(string)
	_, _, odd := codes(value)
	if typ == TenantProvisioningChange {
		odd = append(odd, featureFaults(value)...)
	}
	switch {
	case !ValidCode(typ):
		return codeFaults("/type", typ)
	case typed && !r.Accept(typ):
		return []Fault{{
			Path:    "/type",
			Message: fmt.Sprintf("is %q; accepted here: %s", text.Clip(typ, maxShown), strings.Join(r.types, ", ")),
		}}
	case !r.own && typed && typ != TenantProvisioningChange: // nobody has documented its schema
		return odd
	}
	if faults := r.schemaFaults(value); len(faults) > 0 {
		return faults
	}
	if !typed && !r.Accept("*") { // the list of types requires a type, even if the user's schema does not
		return []Fault{{Path: "/type", Message: "must be a string that names the event"}}
	}
	return odd
}

// Accept reports whether the rules accept webhooks of this type.
func (r *Rules) Accept(typ string) bool {
	return slices.Contains(r.types, typ) || slices.Contains(r.types, "*")
}

func (r *Rules) schemaFaults(value any) []Fault {
	err := r.schema.Validate(value)
	if err == nil {
		return nil
	}
	if invalid, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		return faultsIn(invalid)
	}
	// The library has no other error today. If it gets one, the webhook must not pass unchecked.
	return []Fault{{Message: "can't be checked against the schema"}}
}

func faultsIn(e *jsonschema.ValidationError) []Fault {
	faults := leaves(nil, e)
	// The library goes through maps, which have no order. A sender that tries again should see the
	// same list.
	slices.SortFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(faults)
}

// leaves adds the leaves of the library's tree of errors to faults.
func leaves(faults []Fault, e *jsonschema.ValidationError) []Fault {
	add := func(message string, member ...string) {
		faults = append(faults, Fault{
			Path:    pointer(slices.Concat(e.InstanceLocation, member)),
			Message: text.Clip(message, maxMessage),
		})
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

// message says what is wrong, for people who read the sender's webhook log. It shows no values, because
// usher logs it, too.
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
	case *kind.Enum, *kind.Const: // the values are the schema's
		bare := jsonschema.ValidationError{ErrorKind: e.ErrorKind}
		return strings.TrimPrefix(strings.TrimPrefix(bare.Error(), "at '': "), "value ")
	case *kind.Format:
		return "is not a valid " + k.Want
	case *kind.FalseSchema:
		return "is not expected here"
	}
	keyword := "the schema"
	if path := e.ErrorKind.KeywordPath(); len(path) > 0 {
		keyword = fmt.Sprintf("%q in the schema", path[len(path)-1])
	}
	return "does not fit " + keyword
}

// articles writes types as part of a sentence: "an integer or null".
func articles(types []string) string {
	var named []string
	for _, t := range types {
		switch t {
		case "null": // added last
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
