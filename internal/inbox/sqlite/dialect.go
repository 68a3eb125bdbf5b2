package sqlite

import (
	_ "embed"
	"fmt"

	"usher/internal/inbox/engine"
)

//go:embed statements.sql
var statementsText string

//go:embed 001.sql
var schema001 string

var migrations = engine.Migrations{engine.Tables + schema001}

var (
	dialect    = newDialect()
	statements = dialect.All()
)

// newDialect also drops PostgreSQL's casts. Its parameters are $1, and SQLite's ?1. If a parameter alone is the limit,
// SQLite plans the statement anew each time that it runs, because another limit might have a better plan: that took
// more time than all else. And SQLite takes a negative limit for none, and would read everything; NULL it refuses.
func newDialect() *engine.Dialect {
	words := []string{
		"{schema}.", "",
		"{int}", "INTEGER", "{number}", "INTEGER",
		"{text}", "TEXT",
		"{json}", "TEXT",
		"{bytes}", "BLOB",
		"{empty}", "x''",
		"{keyed}", "WITHOUT ROWID",
		"{counter}", "INTEGER PRIMARY KEY AUTOINCREMENT",
		"{lock l}", "", "{skip}", "", // the whole file is locked already
		"{home}", "'opened'", // see migrate
		"{list $2}", "(SELECT value FROM json_each(?2))",
		"{size name}", "octet_length(s.name)", "{size features}", "coalesce(octet_length(s.features), 0)",
		"::bigint", "", "::text", "",
	}
	for n := 1; n <= 9; n++ {
		parameter := fmt.Sprint("?", n)
		words = append(words,
			fmt.Sprint("LIMIT $", n), fmt.Sprintf("LIMIT iif(%s < 0, NULL, %[1]s)", parameter),
			fmt.Sprint("$", n), parameter)
	}
	return &engine.Dialect{Words: words, Statements: statementsText}
}
