// The words of the inbox's tests, and where they are.
//
// A test says on what it runs (engine_test.go):
//
//	onEngines, onBothEngines     on a file and, mostly in thorough runs alone, on PostgreSQL; or on both always
//	onFile, inBubble             on a file in a synctest bubble, where an hour takes no time
//	costly, slow, some           what takes much runs only in thorough runs, or with -long alone
//	inFile, inDatabase           open an engine on that file, or in that schema
//	killed                       a copy of a file, as it is if usher is killed now
//	intercepted, between         an engine that a test sees through, holds up or refuses: held, tally, refusedLane, away
//	another, connectTo, inSchema another client of the database (database_test.go)
//
// A desk is a running inbox with its receiver, and most tests have one (desk_test.go): newDesk starts it as a setup
// says, restart ends it and opens it again. opened opens an inbox that delivers nothing.
//
//	hook, event, snapshotOf      make a webhook: a snapshot, or an event; the body of a snapshot
//	send, take, insist           it comes: what came of it (+ taken in, = a copy, or why not); it must be taken in
//	invalid, recordInvalid       it cannot be taken in (invalid_test.go)
//	idle, becomes, until         wait until nothing of a tenant waits, until it has these states, until a func says so
//	states, list, nth, want      what there is, and what must be
//	main                         its receiver, a taker: set what it answers, hang it, what it got, what it tried
//	together, endsEmpty          works in one transaction; the courier holds nothing more (batch_test.go)
//	begin, decide, pass          a reconcile, by hand (reconcile_test.go)
//
// A story is what happens to one tenant, as words: "A+ idle A= B+" (story_test.go, where the words are). A mirror is a
// program that follows the changes (changes_test.go). A Box is the inbox in tests of other packages (inboxtest).
//
// A world is random: senders, receivers, people and troubles do what a seed says, and a judge knows what must hold of
// all that happened (property_test.go says what, property_judge_test.go and property_missed_test.go judge):
//
//	pace                         how fast it lives: filePace in a bubble, databasePace in real time
//	place, life                  where a process runs, and from its start to its end; a group of worlds has one server
//	arrival, try                 a webhook that was sent, with its plan; a try of it at a receiver
//	redelivery, discard, span    what people did, and when; unsure: nobody knows whether it was done
//	saying, aRun, ask            what the billing service says of a tenant; a reconcile; a question for its snapshot
//	holding, trouble             what a receiver holds of a tenant; when a process had a problem with its database
//
// A sim (lanes_test.go) is a world on lanes alone, with a clock of its own and Memory (memory_test.go) instead of a
// database: thousands of them take seconds. There a Work is a piece of work, an event what happens at a time, a miss
// a webhook that got a 5xx, a rejection one that is invalid. A world that fails prints its seed and its story: -world
// SEED plays it again, -skip leaves steps out, -shrink looks for the shortest story, -worldlog shows the log.
//
// A decision that needs no database is tested in package lane: how a line is judged, what an erasure leaves.
//
// What goes wrong with a disk, a network or a row: damage_test.go, file_test.go, faults_test.go, doubt_test.go,
// hang_test.go, rejected_test.go, and attack_test.go for clocks and transactions that run twice.
package inbox

import (
	"testing"

	"usher/internal/testkit"
)

func TestMain(m *testing.M) { testkit.MainInMemory(m) }
