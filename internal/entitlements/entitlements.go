// Package entitlements answers one question: may this tenant use this feature? A check passes three stations: guard
// (may this caller ask at all?), then Lookup (what does the tenant's last snapshot say?), then yes or no. It says yes or
// no only if it knows. If something is not known (the tenant, its features, the store itself), the answer is an error
// with its own status, and the caller decides what to do.
package entitlements

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"usher/internal/snapshot"
	"usher/internal/text"
)

// Lookup returns the last snapshot that was taken in for a tenant. platform is nil if the caller
// named none; a pointer to "" means the tenant without a platform.
//
// It returns ErrUnknown only if no webhook of that tenant was ever taken in, because callers then use
// their default; an *AmbiguousError if no platform is named and the code exists on several; any other
// error means that it cannot tell now.
type Lookup func(ctx context.Context, tenant string, platform *string) (Answer, error)

// An Answer is what usher knows about one tenant.
type Answer struct {
	snapshot.Stored // without Features, which are decoded in Snapshot
	Snapshot        snapshot.Snapshot
	// Stale is for how long the store could not be read. Another replica may have taken in a newer snapshot
	// since. It is zero if the answer is current.
	Stale time.Duration
}

var (
	// ErrUnknown says that no webhook of the tenant was ever taken in.
	ErrUnknown = errors.New("usher has not accepted a webhook of this tenant yet")

	errFeaturesUnknown = errors.New("the last webhook of this tenant has no list of features that can be read")
)

// An AmbiguousError says that a tenant's code exists on several platforms.
type AmbiguousError struct{ Platforms []string }

func (e *AmbiguousError) Error() string {
	var names []string
	for _, platform := range e.Platforms {
		names = append(names, strconv.Quote(platform))
	}
	return fmt.Sprintf("the tenant's code exists on several platforms: add platform, one of %s",
		text.Clip(strings.Join(names, ", "), 200))
}

// Changes returns what has changed after a cursor or, if that is empty, all tenants: at most so many. While
// there is nothing, it waits so long.
type Changes func(ctx context.Context, after string, limit int, wait time.Duration) (*snapshot.Changes, error)
