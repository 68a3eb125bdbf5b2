package engine

import (
	_ "embed"
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

// LaneColumns and WebhookColumns are the columns of {lane} and {webhook}, as scanLane and scanWebhook read them.
var LaneColumns, WebhookColumns = layoutOf("lane").names(), layoutOf("webhook").names()

// Spelling makes from the SQL in .sql files the SQL of one engine. own are pairs: a text and its replacement, as in
// strings.NewReplacer. {lane} and {webhook} become the columns that scanLane and scanWebhook read.
func Spelling(own ...string) *strings.Replacer {
	return strings.NewReplacer(append(append(own, state.SQL()...),
		"{lane}", "l."+strings.Join(LaneColumns, ", l."),
		"{webhook}", "w."+strings.Join(WebhookColumns, ", w.")+", coalesce(l.tail, 0)",
		"{of}", "l.tenant = w.tenant AND l.platform = w.platform AND l.event_type = w.event_type",
		"{never}", strconv.FormatInt(clock.Never, 10),
		"{largest}", strconv.FormatInt(MaxNumber, 10),
	)...)
}

// troubled is the condition that a tenant has something that waits for somebody.
const troubled = "l.parked + l.invalid > 0 OR l.last_result > 0 AND l.waiting > 0"

// Statements returns an engine's statements by their names: those that both engines have, and the engine's own. In
// the text each stands below a line "-- name: NAME". Those that read or write whole rows are made from the tables;
// see layout.statements.
func Statements(own string, spelling *strings.Replacer) map[string]string {
	all := make(map[string]string)
	for _, part := range append(strings.Split(sharedStatements, "-- name: ")[1:], strings.Split(own, "-- name: ")[1:]...) {
		name, statement, _ := strings.Cut(part, "\n")
		statement = strings.ReplaceAll(strings.TrimSpace(statement), "{troubled}", troubled)
		name = strings.TrimSpace(name)
		if all[name] = statement; strings.HasPrefix(name, "list") {
			all[name+"_up"] = strings.NewReplacer("w.seq < ", "w.seq > ", "w.seq DESC", "w.seq").Replace(all[name])
		}
	}
	put, save := all["put"], all["save"]
	delete(all, "put")
	delete(all, "save")
	lane, webhook := layoutOf("lane"), layoutOf("webhook")
	_, _, all["lane_save"] = lane.statements(put, save)
	_, _, all["lane_note"] = lane.only("last", "last_at").statements(put, save)
	all["add_webhook"], _, _ = webhook.statements(put, save)
	_, _, all["webhook_save"] = webhook.only("state", "rank", "changed", "why", "record").statements(put, save)
	all["add_content"], _, _ = layoutOf("content").statements(put, save)
	_, all["put_snapshot"], _ = layoutOf("snapshot").statements(put, save)
	for name, statement := range all {
		all[name] = spelling.Replace(statement)
	}
	return all
}
