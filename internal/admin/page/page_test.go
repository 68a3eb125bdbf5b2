package page

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestCharts(t *testing.T) {
	starts := []time.Time{time.Unix(0, 0), time.Unix(60, 0), time.Unix(120, 0)}
	series := func(values ...float64) Series {
		return Series{Class: "c", Label: "l", Values: values, Cells: make([]string, 3)}
	}
	unit := func(v float64) string { return number(v) }
	c := NewBars("id", "Title", "Summary", starts, []Series{series(3, 0, 1000), series(0, 0, 1)}, unit)
	if c.Empty || c.Scale[0] != "1200.0" || len(c.Bars) != 3 || c.Width() != 30 {
		t.Errorf("%+v", c)
	}
	if b := c.Bars[2]; b.Y != "15.2" || b.H != "1.5" {
		t.Errorf("one among thousands is not to be seen: %+v", b)
	}
	c.Mark("m", "c", []int{0, 2, 1})
	if s := c.Strips[0]; s.Total != 3 || len(s.Marks) != 2 {
		t.Errorf("%+v", s)
	}
	c = NewLines("id", "Title", "Summary", starts, []Series{series(5, math.NaN(), 10)}, unit)
	if c.Lines[0].Path != "M0 50.0H10M20 0.0H30" {
		t.Errorf("%q", c.Lines[0].Path)
	}
	if c = NewBars("id", "Title", "Summary", starts, []Series{series(0, 0, 0)}, unit); !c.Empty || len(c.Bars) != 0 {
		t.Errorf("%+v", c)
	}
	for v, want := range map[float64]float64{0: 1, 1: 1, 1.1: 1.2, 4: 4, 4.1: 5, 6.5: 8, 9: 10, 0.03: 0.03, 1700: 2000} {
		if got := ceiling(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("above %g: %g, want %g", v, got, want)
		}
	}
}

func TestHours(t *testing.T) {
	if c := (Chart{Columns: make([]Column, 20)}); c.Hours() != [3]string{"20 min ago", "10 min", "now"} {
		t.Errorf("%q", c.Hours())
	}
}

// The templates have no inline scripts and styles, which Policy forbids, and load nothing from elsewhere.
func TestTemplates(t *testing.T) {
	for _, dir := range []string{"html", "static"} {
		entries, err := files.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			b, err := files.ReadFile(dir + "/" + e.Name())
			if err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(string(b), "http://www.w3.org/2000/svg", "")
			for _, bad := range []string{" style=", "<style", " onclick=", " onload=", "javascript:", "http://", "https://", "url("} {
				if strings.Contains(text, bad) {
					t.Errorf("%s has %q", e.Name(), bad)
				}
			}
		}
	}
}

// The filter for a tenant without a platform does not select tenants with the same code on a platform.
func TestFilterOfOneTenant(t *testing.T) {
	filter := funcs["tenantExact"].(func(platform, tenant string) string)
	if got := filter("", "acme"); got != "/acme" {
		t.Errorf("%q", got)
	}
}
