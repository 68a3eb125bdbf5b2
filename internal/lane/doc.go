// Package lane decides what becomes of webhooks. A lane is the queue of one tenant: its webhooks are delivered one by
// one, in the order in which they came. Whatever can happen to a lane is a method of Lane, in plain Go:
//
//	turn.go       a transaction, as lanes see it: the clock, the rules, and what it asks of the inbox
//	lane.go       a lane: its row, its webhooks in memory, their states and counts
//	webhook.go    a webhook, and what happened to it
//	intake.go     a webhook comes: is it a duplicate, is it stored, does it supersede another one?
//	delivery.go   who may deliver (leases), and what comes of a try
//	people.go     what people do: redeliver, discard, pause, erase
//	missed.go     webhooks that got a 5xx
//	reconcile.go  what the billing service says of a tenant, compared with what usher knows
//	errors.go     why something is not possible
//	state/        the states of a webhook
//
// The package knows no SQL, no writer and no courier. Package inbox locks the rows of some lanes, makes a Turn, gives
// it the lanes (Turn.Load), calls their methods, and writes what Turn.Changes returns, all in one transaction. What of
// a lane is not in memory, the lane asks of the interface Inbox. In the property test that is a few maps.
//
// Times without a type are microseconds since 1970 by the database's clock; clock.Never is a time that does not come.
package lane
