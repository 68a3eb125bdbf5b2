// Package webhookgate is the inbound half of usher: it takes the billing
// service's webhooks, checks who sent them and what they say, and hands them to
// the customer's application, one at a time and in order for each tenant.
//
// A webhook passes these stations, and the first that objects answers:
//
//	method and path → address, shared secret → a place in flight → body →
//	signature → JSON → type and schema → the tenant's lane → dedup → receiver
//
// Nothing is read before the headers have passed, and nothing is parsed before
// the signature has.
//
// A webhook is a whole snapshot of what a tenant may use, and carries no id. So
// dedup asks one thing only: does the receiver already hold exactly this state?
// The answer is yes when the last snapshot that the receiver accepted in this
// lane has the same bytes, and was accepted within the window. In every other
// case, doubt included, the snapshot is delivered: A, B, A is three changes.
//
// Event types that ask the receiver a question (Config.SyncTypes) leave that way
// after the schema: they are sent once, in no lane, and answered by the receiver.
//
// # Answers
//
// Every answer but the receiver's to a question is a JSON object, and its decision is in the Usher-Decision
// header too:
//
//	decision   forwarded, queued, duplicate (all 200), rejected (4xx) or failed (5xx)
//	error      a sentence on what is wrong; not there on a 200
//	faults     what is wrong with the body: a list of {"path", "message"}, the
//	           path being a JSON pointer, at most 1,000 of them
//	webhook    the webhook-id under which the receiver got it; a duplicate
//	           shows that of the delivery which it is a duplicate of
//	tries      how often the receiver was tried
//	receiver   the receiver's last answer, when it was not a 2xx: {"status",
//	           "body"}, the body being an excerpt; not there when it gave none
//
// Statuses: 200; 400 not JSON, or a body that broke off; 401 secret or
// signature; 403 address; 404 path; 405 method; 408 the body stopped coming; 413
// too large; 422 wrong shape or type; 500 usher broke down; 502 the receiver
// failed; 503 with Retry-After too much at once, shutting down, or unable to
// sign; 504 the receiver timed out.
package webhookgate
