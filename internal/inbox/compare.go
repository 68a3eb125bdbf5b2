package inbox

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"usher/internal/lane"
)

// What the billing service says of tenants, line by line, and how that stands to what usher knows. Nothing
// here knows SQL.

// A list is what the billing service says of all tenants, as far as it was read. It lives as long as the
// request that brings it.
type list struct {
	seen     map[[16]byte][8]byte // every tenant of the list, with a part of Compared.Says
	perhaps  []lane.Compared      // new tenants that are twins, unless the list has the tenant on the other platform, too
	sum      lane.Summary
	faults   int
	untaken  []string // some of the platforms that no receiver takes
	unstored string   // why not all were taken in
}

// maxUntaken is how many platforms that no receiver takes are named.
const maxUntaken = 5

func keyOf(platform, tenant string) [16]byte {
	sum := sha256.Sum256([]byte(platform + "\x00" + tenant))
	return [16]byte(sum[:16])
}

func (l *list) has(platform, tenant string) bool {
	_, listed := l.seen[keyOf(platform, tenant)]
	return listed
}

// enter adds a line, before it is judged. It says whether a line before it has said the same, so that nothing
// is to be done with this one.
func (l *list) enter(c *lane.Compared) (repeats bool) {
	if c.Fault != "" {
		return false
	}
	key := keyOf(c.Platform, c.Tenant)
	before, twice := l.seen[key]
	if !twice {
		l.seen[key] = [8]byte(c.Says[:8])
		return false
	}
	c.Contradicts = true
	return before == [8]byte(c.Says[:8]) || c.PassedOver
}

// count counts a line, once it was judged, and says whether to tell of it.
func (l *list) count(c *lane.Compared) (tell bool) {
	switch {
	case c.Contradicts && c.Result == lane.Changed:
		return false
	case c.Contradicts:
		c.Fault = fmt.Sprintf("the tenant %s was printed before, with other features", ShowTenant(c.Platform, c.Tenant))
	}
	switch {
	case c.Fault != "":
		l.faults++
		return true
	case c.PassedOver:
		l.sum.PassedOver++
		platform := cmp.Or(c.Platform, `""`)
		if len(l.untaken) < maxUntaken && !slices.Contains(l.untaken, platform) {
			l.untaken = append(l.untaken, platform)
		}
		return false
	case len(c.Elsewhere) > 0:
		l.perhaps = append(l.perhaps, *c)
		return false
	}
	l.sum.Add(c.Result)
	return c.Result != lane.Equal
}

// countApplied counts lines that were to be taken in, and says whether one could not be.
func (l *list) countApplied(some []lane.Compared) (stuck bool) {
	for _, c := range some {
		switch {
		case c.Err != nil:
			l.unstored, stuck = c.Err.Error(), true
		case c.Fault != "": // the settings have changed meanwhile
			l.faults++
		case c.Applied:
			l.sum.Applied++
		}
	}
	return stuck
}

// twins decides which of the new tenants are twins, once the whole list is known.
func (l *list) twins() []lane.Compared {
	for n := range l.perhaps {
		c := &l.perhaps[n]
		unlisted := func(platform string) bool { return !l.has(platform, c.Tenant) }
		if slices.ContainsFunc(c.Elsewhere, unlisted) {
			c.Result = lane.Twin
			c.Identify(0)
		} else {
			c.Elsewhere = nil
		}
		l.sum.Add(c.Result)
	}
	return l.perhaps
}

// failure says why the comparison of the list fails; empty: it does not.
func (l *list) failure() string {
	compared := l.sum.Equal + l.sum.Differs + l.sum.New + l.sum.Twin
	switch {
	case l.faults > 0:
		return lineCount(l.faults) + " cannot be compared"
	case len(l.seen) == 0:
		return "the command printed nothing"
	case compared == 0 && l.sum.Changed == 0: // rather a list of another platform than one that says nothing
		return fmt.Sprintf("nothing was compared: no receiver takes these platforms: %s. Are they right?",
			strings.Join(l.untaken, ", "))
	case compared == 0:
		return "nothing was compared: something came for each of these tenants meanwhile. Run it again"
	}
	return ""
}

func lineCount(n int) string {
	if n == 1 {
		return "1 line"
	}
	return fmt.Sprint(n, " lines")
}
