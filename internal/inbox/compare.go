package inbox

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"usher/internal/lane"
)

// A list is what the billing service says of all tenants, as far as it was read. It lives as long as the
// request that brings it, and knows no SQL.
type list struct {
	seen    map[[16]byte][16]byte // every tenant of the list, with a digest of its features
	perhaps []lane.Compared       // new tenants that are twins, unless the list has the tenant on the other platform, too
	sum     lane.Counts
	applied int
	untaken []string // some of the platforms that no receiver takes
}

// maxUntaken is how many platforms that no receiver takes are named.
const maxUntaken = 5

func newList() list { return list{seen: make(map[[16]byte][16]byte), sum: make(lane.Counts)} }

func keyOf(platform, tenant string) [16]byte {
	sum := sha256.Sum256([]byte(platform + "\x00" + tenant))
	return [16]byte(sum[:16])
}

func (l *list) has(platform, tenant string) bool {
	_, listed := l.seen[keyOf(platform, tenant)]
	return listed
}

// enter enters a line, before it is judged. It says whether a line before it has said the same, so that nothing
// is to be done with this one.
func (l *list) enter(o *lane.ListLine) (repeats bool) {
	if o.Draft.Result == lane.Faulty {
		return false
	}
	key, says := keyOf(o.Draft.Platform, o.Draft.Tenant), lane.FeaturesDigest(o.Says)
	before, twice := l.seen[key]
	if o.Contradicts = twice; !twice {
		l.seen[key] = says
	}
	return twice && (before == says || o.Draft.Result == lane.PassedOver)
}

// count counts a line, once it was judged, and says whether to tell of it.
func (l *list) count(o *lane.ListLine, c *lane.Compared) (tell bool) {
	switch {
	case o.Contradicts && c.Result == lane.Changed:
		return false
	case o.Contradicts:
		c.Result = lane.Faulty
		c.Fault = fmt.Sprintf("the tenant %s was printed before, with other features", ShowTenant(c.Platform, c.Tenant))
	case c.MayBeTwin():
		l.perhaps = append(l.perhaps, *c)
		return false
	case c.Result == lane.PassedOver:
		platform := cmp.Or(c.Platform, `""`)
		if len(l.untaken) < maxUntaken && !slices.Contains(l.untaken, platform) {
			l.untaken = append(l.untaken, platform)
		}
	case c.Applied:
		l.applied++
	}
	l.sum[c.Result]++
	return c.Result != lane.Equal && c.Result != lane.PassedOver
}

// twins decides which of the new tenants are twins, once the whole list is known.
func (l *list) twins() []lane.Compared {
	for n := range l.perhaps {
		c := &l.perhaps[n]
		unlisted := func(platform string) bool { return !l.has(platform, c.Tenant) }
		if slices.ContainsFunc(c.Elsewhere, unlisted) {
			c.Result = lane.Twin
		} else {
			c.Elsewhere = nil
		}
	}
	return l.perhaps
}

// failure says why the comparison of the list fails; empty: it does not.
func (l *list) failure() string {
	compared := l.sum[lane.Equal] + l.sum.Findings()
	switch faulty := l.sum[lane.Faulty]; {
	case faulty == 1:
		return "1 line cannot be compared"
	case faulty > 1:
		return fmt.Sprint(faulty, " lines cannot be compared")
	case len(l.seen) == 0:
		return "the command printed nothing"
	case compared == 0 && l.sum[lane.Changed] == 0: // rather a list of another platform than one that says nothing
		return fmt.Sprintf("nothing was compared: no receiver takes these platforms: %s. Are they right?",
			strings.Join(l.untaken, ", "))
	case compared == 0:
		return "nothing was compared: something came for each of these tenants meanwhile. Run it again"
	}
	return ""
}
