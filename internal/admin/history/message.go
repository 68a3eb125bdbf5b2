package history

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"usher/internal/admin/status"
	"usher/internal/inbox"
	"usher/internal/text"
	"usher/internal/view"
)

const (
	maxText  = 4000 // characters
	maxLines = 20
)

// compose writes the message that says what has been wrong for a minute, and what has been over for one.
func compose(host string, all []inbox.Trouble, now time.Time) string {
	all = slices.Clone(all) // those that are critical come first
	slices.SortStableFunc(all, func(a, b inbox.Trouble) int { return strings.Compare(a.Severity, b.Severity) })
	var blocks [][]string
	for i := range all {
		t := &all[i]
		what := plain(t, status.What(t))
		if !t.Ended.IsZero() {
			lasted := view.Span(max(t.Ended.Sub(t.Began), time.Second).Round(time.Second))
			blocks = append(blocks, []string{fmt.Sprintf("OVER after %s: %s.", lasted, what)})
			continue
		}
		lines := []string{fmt.Sprintf("%s: %s. Since %s.", strings.ToUpper(t.Severity), what, clockTime(t.Began, now)), t.Means + " " + t.Do}
		if run := plain(t, t.Run); run != "" && run == t.Run { // else a name in it could not be typed as it stands here
			lines = append(lines, "Type: "+run)
		}
		blocks = append(blocks, lines)
	}
	return fit(fmt.Sprintf("usher on %s ('usher status' says all):", neutral(host)), blocks)
}

// fit joins the blocks that a message has room for, and says how many more there are.
func fit(head string, blocks [][]string) string {
	const reserve = 100 // for the last line
	lines, size := []string{head}, utf8.RuneCountInString(head)
	for i, block := range blocks {
		joined := ""
		for _, line := range block {
			joined += "\n" + text.Shorten(line, 1000)
		}
		size += utf8.RuneCountInString(joined)
		last := i == len(blocks)-1
		if n := len(lines) + len(block); n > maxLines || n > maxLines-1 && !last || size > maxText-reserve {
			lines = append(lines, fmt.Sprintf("And %d more: run 'usher status'.", len(blocks)-i))
			break
		}
		lines = append(lines, strings.Split(joined[1:], "\n")...)
	}
	return strings.Join(lines, "\n")
}

// clockTime writes a time of today short.
func clockTime(t, now time.Time) string {
	if now.Sub(t) < 12*time.Hour {
		return t.UTC().Format(time.TimeOnly) + " UTC"
	}
	return t.UTC().Format(time.DateTime) + " UTC"
}

// plain writes foreign names in words so that no chat reads anything into them: they mention nobody, and link nowhere.
func plain(t *inbox.Trouble, words string) string {
	for _, name := range t.Named {
		if shown := text.Shorten(name, 300); shown != "" {
			words = strings.ReplaceAll(words, shown, unlinked(shown))
		}
	}
	return neutral(words)
}

var marks = strings.NewReplacer(
	"<", "‹",
	"&", "＆",
	"@", "＠",
	"://", ":\u2044\u2044",
	"*", "∗",
	"`", "'",
	"](", "] (",
	"~", "∼",
	"#", "＃",
)

// neutral replaces what chats give a meaning. The slashes of an address become others, since chats
// also load what they link to.
func neutral(words string) string { return text.Visible(marks.Replace(words)) }

// unlinked also replaces dots: acme.example would be a link.
func unlinked(name string) string { return strings.ReplaceAll(name, ".", "․") }
