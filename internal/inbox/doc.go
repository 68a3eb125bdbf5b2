// Package inbox keeps webhooks safe until the receiver has taken them.
//
// A [Store] makes a webhook durable before its sender is told 200, and remembers of
// each lane what its last snapshot was. The courier above it delivers: one at a time
// in a lane, in order, lanes independent of each other, with backoff, and gently
// while the receiver is down. What belongs to the store is what must survive the
// process, or be agreed on by several; when and how to try is the courier's.
package inbox
