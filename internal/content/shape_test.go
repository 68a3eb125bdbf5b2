package content

import (
	"encoding/json"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// agree fails unless the shape says the same of value as the library does. Numbers
// that are written as fractions are the library's alone.
func agree(t interface{ Errorf(string, ...any) }, v *Rules, value any) {
	fits, valid := v.shape.fits(value), v.schema.Validate(value) == nil
	if fits && !valid {
		t.Errorf("fits, but is not valid: %v", value)
	}
	if valid && !fits && !oddNumbers(value) {
		t.Errorf("valid, but does not fit: %v", value)
	}
}

func oddNumbers(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		for _, member := range v {
			if oddNumbers(member) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, oddNumbers)
	case json.Number:
		return !plainInteger(v)
	}
	return false
}

// TestShapeAgreesWithTheLibrary changes the documented webhook at random, in places
// that the schema knows, and has both look at it.
func TestShapeAgreesWithTheLibrary(t *testing.T) {
	v := rules(t, "", "*")
	agree(t, v, decode(t, documented))
	fitting := 0
	rapid.Check(t, func(rt *rapid.T) {
		value := decode(t, documented)
		for range rapid.IntRange(0, 3).Draw(rt, "changes") {
			value = change(rt, value)
		}
		if v.shape.fits(value) {
			fitting++
		}
		agree(rt, v, value)
	})
	if fitting == 0 {
		t.Error("nothing fits, so nothing was compared")
	}
}

// change replaces a part of value, takes it away, or adds to it.
func change(t *rapid.T, value any) any {
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 || rapid.IntRange(0, 9).Draw(t, "here") == 0 {
			break
		}
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names) // a draw should mean the same again
		name := rapid.SampledFrom(names).Draw(t, "name")
		switch rapid.IntRange(0, 9).Draw(t, "how") {
		case 0:
			delete(v, name)
		case 1:
			v[rapid.SampledFrom([]string{"code", "id", "features", "start_date", "Code", "x"}).Draw(t, "new")] = part(t)
		default:
			v[name] = change(t, v[name])
		}
		return v
	case []any:
		if len(v) == 0 || rapid.IntRange(0, 9).Draw(t, "here") == 0 {
			break
		}
		i := rapid.IntRange(0, len(v)-1).Draw(t, "item")
		v[i] = change(t, v[i])
		return v
	}
	return part(t)
}

// part is a value of any type.
func part(t *rapid.T) any {
	return rapid.OneOf(
		rapid.SampledFrom([]any{nil, true, false, "", "é", "text", map[string]any{}, []any{}, []any{nil}, []any{map[string]any{}},
			map[string]any{"code": "a"}, "2024-02-29", "2023-02-29", "2024-2-9", "2024-02-29T00:00:00Z", "0000-01-01", " 2024-02-29",
			json.Number("0"), json.Number("-0"), json.Number("1.0"), json.Number("1.5"), json.Number("1e2"), json.Number("1E-2"),
			json.Number("-12345678901234567890123")}),
		rapid.Map(rapid.String(), func(s string) any { return s }),
	).Draw(t, "part")
}

// A shape ignores a keyword that it does not know, so the built-in schema has none.
func TestShapeKnowsEachKeyword(t *testing.T) {
	var check func(schema any)
	check = func(schema any) {
		for keyword, value := range schema.(map[string]any) {
			switch keyword {
			case "$schema", "title", "description", "type", "required", "minLength":
			case "items":
				check(value)
			case "properties":
				for _, member := range value.(map[string]any) {
					check(member)
				}
			default:
				t.Errorf("no shape knows %s", keyword)
			}
		}
	}
	check(decode(t, string(builtIn)))
}

// The library's own reports stay what they are: the shape is only asked first.
func TestUsersSchemaHasNoShape(t *testing.T) {
	if rules(t, string(builtIn), "*").shape != nil {
		t.Error("the user's schema is not checked by the library alone")
	}
}
