// Package webhookgate is the inbound part of usher: it takes the billing service's webhooks, checks who sent them and
// what they contain, and stores them or delivers them to the customer's application, in order for each tenant.
//
// A webhook passes these checks in this order. The first check that fails answers the sender:
//
//	method and path → no web page (if there is no secret) → token → body → signature → JSON →
//	type and schema → a place in flight → the inbox, or: the tenant's lane → dedup → receiver
//
// The gate reads nothing of the body before it has checked the headers, and parses nothing before
// it has checked the signature.
//
// A lane is the queue of one tenant. A webhook is a complete snapshot of what a tenant may use, and carries no id. So
// dedup asks only one question: does the receiver already hold exactly this state? The answer is yes if the last
// snapshot that the receiver accepted in this lane has the same bytes, and was accepted within the window. In every
// other case, also in doubt, the snapshot is delivered: A, B, A is three changes.
//
// A webhook of one of Config.SyncTypes is a question to the receiver, such as whether a checkout may go on. The gate
// sends it once, outside the lanes, and the receiver's answer is the answer to the sender.
//
// Statuses: 200; 400 not JSON, or a body that ended too early; 401 token or signature; 403 a web page; 404 path; 405
// method; 408 the body stopped arriving; 413 too large; 421 Host; 422 wrong shape or type; 500 usher itself failed;
// 502 the receiver failed; 503 with Retry-After: too much at once, shutting down, the inbox cannot take it in time, or
// unable to sign; 504 the receiver did not answer in time.
package webhookgate
