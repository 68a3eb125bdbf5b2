// Package lane decides what becomes of webhooks. A lane is the queue of one tenant: its webhooks are delivered one by
// one, in the order in which they came. Whatever can happen to a lane is a method of Lane, in plain Go:
//
//	state/        the states of a webhook
//	webhook.go    a webhook, and what happened to it
//	errors.go     why something is not possible
//	lane.go       a lane: its row, its webhooks in memory; and a turn: a transaction, as lanes see it
//	lease.go      who may deliver
//	intake.go     a webhook comes: is it a duplicate, is it stored?
//	parked.go     which webhooks a newer snapshot supersedes
//	outcome.go    what comes of a try
//	people.go     what people do: redeliver, discard, erase
//	reconcile.go  what the billing service says of a tenant, compared with what usher knows; catchup.go: by its log
//
// The package knows no SQL, no writer and no courier. Package inbox locks the rows of some lanes, gives them to a Turn
// with all that their decisions need, calls their methods, and writes what Turn.Changes returns, all in one transaction.
//
// Times without a type are microseconds since 1970 by the database's clock; clock.Never is a time that does not come.
package lane
