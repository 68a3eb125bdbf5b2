package engine

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
		"{lane}", "l.tenant, l.platform, l.event_type, l.receiver, l.tail, l.tail_id, l.tail_digest, l.held, l.held_at, l.held_by, l.held_id, "+
			"l.waiting, l.parked, l.invalid, l.bytes, l.waiting_since, l.last_result, l.failures, l.failing_since, l.last_try, l.not_before, l.paused, l.due, l.owner, l.leased, l.token, l.last, l.last_at, "+
			"l.taken, l.taken_at, l.taken_snapshot, l.missed_since, l.missed_last, l.missed",
		"{webhook}", "w.seq, w.uuid, w.tenant, w.platform, w.event_type, w.type, w.snapshot, w.digest, w.size, w.received, w.state, w.rank, w.changed, w.why, w.record, w.source, coalesce(l.tail, 0)",
		"{of}", "l.tenant = w.tenant AND l.platform = w.platform AND l.event_type = w.event_type",
		"{never}", strconv.FormatInt(Never, 10),
	)...)
}

// troubled is the condition that a tenant has something that waits for somebody. {named}: it is one of the table $5.
const troubled = "l.parked + l.invalid > 0 OR l.missed_since > 0 OR f.result IS NOT NULL OR l.last_result > 0 AND l.waiting > 0 OR {named}"

// stands is the condition that a finding counts: nobody has dismissed it, and no newer snapshot of its tenant was taken in.
const stands = "f.result <> '' AND f.dismissed = 0 AND NOT EXISTS (SELECT 1 FROM {schema}.snapshot n WHERE n.tenant = f.tenant AND n.platform = f.platform AND n.seq > f.mark)"

// Statements returns an engine's statements by their names: those that both engines have, and the engine's own. In the text each
// stands below a line "-- name: NAME". Those of an export and an import are made from the tables.
func Statements(own string, spelling *strings.Replacer) map[string]string {
	all := make(map[string]string)
	for _, part := range append(strings.Split(sharedStatements, "-- name: ")[1:], strings.Split(own, "-- name: ")[1:]...) {
		name, statement, _ := strings.Cut(part, "\n")
		statement = strings.NewReplacer("{troubled}", troubled, "{stands}", stands).Replace(strings.TrimSpace(statement))
		name = strings.TrimSpace(name)
		if all[name] = spelling.Replace(statement); strings.HasPrefix(name, "list") {
			all[name+"_up"] = strings.NewReplacer("w.seq < ", "w.seq > ", "w.seq DESC", "w.seq").Replace(all[name])
		}
	}
	for _, l := range Exported {
		read, add := l.statements(all["import"])
		all["export_"+l.Name], all["import_"+l.Name] = spelling.Replace(read), spelling.Replace(add)
	}
	delete(all, "import")
	return all
}
