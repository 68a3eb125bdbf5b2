package engine

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"usher/internal/clock"
	"usher/internal/lane/state"
)

// Tables is the script that makes the tables, before an engine's spelling.
//
//go:embed 001.sql
var Tables string

//go:embed statements.sql
var sharedStatements string

// Provisional is where the numbers begin that a transaction gives before it takes some. The n-th of them is the n-th
// number after the last one, once it is written: so that nobody else has to wait for a transaction that still decides.
const Provisional = int64(1) << 61

// A Dialect is how one engine spells the SQL in .sql files.
type Dialect struct {
	// Words are pairs: a text and its replacement, as in strings.NewReplacer.
	Words []string
	// Rows returns a table, called n, of what a statement is called with; see {rows} in statements.sql. Nil: the
	// statement runs once for each row, and n's columns are its parameters.
	Rows func(columns []Column) string
	// Statements are those that the other engine spells otherwise.
	Statements string
}

// A Column is a column of a table, or of {rows}.
type Column struct {
	Name string
	Kind string // int, number, text, bytes or json
}

// Spell returns SQL as the engine wants it.
func (d *Dialect) Spell(sql string) string {
	sql = called.ReplaceAllStringFunc(sql, func(call string) string {
		m := called.FindStringSubmatch(call)
		return d.call(m[1], m[2])
	})
	if d.Rows == nil {
		sql = withParameters(sql)
	}
	sql = strings.ReplaceAll(sql, "{open}", openLanes)
	return strings.NewReplacer(append(append(slices.Clone(d.Words), state.SQL()...),
		"{lane}", "l."+strings.Join(LaneColumns, ", l."),
		"{webhook}", "w."+strings.Join(WebhookColumns, ", w.")+", coalesce(l.tail, 0)",
		"{of}", "l.tenant = w.tenant AND l.platform = w.platform AND l.event_type = w.event_type",
		"{never}", strconv.FormatInt(clock.Never, 10),
	)...).Replace(sql)
}

// openLanes are the rows of those tenants of whom something waits or is parked, each by its index.
const openLanes = "(SELECT * FROM {schema}.lane WHERE due < {never} AND failures = 0" +
	" UNION ALL SELECT * FROM {schema}.lane WHERE due < {never} AND failures > 0" +
	" UNION ALL SELECT * FROM {schema}.lane WHERE due = {never} AND parked > 0) l"

// called are {rows a int, b text}, {seq x} and those that are made from a table: {columns lane} and the like.
var called = regexp.MustCompile(`\{(rows|seq|columns|values|set|key|excluded) ([^{}]*)\}`)

func (d *Dialect) call(what, about string) string {
	if what == "seq" {
		return fmt.Sprintf("CASE WHEN %s > %d THEN %[1]s - %[2]d + (SELECT base FROM {schema}.number) ELSE %[1]s END", about, Provisional)
	}
	if what == "rows" && strings.Contains(about, " ") {
		var columns []Column
		for _, c := range strings.Split(about, ", ") {
			name, kind, _ := strings.Cut(c, " ")
			columns = append(columns, Column{name, kind})
		}
		return d.rows(columns)
	}
	t := tableOf(about)
	var parts []string
	for _, c := range t.columns {
		value := "n." + c.Name
		switch c.Kind {
		case "number":
			value = d.call("seq", value)
		case "json":
			value = "CAST(nullif(" + value + ", '') AS {json})"
		}
		isKey := slices.Contains(t.key, c.Name)
		switch {
		case what == "columns":
			parts = append(parts, c.Name)
		case what == "values":
			parts = append(parts, value)
		case what == "key" && isKey:
			parts = append(parts, "t."+c.Name+" = "+value)
		case what == "set" && !isKey:
			parts = append(parts, c.Name+" = "+value)
		case what == "excluded" && !isKey:
			parts = append(parts, c.Name+" = excluded."+c.Name)
		}
	}
	switch what {
	case "rows":
		return d.rows(t.columns)
	case "key":
		return strings.Join(parts, " AND ")
	}
	return strings.Join(parts, ", ")
}

func (d *Dialect) rows(columns []Column) string {
	if d.Rows != nil {
		return d.Rows(columns)
	}
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return "{parameters " + strings.Join(names, " ") + "}"
}

var (
	fromParameters  = regexp.MustCompile(`FROM \{parameters ([^}]*)\}`)
	joinsParameters = regexp.MustCompile(`FROM \{parameters [^}]*\}\s+JOIN (\S+ \w+) ON`)
)

// withParameters puts parameters in the place of n's columns, and n is no table any more: to read its one row
// would cost more than what the statement does with it.
func withParameters(sql string) string {
	m := fromParameters.FindStringSubmatch(sql)
	if m == nil {
		return sql
	}
	if join := joinsParameters.FindStringSubmatchIndex(sql); join != nil {
		sql = sql[:join[0]] + "FROM (SELECT 1) AS one JOIN " + sql[join[2]:join[3]] + " ON" + sql[join[1]:]
	} else {
		sql = strings.Replace(sql, m[0], "", 1)
	}
	for i, name := range strings.Fields(m[1]) {
		sql = regexp.MustCompile(`\bn\.`+name+`\b`).ReplaceAllString(sql, fmt.Sprint("?", i+1))
	}
	return sql
}

// All returns the engine's statements by their names. In the files each stands below a line "-- name: NAME". A list has a
// twin that goes up instead of down.
func (d *Dialect) All() map[string]string {
	all := make(map[string]string)
	for _, part := range append(strings.Split(sharedStatements, "-- name: ")[1:], strings.Split(d.Statements, "-- name: ")[1:]...) {
		name, statement, _ := strings.Cut(part, "\n")
		name, statement = strings.TrimSpace(name), d.Spell(strings.TrimSpace(statement))
		if all[name] = statement; strings.HasPrefix(name, "list") {
			all[name+"_up"] = strings.NewReplacer("w.seq < ", "w.seq > ", "w.seq DESC", "w.seq").Replace(statement)
		}
	}
	return all
}

// LaneColumns and WebhookColumns are the columns of {lane} and {webhook}.
var LaneColumns, WebhookColumns = tableOf("lane").names(), tableOf("webhook").names()

// A table is one of 001.sql, whose columns stand there and, in the same order, in the inbox's Go, and nowhere else.
type table struct {
	columns []Column
	key     []string
}

var (
	columnLine = regexp.MustCompile(`(?m)^\s*(\w+)\s+\{(int|number|text|bytes|json)\}([^,\n]*)`)
	keyLine    = regexp.MustCompile(`PRIMARY KEY \((.*?)\)`)
	sqlComment = regexp.MustCompile(`--.*`)
)

func tableOf(name string) (t table) {
	_, script, _ := strings.Cut(sqlComment.ReplaceAllString(Tables, ""), "CREATE TABLE {schema}."+name+" (")
	script, _, _ = strings.Cut(script, ";")
	for _, m := range columnLine.FindAllStringSubmatch(script, -1) {
		t.columns = append(t.columns, Column{m[1], m[2]})
		if strings.Contains(m[3], "PRIMARY KEY") {
			t.key = []string{m[1]}
		}
	}
	if key := keyLine.FindStringSubmatch(script); key != nil && t.key == nil {
		t.key = strings.Split(key[1], ", ")
	}
	return t
}

func (t table) names() (names []string) {
	for _, c := range t.columns {
		names = append(names, c.Name)
	}
	return names
}
