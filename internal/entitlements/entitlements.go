// Package entitlements answers one question: may this tenant use this feature?
//
// The way of a check is: guard (may this caller ask at all?), then Lookup (what does
// the tenant's last snapshot say?), then yes or no. A Snapshot is what a webhook says
// of a tenant's features, in few bytes; an Index holds those of all tenants. Where
// they are kept beyond the process is no concern of this package: a store implements
// Lookup and nothing else.
//
// There is no third answer between yes and no, so the package never makes one up.
// Whatever is not known (the tenant, its features, the store itself) is an error with
// a status of its own, and what to do then is the caller's decision.
package entitlements

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Lookup returns the last snapshot that was taken in for a tenant. platform is nil
// where the caller named none; a pointer to "" means the tenant that has no platform.
//
// It returns ErrUnknown, an *AmbiguousError or a *NotReadyError; any other error is
// answered like the last. An implementation owes its callers:
//
//   - Its answer is never older than a webhook that was answered 200 here before the
//     call.
//   - ErrUnknown means that no webhook of that tenant was ever taken in. Where that
//     can't be known (the records are not read yet, the servers can't be reached) it
//     is a *NotReadyError: an unknown tenant gets the caller's default.
//   - Without a platform it returns an answer only if the tenant's code exists on one
//     platform, counting those whose snapshots it does not hold.
//   - What it holds but could not compare with the servers is returned with Stale set.
//   - It is called concurrently, and returns soon after ctx ends.
type Lookup func(ctx context.Context, tenant string, platform *string) (Answer, error)

// An Answer is what is known of one tenant.
type Answer struct {
	Entry
	// Stale is for how long it could not be compared with what other replicas may
	// have taken in; zero while it can.
	Stale time.Duration
}

// An Entry is a tenant's last snapshot.
type Entry struct {
	Platform string // its code; empty for none
	Tenant   string
	Snapshot Snapshot
	AsOf     time.Time // when the webhook was taken in
	Webhook  string    // its id
	Seq      uint64    // its place in the store's order: of two, the higher one is the newer
}

// ErrUnknown says that no webhook of the tenant was ever taken in.
var ErrUnknown = errors.New("no webhook of this tenant was received yet")

// An AmbiguousError says that a tenant's code exists on several platforms.
type AmbiguousError struct{ Platforms []string }

func (e *AmbiguousError) Error() string {
	const most = 10
	named := make([]string, 0, most)
	for _, p := range e.Platforms[:min(len(e.Platforms), most)] {
		named = append(named, fmt.Sprintf("%q", p))
	}
	list := strings.Join(named, ", ")
	if more := len(e.Platforms) - len(named); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return "the tenant's code exists on several platforms (" + list + "): name one"
}

// A NotReadyError says that nothing can be said of a tenant for now.
type NotReadyError struct {
	RetryAfter time.Duration // when to ask again; a second at least
	Why        string        // shown to the caller
}

func (e *NotReadyError) Error() string { return e.Why }
