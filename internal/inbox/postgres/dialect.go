package postgres

import (
	_ "embed"
	"fmt"
	"strings"

	"usher/internal/inbox/engine"
)

//go:embed statements.sql
var statementsText string

func newDialect(schema string) *engine.Dialect {
	return &engine.Dialect{
		Words: []string{
			"{home}", "(pg_postmaster_start_time()::text || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '" + schema + ".number'::regclass::oid::text)",
			"{schema}", schema,
			"{int}", "bigint", "{number}", "bigint",
			"{text}", `text COLLATE "C"`,
			"{json}", "jsonb",
			"{bytes}", "bytea",
			"{empty}", "''::bytea",
			"{keyed}", "",
			"{counter}", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
			"{list $2}", "(SELECT jsonb_array_elements_text($2::jsonb))",
			"{lock l}", "FOR UPDATE OF l SKIP LOCKED",
			"{skip}", "FOR UPDATE SKIP LOCKED",
			"{size name}", "octet_length(s.name)", "{size features}", "coalesce(pg_column_size(s.features), 0)",
		},
		Rows:       rows,
		Statements: statementsText,
	}
}

// arrays are the types of {rows}.
var arrays = map[string]string{"int": "bigint[]", "number": "bigint[]", "text": "text[]", "bytes": "bytea[]", "json": "text[]"}

func rows(columns []engine.Column) string {
	values, names := make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		values[i], names[i] = fmt.Sprintf("$%d::%s", i+1, arrays[c.Kind]), c.Name
	}
	return "unnest(" + strings.Join(values, ", ") + ") AS n (" + strings.Join(names, ", ") + ")"
}
