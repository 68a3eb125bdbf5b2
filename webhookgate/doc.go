// Package webhookgate is the inbound part of usher: it takes the billing service's webhooks,
// checks who sent them and what they contain, and delivers them to the customer's
// application, one at a time and in order for each tenant.
//
// A webhook passes these checks in this order. The first check that fails answers the sender:
//
//	method and path → no web page (if there is no secret) → token → body → signature → JSON →
//	type and schema → a place in flight → the tenant's lane → dedup → receiver
//
// The gate reads nothing of the body before it has checked the headers, and parses nothing before
// it has checked the signature. Three packages do what needs no knowledge of senders and lanes:
// content reads a body, signature checks and makes signatures, and receiver sends a webhook once.
//
// A lane is the queue of one tenant. Its webhooks are delivered one at a time, in the order in
// which they arrived.
//
// A webhook is a complete snapshot of what a tenant may use, and carries no id. So dedup asks
// only one question: does the receiver already hold exactly this state? The answer is yes if
// the last snapshot that the receiver accepted in this lane has the same bytes, and was
// accepted within the window. In every other case, also in doubt, the snapshot is delivered:
// A, B, A is three changes.
//
// A sender waits for Config.AnswerWithin at most. Then it gets 504, its delivery goes on, and the copy that it sends
// next shares the outcome.
//
// A webhook of one of Config.SyncTypes is a question to the receiver, such as whether a checkout may go on. It needs
// nothing but its type: the gate sends it once, outside the lanes, and the receiver's answer is the answer
// to the sender. What the gate itself answers is a sentence for the buyer.
//
// # Answers
//
// Every answer is a JSON object, except the receiver's answer to a question. Its decision is
// in the Usher-Decision header, too:
//
//	decision   forwarded, queued, duplicate (all 200), rejected (4xx) or failed (5xx)
//	error      a sentence that says what is wrong; missing on a 200
//	faults     what is wrong with the body: a list of {"path", "message"}, the
//	           first 16 KiB of it; the path is a JSON pointer
//	webhook    the webhook-id that the receiver gets; for a duplicate, the id of
//	           the webhook that it duplicates
//	tries      how often usher tried the receiver
//	receiver   the receiver's last answer, if it was not a 2xx: {"status"}.
//	           Missing if there was no answer
//
// Statuses: 200; 400 not JSON, or a body that ended too early; 401 token or signature; 403
// a web page; 404 path; 405 method; 408 the body stopped arriving; 413 too large; 421 Host; 422 wrong shape
// or type; 500 usher itself failed; 502 the receiver failed; 503 with Retry-After: too much at
// once, shutting down, the inbox cannot take it in time, or unable to sign; 504 the receiver did not answer in time.
package webhookgate
