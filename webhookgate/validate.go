package webhookgate

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

//go:embed schema.json
var builtIn []byte

// maxShown is how many bytes of a foreign path or name are shown.
const maxShown = 200

// A validator knows which webhooks have the right type and shape.
type validator struct {
	types  []string
	any    bool // "*" is among them
	own    bool // the schema is the user's own, and applies to every type
	schema *jsonschema.Schema
	shape  *shape // of the built-in schema; nil for the user's
}

func newValidator(types []string, own []byte) (*validator, error) {
	v := &validator{types: types, any: slices.Contains(types, "*"), own: own != nil}
	source := own
	if source == nil {
		source = builtIn
	}
	doc, err := readSchema(source)
	if err != nil {
		return nil, err
	}
	if !v.own {
		if v.shape, err = newShape(doc); err != nil {
			return nil, err
		}
	}
	v.schema, err = compile(doc)
	return v, err
}

func readSchema(source []byte) (doc any, err error) {
	if !json.Valid(source) {
		return nil, errors.New("not JSON: " + syntaxError(source))
	}
	doc, fault := (&parser{src: string(source)}).value(0) // with a name twice, one of two rules would be ignored
	if fault != nil {
		return nil, fmt.Errorf("%s %s", fault.Path, fault.Message)
	}
	return doc, nil
}

func compile(doc any) (*jsonschema.Schema, error) {
	const base = "schema:///"
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat() // since 2019-09 "format": "date" is only a remark otherwise
	c.UseLoader(noLoader{})
	if err := c.AddResource(base, doc); err != nil {
		return nil, err
	}
	schema, err := c.Compile(base)
	var invalid *jsonschema.SchemaValidationError
	var why *jsonschema.ValidationError
	switch {
	case errors.As(err, &invalid) && errors.As(invalid.Err, &why):
		return nil, notSchema(faultsIn(why))
	case err != nil:
		return nil, errors.New(strings.ReplaceAll(err.Error(), base, "")) // remove our internal name
	}
	return schema, nil
}

// notSchema says in one line what is wrong with a schema.
func notSchema(faults []Fault) error {
	var parts []string
	for _, f := range faults[:min(len(faults), maxShownFaults)] {
		parts = append(parts, f.Path+" "+f.Message)
	}
	return errors.New("not a JSON Schema: " + strings.Join(parts, "; "))
}

// noLoader refuses references to other files and addresses: what usher lets through must not
// depend on something that it loads from the network or the disk.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, errors.New("other files and addresses are not loaded; put what is referred to under $defs")
}

// check returns what is wrong with a webhook's type or shape, or nil.
func (v *validator) check(value any) *answer {
	faults := v.faults(value)
	if len(faults) == 0 {
		return nil
	}
	return faulty(http.StatusUnprocessableEntity, faults)
}

func (v *validator) faults(value any) []Fault {
	object, _ := value.(map[string]any)
	typ, typed := object["type"].(string)
	switch {
	case typed && !v.lets(typ):
		return []Fault{{"/type", fmt.Sprintf("is %q; accepted here: %s", clip(typ, maxShown), strings.Join(v.types, ", "))}}
	case v.own:
		faults := v.schemaFaults(value)
		if !typed && !v.any && len(faults) == 0 { // the user's schema may not require a type, the list of types does
			faults = []Fault{{"/type", "must be a string that names the event"}}
		}
		return faults
	case typed && typ != TenantProvisioningChange:
		return nil // its shape is not documented
	default:
		return v.schemaFaults(value)
	}
}

func (v *validator) lets(typ string) bool {
	return v.any || slices.Contains(v.types, typ)
}

func (v *validator) schemaFaults(value any) []Fault {
	if v.shape != nil && v.shape.fits(value) {
		return nil
	}
	err := v.schema.Validate(value)
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid):
		return faultsIn(invalid)
	default: // the library has no other error today; if it gets one, the webhook must not pass unchecked
		return []Fault{{Message: "can't be checked against the schema"}}
	}
}

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
	add := func(member, message string) {
		f := &Fault{Message: message}
		if member != "" {
			f.below(member)
		}
		for _, token := range slices.Backward(e.InstanceLocation) {
			f.below(token)
		}
		faults = append(faults, Fault{clip(f.Path, maxShown), f.Message})
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		for _, name := range k.Missing {
			add(name, "is missing")
		}
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			add(name, "is not expected here")
		}
	case *kind.AnyOf, *kind.OneOf:
		add("", message(e))
	default:
		if len(e.Causes) == 0 {
			add("", message(e))
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
		return "must be at least " + k.Want.RatString()
	case *kind.Maximum:
		return "must be at most " + k.Want.RatString()
	case *kind.Format:
		if k.Want == "date" {
			return fmt.Sprintf("must be a real date written as YYYY-MM-DD, not %q", clip(fmt.Sprint(k.Got), 20))
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
