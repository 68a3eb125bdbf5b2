package page

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var variable = regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{6});`)

// The contrast of text is at least 4.5 to 1 in both colour schemes (WCAG 2, AA).
func TestContrast(t *testing.T) {
	css, err := files.ReadFile("static/usher.css")
	if err != nil {
		t.Fatal(err)
	}
	light, dark, ok := strings.Cut(string(css), "prefers-color-scheme: dark")
	if !ok {
		t.Fatal("there is no dark scheme")
	}
	for scheme, text := range map[string]string{"light": light, "dark": dark} {
		colours := make(map[string]float64)
		for _, m := range variable.FindAllStringSubmatch(text, -1) {
			colours[m[1]] = luminance(t, m[2])
		}
		for _, pair := range []struct{ ink, on string }{
			{"ink", "ground"}, {"ink", "paper"}, {"faint", "ground"}, {"faint", "paper"}, {"accent", "ground"}, {"accent", "paper"},
			{"good", "good-soft"}, {"warn", "warn-soft"}, {"bad", "bad-soft"}, {"faint", "calm-soft"}, {"ink", "bad-soft"}, {"ink", "warn-soft"},
			{"accent", "bad-soft"}, {"accent", "warn-soft"}, {"bad", "paper"}, {"bad", "ground"}, {"paper", "accent"}, {"paper", "bad"}, {"faint", "warn-soft"},
		} {
			a, okA := colours[pair.ink]
			b, okB := colours[pair.on]
			if !okA || !okB {
				t.Fatalf("%s: no colour %s or %s", scheme, pair.ink, pair.on)
			}
			if ratio := (max(a, b) + .05) / (min(a, b) + .05); ratio < 4.5 {
				t.Errorf("%s: %s on %s is %.2f to 1", scheme, pair.ink, pair.on, ratio)
			}
		}
	}
}

// luminance returns the relative luminance of a colour in hex, as WCAG defines it.
func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	sum := 0.0
	for i, weight := range []float64{.2126, .7152, .0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= .04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}
