// The language of the inbox's tests.
//
// A desk (desk_test.go) is a running inbox with a receiver, and most tests have one: newDesk starts it, restart ends
// and opens it again. Its receiver is a taker: set says what it answers for a tenant, hang lets its tries wait, got
// is what it has accepted, tried all tries.
//
//	d.take("t", "A")        a webhook of tenant t with the body A comes, and must be taken in
//	d.send("t", "A")        the same, and returns what came of it: + taken in, = a copy, or why not, such as full
//	d.idle("t")             wait until nothing of t waits
//	d.until("what", f)      wait until f says yes; the test fails with what, and with a picture of the inbox
//	d.states("t")           the states of t's webhooks, the oldest first
//	d.want("what", a, b)    a must be b
//
// A test says on what it runs:
//
//	onEngines, onFile, onBothEngines     on a file and, mostly with -race alone, on PostgreSQL
//	inBubble, inBubbleOn                 on a file in a synctest bubble, where an hour takes no time: when webhooks are tried
//	costly, some                         what takes much runs only with -race or -long
//
// A story (story_test.go) is what happens to one tenant, as words: "A+ idle A= B+". Its words stand there.
//
// A world (property_test.go) is random: senders, receivers, people and troubles do what a seed says, and a judge
// (property_judge_test.go) knows what must hold of all that happened. A world runs on an inbox in a file, in a
// bubble, or on PostgreSQL, at a pace of its own. A sim (lanes_test.go) is a world on lanes alone, in Memory
// (memory_test.go) instead of a database, so thousands of them take a minute. One that fails prints its seed and its
// story: -world SEED plays it again, -skip leaves steps out, -shrink looks for the shortest story.
//
// What the disk or the network does to a row or a connection: damage_test.go, faults_test.go, doubt_test.go,
// hang_test.go.
package inbox

import (
	"testing"

	"usher/internal/testkit"
)

func TestMain(m *testing.M) { testkit.MainInMemory(m) }
