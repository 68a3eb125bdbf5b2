// The words of the inbox's tests, and where they are.
//
// A test says on what it runs (engine_test.go):
//
//	onEngines, onBothEngines   on a file, and on PostgreSQL in thorough runs alone, or always
//	onFile, inBubble           on a file in a synctest bubble, where an hour takes no time
//	costly, slow, some         what takes much runs only in thorough runs, or with -long alone
//	inFile, inDatabase         open an engine on that file, or in that schema
//	killed                     a copy of a file, as it is if usher is killed now
//	intercepted, between       an engine that a test sees through, holds up or refuses: held, tally, away
//	another, inSchema          another client of the database (database_test.go)
//
// A desk is a running inbox with its receiver, and most tests have one (desk_test.go): newDesk starts it as a setup
// says, restart ends it and opens it again. opened opens an inbox that delivers nothing.
//
//	hook, event, snapshotOf    make a webhook: a snapshot, or an event; the body of a snapshot
//	send, take, insist         it comes: what came of it (+ taken in, = a copy, or why not); it must be taken in
//	invalid, recordInvalid     it cannot be taken in (invalid_test.go)
//	idle, becomes, until       wait until nothing of a tenant waits, until it has these states, until a func says so
//	states, list, nth, want    what there is, and what must be
//	main                       its receiver, a taker: set what it answers, hang it, what it got, what it tried
//	together                   operations in one transaction (batch_test.go)
//	begin, decide, pass        a reconcile, by hand (reconcile_test.go)
//
// A story is what happens to one tenant, as words: "A+ idle A= B+" (story_test.go, where the words are). A mirror is a
// program that follows the changes (changes_test.go). A Box is the inbox in tests of other packages (inboxtest).
//
// A world is random: senders, receivers, people and troubles do what a seed says, and a judge knows what must hold of
// all that happened (property_test.go has the worlds, property_judge_test.go the judge). Its places are processes, each
// with one life after the other. A sim (lanes_test.go) is a world on lanes alone, with a clock of its own and Memory
// (memory_test.go) in place of a database: thousands of them take seconds. A world that fails prints its seed and its
// story: -world SEED plays it again, -skip leaves steps out, -shrink looks for the shortest story, -worldlog shows the
// log.
package inbox

import (
	"testing"

	"usher/internal/testkit"
)

func TestMain(m *testing.M) { testkit.MainInMemory(m) }
