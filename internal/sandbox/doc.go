// Package sandbox is a billing service and a webhook receiver of our own, to
// try usher on: the demo runs them, and the tests of the other packages do.
//
// [Billing] is the service's side of a call: a token endpoint that signs real
// JWTs and a GraphQL endpoint that checks them. [Sender] is the service's side
// of a webhook: a small world of tenants whose subscriptions change. [Receiver]
// is the customer's application, which keeps what each tenant may use.
//
// The sandbox is honest: where the published interface says that something is
// refused, it is refused here; where the interface is silent, the sandbox takes
// the stricter reading, so that what works against it has a fair chance to work
// against the real service. A [Fault] makes each of them fail on demand, and a
// [Wire] the network in front of them.
//
// Nothing here but a Wire starts a goroutine of its own, and time comes from package
// time alone: everything but a Wire works inside a testing/synctest bubble.
package sandbox
