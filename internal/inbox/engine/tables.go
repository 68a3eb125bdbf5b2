package engine

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"usher/internal/clock"
)

// An export has the rows of these tables, with the columns of 001.sql but for those of LeftOut: a new table or column
// is part of it at once.

// A Layout says which columns a table has.
type Layout struct {
	Name    string
	Columns []Column
	Key     []string // the columns by which its rows are sorted in an export; Unique: no two rows have the same
	Unique  bool
}

// A Column is a column of a table.
type Column struct {
	Name    string
	Kind    string // int, text, bytes or json
	Default any    // an int64, string or []byte; nil: there is none
	LeftOut bool   // it is not part of an export: an import gives it its default
}

// LeftOut are the tables and columns that are no part of an export, each with the reason.
var LeftOut = map[string]string{
	"schema_version": "an import finds tables that are there",
	"gate_up":        "the time since the export is an outage",
	"change":         "what was told counts for the cursors of its own inbox, and none of them is known after an import",
	"told":           "as for change",
	"replica":        "it is about the processes that use this database",
	"speaker":        "as for replica",

	"lane.receiver":      "the settings of the usher that imports say it",
	"lane.held":          "the receiver may hold something else by now",
	"lane.held_at":       "as for held",
	"lane.held_by":       "as for held",
	"lane.held_id":       "as for held",
	"lane.waiting":       "it is counted anew",
	"lane.parked":        "it is counted anew",
	"lane.invalid":       "it is counted anew",
	"lane.bytes":         "it is counted anew",
	"lane.paused":        "the pauses say it",
	"lane.owner":         "leases end",
	"lane.leased":        "leases end",
	"lane.token":         "leases end",
	"lane.due":           "what waits is tried at once",
	"lane.last_try":      "as for due",
	"lane.failures":      "as for due",
	"lane.not_before":    "as for due",
	"lane.last_result":   "as for due",
	"lane.failing_since": "as for due",
	"lane.waiting_since": "it is counted anew",

	"action.id":        "it is a number of this database",
	"reconcile.action": "it is a number of this database",
}

var (
	createTable = regexp.MustCompile(`(?ms)^CREATE TABLE \{schema\}\.(\w+) \((.*?)\)(?: \{keyed\})?;$`)
	columnLine  = regexp.MustCompile(`(?m)^\s*(\w+)\s+\{(int|text|bytes|json|counter)\}([^,\n]*)`)
	keyLine     = regexp.MustCompile(`PRIMARY KEY \((.*?)\)`)
	sqlComment  = regexp.MustCompile(`--.*`)
)

// Exported are the tables of an export, in their order there: that of 001.sql.
var Exported = readLayouts(Tables)

func readLayouts(script string) (all []Layout) {
	for _, table := range createTable.FindAllStringSubmatch(sqlComment.ReplaceAllString(script, ""), -1) {
		l := Layout{Name: table[1]}
		if LeftOut[l.Name] != "" {
			continue
		}
		for _, m := range columnLine.FindAllStringSubmatch(table[2], -1) {
			c := Column{Name: m[1], Kind: m[2], LeftOut: LeftOut[l.Name+"."+m[1]] != ""}
			_, value, ok := strings.Cut(m[3], "DEFAULT ")
			switch value = strings.TrimSpace(value); {
			case !ok:
			case value == "{never}":
				c.Default = clock.Never
			case c.Kind == "int":
				c.Default = int64(0)
			case c.Kind == "text":
				c.Default = ""
			case c.Kind == "bytes":
				c.Default = []byte{}
			}
			if strings.Contains(m[3], "PRIMARY KEY") || c.Kind == "counter" {
				l.Key, l.Unique = []string{c.Name}, c.Kind != "counter"
			}
			if c.Kind != "counter" {
				l.Columns = append(l.Columns, c)
			}
		}
		if key := keyLine.FindStringSubmatch(table[2]); key != nil {
			l.Key, l.Unique = strings.Split(key[1], ", "), true
		}
		if l.Key == nil {
			for _, c := range l.Columns {
				l.Key = append(l.Key, c.Name)
			}
		}
		all = append(all, l)
	}
	return all
}

