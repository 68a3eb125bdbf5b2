package history

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"usher/internal/admin/page"
	"usher/internal/admin/status"
	"usher/internal/inbox"
	"usher/internal/text"
)

// A message says what has been wrong for a minute, and what has been over for one.
type message struct {
	text   string
	kinds  []string
	begun  []string // ids of what it says
	over   []string
	people bool // somebody asked for it, as a test
}

const (
	sayAfter = time.Minute      // something has been wrong, or over, for so long
	together = 10 * time.Second // what begins, or ends, within this time is one message
	maxText  = 4000             // characters
	maxLines = 20
)

// toSay returns which of these records a message says now: what began, and what is over.
func toSay(records []inbox.Trouble, now time.Time) (begun, over []inbox.Trouble) {
	due := func(after time.Duration) (begun, over []inbox.Trouble) {
		for _, t := range records {
			switch {
			case t.Kind == status.NotifyFails: // who reads it knows better
			case t.Ended.IsZero() && t.Said.IsZero() && now.Sub(t.Noticed) >= after:
				begun = append(begun, t)
			case !t.Ended.IsZero() && !t.Said.IsZero() && t.SaidOver.IsZero() && now.Sub(t.Ended) >= after:
				over = append(over, t)
			}
		}
		return begun, over
	}
	if begun, over := due(sayAfter); len(begun)+len(over) == 0 {
		return nil, nil
	}
	return due(sayAfter - together)
}

// compose writes the message; nil: there is nothing to say. mine are the records of which to speak, all
// are those that are known.
func compose(host string, mine, all []inbox.Trouble, now time.Time) *message {
	begun, over := toSay(mine, now)
	if len(begun)+len(over) == 0 {
		return nil
	}
	// Those that are critical come first.
	slices.SortStableFunc(begun, func(a, b inbox.Trouble) int { return strings.Compare(a.Severity, b.Severity) })
	m := new(message)
	var blocks [][]string
	for i := range begun {
		t := &begun[i]
		what := plain(t, status.What(t))
		lines := []string{
			fmt.Sprintf("%s: %s. Since %s.", strings.ToUpper(t.Severity), what, clockTime(t.Began, now)),
			t.Means + " " + t.Do,
		}
		if run := plain(t, t.Run); run != "" && run == t.Run { // else a name in it could not be typed as it stands here
			lines = append(lines, "Type: "+run)
		}
		blocks = append(blocks, lines)
		m.begun = append(m.begun, t.ID)
		m.kinds = append(m.kinds, t.Kind)
	}
	for i := range over {
		t := &over[i]
		lasted := max(t.Ended.Sub(t.Began), time.Second).Round(time.Second)
		line := fmt.Sprintf("OVER after %s: %s.", page.Span(lasted), plain(t, status.What(t)))
		if t.Then != "" {
			line += " " + t.Then
		}
		blocks = append(blocks, []string{line})
		m.over = append(m.over, t.ID)
		m.kinds = append(m.kinds, t.Kind)
	}
	wrong := 0
	for _, t := range all {
		if t.Ended.IsZero() && t.Kind != status.NotifyFails {
			wrong++
		}
	}
	head := fmt.Sprintf("usher on %s: all is well again.", neutral(host))
	if wrong > 0 {
		head = fmt.Sprintf("usher on %s: %s", neutral(host), page.Plural(wrong, "thing is wrong", "things are wrong"))
		if wrong > len(begun) { // it does not name all of them
			head += ", run 'usher status'"
		}
		head += "."
	}
	m.text = fit(head, blocks)
	m.kinds = slices.Compact(slices.Sorted(slices.Values(m.kinds)))
	return m
}

// fit joins the blocks that a message has room for, and says how many more there are.
func fit(head string, blocks [][]string) string {
	const reserve = 100 // for the last line
	lines, size := []string{head}, utf8.RuneCountInString(head)
	for i, block := range blocks {
		joined := ""
		for _, line := range block {
			joined += "\n" + text.Shorten(plainSpaces(line), 1000)
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
func neutral(words string) string { return text.Visible(marks.Replace(plainSpaces(words))) }

// unlinked also replaces dots: acme.example would be a link.
func unlinked(name string) string { return strings.ReplaceAll(name, ".", "․") }

// plainSpaces replaces the fixed spaces of the page.
func plainSpaces(words string) string {
	return strings.NewReplacer("\u00a0", " ", "\u202f", "").Replace(words)
}
