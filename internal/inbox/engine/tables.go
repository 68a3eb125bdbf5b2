package engine

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The statements that read or write whole rows of a table are made from its columns in 001.sql.

// A layout says which columns a table has.
type layout struct {
	name    string
	columns []column
	key     []string
}

// A column is a column of a table. Its kind is int, text, bytes or json.
type column struct{ name, kind string }

var (
	columnLine = regexp.MustCompile(`(?m)^\s*(\w+)\s+\{(int|text|bytes|json)\}([^,\n]*)`)
	keyLine    = regexp.MustCompile(`PRIMARY KEY \((.*?)\)`)
	sqlComment = regexp.MustCompile(`--.*`)
)

// layoutOf returns the layout of a table of 001.sql.
func layoutOf(name string) *layout {
	_, script, _ := strings.Cut(sqlComment.ReplaceAllString(Tables, ""), "CREATE TABLE {schema}."+name+" (")
	script, _, _ = strings.Cut(script, ";")
	l := &layout{name: name}
	for _, m := range columnLine.FindAllStringSubmatch(script, -1) {
		if l.columns = append(l.columns, column{m[1], m[2]}); strings.Contains(m[3], "PRIMARY KEY") {
			l.key = []string{m[1]}
		}
	}
	if key := keyLine.FindStringSubmatch(script); key != nil && l.key == nil {
		l.key = strings.Split(key[1], ", ")
	}
	return l
}

// names are the names of its columns.
func (l *layout) names() (names []string) {
	for _, c := range l.columns {
		names = append(names, c.name)
	}
	return names
}

// only returns the table with its key and some of its other columns.
func (l *layout) only(columns ...string) *layout {
	part := *l
	other := func(c column) bool { return !slices.Contains(l.key, c.name) && !slices.Contains(columns, c.name) }
	part.columns = slices.DeleteFunc(slices.Clone(l.columns), other)
	return &part
}

// arrayOf has the types of PostgreSQL's arrays, by the kind of a column.
var arrayOf = map[string]string{"int": "bigint[]", "text": "text[]", "bytes": "bytea[]", "json": "text[]"}

// statements returns the statements that add rows, add or replace them, and update them by their key. Their arguments
// are the columns. put and save are how an engine adds and updates rows.
func (l *layout) statements(put, save string) (add, replace, update string) {
	var arguments, values, arrays, excluded []string
	var keyArguments, keyValues []string
	var setArguments, setValues []string
	for n, c := range l.columns {
		argument, value := fmt.Sprint("$", n+1), "n."+c.name
		arrays = append(arrays, argument+"::"+arrayOf[c.kind])
		if c.kind == "json" {
			argument = "nullif(" + argument + ", '')"
			value = "nullif(" + value + ", '')::jsonb"
		}
		arguments, values = append(arguments, argument), append(values, value)
		if slices.Contains(l.key, c.name) {
			keyArguments = append(keyArguments, c.name+" = "+argument)
			keyValues = append(keyValues, "t."+c.name+" = "+value)
			continue
		}
		excluded = append(excluded, c.name+" = excluded."+c.name)
		setArguments = append(setArguments, c.name+" = "+argument)
		setValues = append(setValues, c.name+" = "+value)
	}
	list := func(all []string) string { return strings.Join(all, ", ") }
	spell := strings.NewReplacer(
		"{table}", l.name,
		"{columns}", list(l.names()),
		"{arguments}", list(arguments),
		"{values}", list(values),
		"{arrays}", list(arrays),
		"{set arguments}", list(setArguments),
		"{set values}", list(setValues),
		"{key arguments}", strings.Join(keyArguments, " AND "),
		"{key values}", strings.Join(keyValues, " AND "),
	)
	add = spell.Replace(put)
	return add, add + " ON CONFLICT (" + list(l.key) + ") DO UPDATE SET " + list(excluded), spell.Replace(save)
}
