package content

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"usher/internal/clip"
)

//go:embed schema.json
var builtIn []byte

// Rules say which webhooks have the right type and shape.
type Rules struct {
	types  []string
	any    bool // "*" is among them
	schema *jsonschema.Schema
	shape  *shape // of the built-in schema; nil: the schema is the user's own, and applies to every type
}

// NewRules makes the rules for the event types that are accepted; "*" accepts any. own is the
// user's JSON Schema. Nil: the built-in one.
func NewRules(types []string, own []byte) (*Rules, error) {
	source := own
	if own == nil {
		source = builtIn
	}
	doc, fault := Parse(source) // strictly: with a name twice, one of two rules would be ignored
	if fault != nil {
		return nil, errors.New(cmp.Or(fault.Path, "it") + " " + fault.Message)
	}
	schema, err := compile(doc)
	if err != nil {
		return nil, err
	}
	r := &Rules{types: types, any: slices.Contains(types, "*"), schema: schema}
	if own == nil {
		r.shape, err = newShape(doc)
	}
	return r, err
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
	const maxListed = 20
	var parts []string
	for _, f := range faults[:min(len(faults), maxListed)] {
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

// Faults returns everything that is wrong with the type or shape of a parsed value.
func (r *Rules) Faults(value any) []Fault {
	object, _ := value.(map[string]any)
	typ, typed := object["type"].(string)
	switch {
	case typed && !r.lets(typ):
		return []Fault{{"/type", fmt.Sprintf("is %q; accepted here: %s", clip.Text(typ, maxShown), strings.Join(r.types, ", "))}}
	case r.shape == nil:
		faults := r.schemaFaults(value)
		if !typed && !r.any && len(faults) == 0 { // the user's schema may not require a type, the list of types does
			faults = []Fault{{"/type", "must be a string that names the event"}}
		}
		return faults
	case typed && typ != TenantProvisioningChange:
		return nil // its shape is not documented
	default:
		return r.schemaFaults(value)
	}
}

func (r *Rules) lets(typ string) bool {
	return r.any || slices.Contains(r.types, typ)
}

func (r *Rules) schemaFaults(value any) []Fault {
	if r.shape != nil && r.shape.fits(value) {
		return nil
	}
	err := r.schema.Validate(value)
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
