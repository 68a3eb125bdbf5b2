package record

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// How many bytes of an attempt are remembered. An error can be long, too: one about a certificate names all hosts that
// this is for.
const (
	maxAnswer = 1 << 10
	maxError  = 512
)

// readable is what a receiver said as one line that no terminal and no page takes for
// anything but text: foreign bytes may hold escape sequences, or turn the writing around.
func readable(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsGraphic(r):
			return r
		}
		return -1
	}, strings.ToValidUTF8(s, "\uFFFD"))
	s = strings.TrimSpace(s)
	if len(s) <= most {
		return s
	}
	end := most
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// Held says of what a lane was last given, by how it stands and since when, whether
// its receiver holds it or will get it.
func Held(state State, since time.Time, window time.Duration) bool {
	switch state {
	case Waiting:
		return true
	case Delivered, Kept:
		elapsed := Elapsed(since)
		return -window < elapsed && elapsed < window // a clock that was further ahead tells nothing
	}
	return false
}

// Elapsed is by the clock that went further: one stands still while a machine
// sleeps, the other can be set back.
func Elapsed(t time.Time) time.Duration {
	return max(time.Since(t), time.Now().Round(0).Sub(t.Round(0)))
}
