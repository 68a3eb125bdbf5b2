// Package entitlements answers one question: may this tenant use this feature?
//
// A check passes three stations: guard (may this caller ask at all?), then Lookup (what does the
// tenant's last snapshot say?), then yes or no. A Snapshot is what a webhook says about a
// tenant's features, in few bytes. An Index holds the snapshots of all tenants. The package does
// not know where they are stored: a store implements Lookup and nothing else.
//
// The package says yes or no only if it knows. If something is not known (the tenant, its
// features, the store itself), the answer is an error with its own status, and the caller
// decides what to do.
package entitlements

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Lookup returns the last snapshot that was taken in for a tenant. platform is nil if the caller
// named none; a pointer to "" means the tenant without a platform.
//
// It returns ErrUnknown, an *AmbiguousError or a *NotReadyError; any other error counts as not
// ready. An implementation must guarantee:
//
//   - Its answer is never older than a webhook that was answered 200 here before the
//     call.
//   - ErrUnknown means that no webhook of that tenant was ever taken in. If that is not
//     certain (the records are not read yet, the servers cannot be reached) it returns a
//     *NotReadyError, because callers use their default for an unknown tenant.
//   - Without a platform it returns an answer only if the tenant's code exists on one
//     platform, counting those whose snapshots it does not hold.
//   - If it could not compare its answer with the servers, Stale is set.
//   - It is called concurrently, and returns soon after ctx ends.
type Lookup func(ctx context.Context, tenant string, platform *string) (Answer, error)

// An Answer is what is known of one tenant.
type Answer struct {
	Entry
	// Stale is for how long the answer could not be compared with what other replicas have
	// taken in; zero if it could.
	Stale time.Duration
}

// An Entry is a tenant's last snapshot.
type Entry struct {
	Platform string // its code; empty for none
	Tenant   string
	Snapshot Snapshot
	AsOf     time.Time // when the webhook was taken in
	Webhook  string    // its id
	Seq      uint64    // its number in the store's order: the higher one is newer
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

// A NotReadyError says that there is no answer about a tenant for now.
type NotReadyError struct {
	RetryAfter time.Duration // when to ask again; a second at least
	Why        string        // shown to the caller
}

func (e *NotReadyError) Error() string { return e.Why }