// TableOf returns a table of an export.
func TableOf(name string) *Layout {
	return &Exported[slices.IndexFunc(Exported, func(l Layout) bool { return l.Name == name })]
}

// Index returns the place of a column.
func (l *Layout) Index(column string) int { return slices.Index(l.Names(), column) }

// Names are the names of its columns.
func (l *Layout) Names() (names []string) {
	for _, c := range l.Columns {
		names = append(names, c.Name)
	}
	return names
}

// updates are the statements that update some columns of rows, by their key: those that are left out have not changed.
var updates = []struct{ name, table, columns string }{
	{"lane_save", "lane", ""}, // all
	{"lane_note", "lane", "last last_at snapshot_at"},
	{"webhook_save", "webhook", "state rank changed why record"},
}

// only returns the table with its key and some of its other columns.
func (l *Layout) only(columns []string) *Layout {
	part := *l
	other := func(c Column) bool { return !slices.Contains(l.Key, c.Name) && !slices.Contains(columns, c.Name) }
	part.Columns = slices.DeleteFunc(slices.Clone(l.Columns), other)
	return &part
}

// rowStatements are the statements that read or write whole rows of a table. The arguments of those that write are its
// columns.
type rowStatements struct {
	export  string // reads all rows
	add     string
	replace string // adds rows, or replaces those that are there
	update  string // by their key
}

// arrayOf has the types of PostgreSQL's arrays, by the kind of a column.
var arrayOf = map[string]string{"int": "bigint[]", "text": "text[]", "bytes": "bytea[]", "json": "text[]"}

// statements returns the statements of a table. put and save are how an engine adds and updates rows.
func (l *Layout) statements(put, save string) (s rowStatements) {
	var from, replace []string
	var arguments, values, arrays []string
	var keyArguments, keyValues []string
	var setArguments, setValues []string
	for n, c := range l.Columns {
		column, argument, value := c.Name, fmt.Sprint("$", n+1), "n."+c.Name
		arrays = append(arrays, argument+"::"+arrayOf[c.Kind])
		if c.Kind == "json" {
			column = "coalesce(" + column + "::text, '')"
			argument = "nullif(" + argument + ", '')"
			value = "nullif(" + value + ", '')::jsonb"
		}
		arguments, values = append(arguments, argument), append(values, value)
		if !c.LeftOut {
			from = append(from, column)
		}
		switch {
		case slices.Contains(l.Key, c.Name):
			keyArguments = append(keyArguments, c.Name+" = "+argument)
			keyValues = append(keyValues, "t."+c.Name+" = "+value)
			continue
		case !c.LeftOut:
			replace = append(replace, c.Name+" = excluded."+c.Name)
		}
		setArguments = append(setArguments, c.Name+" = "+argument)
		setValues = append(setValues, c.Name+" = "+value)
	}
	list := func(all []string) string { return strings.Join(all, ", ") }
	spell := strings.NewReplacer(
		"{table}", l.Name,
		"{columns}", list(l.Names()),
		"{arguments}", list(arguments),
		"{values}", list(values),
		"{arrays}", list(arrays),
		"{set arguments}", list(setArguments),
		"{set values}", list(setValues),
		"{key arguments}", strings.Join(keyArguments, " AND "),
		"{key values}", strings.Join(keyValues, " AND "),
	)
	s.export = "SELECT " + list(from) + " FROM {schema}." + l.Name + " ORDER BY " + list(l.Key)
	s.add = spell.Replace(put)
	s.replace = s.add
	if l.Unique { // an inbox without webhooks may have such a row
		s.replace += " ON CONFLICT (" + list(l.Key) + ") DO UPDATE SET " + list(replace)
	}
	s.update = spell.Replace(save)
	return s
}
