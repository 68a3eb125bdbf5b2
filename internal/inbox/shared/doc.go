// Package shared keeps the inbox on NATS JetStream, for several replicas of usher.
//
// # What is where
//
// One stream holds what is not finished, under subjects that begin with the number of a
// part (the lanes fall into 16 of them):
//
//	P.in.TENANT.LANE         a lane: its webhooks that wait, and what it remembers
//	P.state.TENANT.LANE.ID   how a webhook stands, once a try has failed; with its content if it is
//	                         outside its lane: parked, or sent again by hand
//	P.lease, P.claim         who delivers the part
//	paused                   deliveries that somebody has paused
//
// A second stream holds what is finished. The servers decide how long: it has a limit of age, of
// bytes and of messages, and no code here walks through it to delete.
//
// # A lane
//
// Every message of a lane says how the lane ends (see message.Head), so its last message is all that
// one has to know of it: which webhook was the last, what a copy of it would look like,
// and which message holds the last snapshot. Whatever is written to a lane names the message
// that it believes to be the last; the servers refuse it if that is no longer so, and then
// the lane is read again. So what a replica believes may be out of date, and nothing is decided
// by it.
//
//   - A webhook is appended.
//   - A copy of the lane's last is noted at the lane's end, in the place of the note before
//     it: from then on the servers refuse what came before the copy and is stuck on its way.
//   - When the lane's last webhook is finished one message takes the place of all before it
//     (a rollup): the lane's memory, with the last snapshot in it. It never expires.
//   - What is finished before the lane's last is deleted.
//
// # Who delivers
//
// Each part has a lease of its own; see the package lease. Its holder reads what the part has, headers
// only, hands it to the courier, and from then on what comes in. If the servers do not have what
// the holder expects, it gives the part up, takes it again and reads it: there is no other repair.
//
// # Rooms below
//
//	servers   the connection, the two streams, requests and how they fail, how full it is
//	message   what is written: subjects, headers, contents
//	lease     which replica has which part
//
// # Which file has what
//
//	store                                 opens it, and puts the rooms together
//	append end line                       how a webhook comes in
//	term reading note vacate damaged      what a replica reads and writes of its parts
//	find query snapshot                   what is shown
//	act errand pause erase                what people do
package shared
