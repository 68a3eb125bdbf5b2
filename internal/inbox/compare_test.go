package inbox

import (
	"testing"
	"time"

	"usher/internal/clock"
	"usher/internal/lane"
	"usher/internal/snapshot"
)

// features are what a snapshot lists.
func features(codes ...string) snapshot.Snapshot {
	s := snapshot.Snapshot{Known: true}
	for _, code := range codes {
		s.Features = append(s.Features, snapshot.Feature{Code: code, Limit: snapshot.Unlimited})
	}
	return s
}

func knows(number int64, codes ...string) *snapshot.Stored {
	stored := features(codes...).Stored("crm", "acme", "id")
	stored.Seq = number
	return stored
}

func offering(codes ...string) *lane.ListLine {
	s := features(codes...)
	return &lane.ListLine{Says: s, Draft: lane.Compared{Platform: "crm", Tenant: "acme", Says: lane.FeaturesDigest(s)}}
}

// How a line stands to what usher knows: by the numbers first, then by the features.
func TestJudge(t *testing.T) {
	t.Parallel()
	r := &lane.Run{Mark: 100, AsOf: clock.Moment(5000)}
	unreadable := &snapshot.Stored{Seq: 7}
	b := lane.Beside{Erased: time.Unix(1, 0), Platforms: []string{"erp"}}
	for name, c := range map[string]struct {
		last, lastAt int64
		known        *snapshot.Stored
		want         string
	}{
		"the same":                  {99, 5000, knows(7, "b", "a"), "equal"},
		"something else":            {99, 5000, knows(7, "a", "c"), "differs (+ b, - c)"},
		"nothing":                   {99, 5000, knows(7), "differs (+ a, + b)"},
		"unknown":                   {0, 0, nil, `new (+ a, + b) elsewhere ["erp"] erased`},
		"cannot be read":            {99, 5000, unreadable, "new (+ a, + b) erased"},
		"came since the mark":       {101, 4000, knows(7, "a", "b"), "changed"},
		"came since the list":       {99, 5001, knows(7, "c"), "changed"},
		"came for an unknown":       {101, 4000, nil, "changed"},
		"has the mark's own number": {100, 4000, knows(7, "a", "b"), "equal"},
	} {
		o := offering("a", "b")
		o.Draft.Beside = b
		if got := o.Judge(r, c.last, c.lastAt, c.known); wordsOf(got) != c.want {
			t.Errorf("%s: %s, want %s", name, wordsOf(got), c.want)
		}
	}
}

// What somebody has dismissed is dismissed until the service says something else, or usher knows something
// else.
func TestJudgeDismissed(t *testing.T) {
	t.Parallel()
	r := &lane.Run{Mark: 100, AsOf: clock.Moment(5000)}
	found := offering("a").Judge(r, 0, 0, knows(7, "b")).Digest
	judge := func(known *snapshot.Stored, codes ...string) bool {
		o := offering(codes...)
		o.Draft.Beside = lane.Beside{Found: found[:], Dismissed: true}
		return o.Judge(r, 0, 0, known).Dismissed
	}
	if !judge(knows(7, "b"), "a") {
		t.Error("the same is not dismissed")
	}
	if judge(knows(7, "b"), "a", "c") || judge(knows(8, "b"), "a") || judge(nil, "a") {
		t.Error("something else is dismissed")
	}
}

// A list is counted line by line: what is said twice, what contradicts itself, what nobody takes, and twins
// in the end.
func TestList(t *testing.T) {
	t.Parallel()
	type line struct {
		tenant, says string
		result       lane.Result
		elsewhere    string
		fault        string
	}
	for name, c := range map[string]struct {
		lines   []line
		told    string
		want    lane.Summary
		failure string
	}{
		"nothing": {nil, "", lane.Summary{}, "the command printed nothing"},
		"each result": {
			[]line{{"a", "x", lane.Equal, "", ""}, {"b", "x", lane.Differs, "", ""}, {"c", "x", lane.NewTenant, "", ""}, {"d", "x", lane.Changed, "", ""}},
			"b c d", lane.Summary{Equal: 1, Differs: 1, New: 1, Changed: 1}, "",
		},
		"the same again":    {[]line{{"a", "x", lane.Differs, "", ""}, {"a", "x", lane.Differs, "", ""}}, "a", lane.Summary{Differs: 1}, ""},
		"contradicts":       {[]line{{"a", "x", lane.Equal, "", ""}, {"a", "y", lane.Differs, "", ""}}, "a", lane.Summary{Equal: 1}, "1 line cannot be compared"},
		"changed meanwhile": {[]line{{"a", "x", lane.Equal, "", ""}, {"a", "y", lane.Changed, "", ""}}, "", lane.Summary{Equal: 1}, ""},
		"faulty":            {[]line{{"", "", "", "", "x"}, {"", "", "", "", "x"}}, " ", lane.Summary{}, "2 lines cannot be compared"},
		"nobody takes it": {
			[]line{{"a", "x", "", "", ""}}, "", lane.Summary{PassedOver: 1},
			"nothing was compared: no receiver takes these platforms: crm. Are they right?",
		},
		"only changed": {
			[]line{{"a", "x", lane.Changed, "", ""}}, "a", lane.Summary{Changed: 1},
			"nothing was compared: something came for each of these tenants meanwhile. Run it again",
		},
		"a twin":               {[]line{{"a", "x", lane.NewTenant, "erp", ""}}, "a twin", lane.Summary{Twin: 1}, ""},
		"both sides of a twin": {[]line{{"a", "x", lane.NewTenant, "crm", ""}}, "a new", lane.Summary{New: 1}, ""},
	} {
		l := list{seen: make(map[[16]byte][8]byte)}
		var told string
		for _, s := range c.lines {
			one := lane.Compared{Platform: "crm", Tenant: s.tenant, Fault: s.fault, Says: lane.FeaturesDigest(features(s.says))}
			one.PassedOver = s.fault == "" && s.result == ""
			if l.enter(&one) {
				continue
			}
			if one.Result = s.result; s.elsewhere != "" {
				one.Elsewhere = []string{s.elsewhere}
			}
			if l.count(&one) {
				told += " " + one.Tenant
			}
		}
		for _, one := range l.twins() {
			told += " " + one.Tenant + " " + string(one.Result)
		}
		if told != "" {
			told = told[1:]
		}
		if told != c.told || l.sum != c.want || l.failure() != c.failure {
			t.Errorf("%s: told %q, %+v, %q", name, told, l.sum, l.failure())
		}
	}
}
