// Package sandbox is a small billing service and a webhook receiver, to try usher with. The demo and
// the tests of other packages use it.
//
// [Billing] is the service's side of a call: a token endpoint that signs real
// JWTs and a GraphQL endpoint that checks them. [Sender] is the service's side
// of a webhook: a small world of tenants whose subscriptions change. [Receiver]
// is the customer's application, which keeps what each tenant may use.
//
// The sandbox is strict. It refuses what the published interface says is refused. If the interface
// does not say, the sandbox takes the stricter reading. So what works with the sandbox has a good
// chance to work with the real service. A [Fault] makes each part fail on demand, and a [Wire] makes
// the network in front of it fail.
//
// Only a Wire starts goroutines, and time comes from package time alone. So everything except a Wire
// works inside a testing/synctest bubble.
package sandbox
