package store

import (
	_ "embed"
	"strconv"
	"strings"
)

// Tables is the script that makes the tables, before an engine's spelling.
//
//go:embed 001.sql
var Tables string

//go:embed statements.sql
var sharedStatements string

// Spelling makes from the SQL in .sql files the SQL of one engine. own are pairs: a text and its replacement, as in
// strings.NewReplacer. {lane} and {webhook} become the columns that scanLane and scanWebhook read.
func Spelling(own ...string) *strings.Replacer {
	return strings.NewReplacer(append(own,
		"{lane}", "l.key, l.tenant, l.event_type, l.tail, l.details, "+
			"l.waiting, l.resent, l.parked, l.refused, l.bytes, l.waiting_since, l.last_result, l.last_try, l.not_before, l.paused, l.due, l.owner",
		"{webhook}", "w.seq, w.uuid, w.lane, w.type, w.snapshot, w.digest, w.size, w.received, w.state, w.status, l.tenant, coalesce(l.tail, 0)",
		"{never}", strconv.FormatInt(never, 10),
	)...)
}

// Statements returns an engine's statements by their names: those that both engines have, and the engine's own. In the text each
// stands below a line "-- name: NAME".
func Statements(own string, spelling *strings.Replacer) map[string]string {
	all := make(map[string]string)
	for _, part := range append(strings.Split(sharedStatements, "-- name: ")[1:], strings.Split(own, "-- name: ")[1:]...) {
		name, statement, _ := strings.Cut(part, "\n")
		all[strings.TrimSpace(name)] = spelling.Replace(strings.TrimSpace(statement))
	}
	return all
}
