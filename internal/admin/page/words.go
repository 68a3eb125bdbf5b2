package page

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"usher/internal/inbox"
	"usher/internal/lane/state"
	"usher/internal/text"
)

// Span writes a duration: 2.5 ms, 35 ms, 34 s, 26 min, 1 h 34 min, 3 d 4 h.
func Span(d time.Duration) string {
	two := func(a time.Duration, unit string, b time.Duration, lesser string) string {
		if b == 0 {
			return fmt.Sprintf("%d\u00a0%s", a, unit)
		}
		return fmt.Sprintf("%d\u00a0%s %d\u00a0%s", a, unit, b, lesser)
	}
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "0\u00a0s"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2g\u00a0ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d\u00a0ms", d.Milliseconds())
	case d < 10*time.Second && d%time.Second >= 100*time.Millisecond:
		return fmt.Sprintf("%.1f\u00a0s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d\u00a0s", d/time.Second)
	case d < 10*time.Minute:
		return two(d/time.Minute, "min", d%time.Minute/time.Second, "s")
	case d < time.Hour:
		return fmt.Sprintf("%d\u00a0min", d/time.Minute)
	case d < day:
		return two(d/time.Hour, "h", d%time.Hour/time.Minute, "min")
	default:
		return two(d/day, "d", d%day/time.Hour, "h")
	}
}

// Ago writes how long ago something was. It uses one unit only, so that the times in a list are easy to compare.
func Ago(d time.Duration) string {
	if d < time.Second {
		return "just now"
	}
	largest, _, _ := strings.Cut(Span(d.Truncate(time.Second)), " ")
	return largest + " ago"
}

// InputTime is the format of <input type="datetime-local">. On our pages it is always UTC.
const InputTime = "2006-01-02T15:04"

// FormatInput writes a time in the format of InputTime; the zero time is empty.
func FormatInput(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(InputTime)
}

// Count writes a number with a narrow space between its thousands.
func Count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// Bytes writes a size: 640 KiB, 1.5 GiB.
func Bytes(n int64) string {
	size, unit := float64(n), "bytes"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if size < 1024 {
			break
		}
		size, unit = size/1024, larger
	}
	if size >= 10 || unit == "bytes" {
		return fmt.Sprintf("%.0f\u00a0%s", size, unit)
	}
	return fmt.Sprintf("%.1f\u00a0%s", size, unit)
}

// TenantName writes a tenant as inbox.ShowTenant does, and shortens a very long name: a browser would need
// minutes to lay out one of 1 MiB.
func TenantName(platform, tenant string) string {
	return text.Shorten(inbox.ShowTenant(platform, tenant), 300)
}

// Plural writes a number and the noun that it counts.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(n) + " " + many
}

// FirstFew lists the first three names, and says how many others there are.
func FirstFew(names []string) string {
	const most = 3
	if n := len(names) - most; n > 0 {
		return strings.Join(names[:most], ", ") + " and " + Plural(n, "other", "others")
	}
	if n := len(names) - 1; n > 0 {
		return strings.Join(names[:n], ", ") + " and " + names[n]
	}
	return strings.Join(names, "")
}

// FirstOf lists the first three names of so many, and says how many others there are.
func FirstOf(names []string, all int) string {
	const most = 3
	if all <= len(names) && all <= most {
		return FirstFew(names)
	}
	names = names[:min(most, len(names))]
	return strings.Join(names, ", ") + " and " + Plural(all-len(names), "other", "others")
}

// Excerpt returns the beginning of a foreign text, on one line.
func Excerpt(words string) string {
	return text.Shorten(strings.Join(strings.Fields(words), " "), 120)
}

// ShortChanges writes the first five changes, and how many more there are.
func ShortChanges(changes []string) string {
	const most = 5
	var shown []string
	for _, c := range changes[:min(most, len(changes))] {
		shown = append(shown, text.Shorten(c, 120))
	}
	if n := len(changes) - most; n > 0 {
		shown = append(shown, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(shown, ", ")
}

// tone returns the CSS class for the colour of a state, a decision or a severity.
func tone(word string) string {
	for _, s := range state.All {
		if string(s.State) == word {
			return s.Tone
		}
	}
	switch word {
	case "forwarded", "ok":
		return "good"
	case "failed", "critical":
		return "bad"
	case "rejected", "warning":
		return "warn"
	default: // such as duplicate: neither good nor bad
		return "calm"
	}
}

// changeClass returns the CSS class of a change as package snapshot writes it: "+ sso", "- sso" or "users: 5 → 7".
func changeClass(change string) string {
	switch {
	case strings.HasPrefix(change, "+ "):
		return "added"
	case strings.HasPrefix(change, "- "):
		return "removed"
	default:
		return "changed"
	}
}

// TenantURL returns the address of a tenant's page. notice is a key of the notices that the page
// can show; empty for none.
func TenantURL(platform, code, notice string) string {
	query := url.Values{"platform": {platform}, "code": {code}}
	if notice != "" {
		query.Set("did", notice)
	}
	return "/tenant?" + query.Encode()
}
