package snapshot

import (
	"bytes"
	"strings"
	"testing"

	"usher/internal/content"
)

func TestChangeDigest(t *testing.T) {
	digest := func(change string) []byte {
		value, fault := content.Parse([]byte(`{"type":"T","payload":{"tenant":{"code":"x"},"change":` + change + `}}`))
		if fault != nil {
			t.Fatal(fault)
		}
		return ChangeDigest(value)
	}
	const change = `{"features":[{"code":"a","quantity":5},{"code":"b","quantity":null}],"subscriptions":[]}`
	for same, want := range map[string]bool{
		change: true,
		` { "subscriptions" : [] , "features" : [ {"quantity":null,"code":"b"}, {"code":"\u0061","quantity":5} ] }`: true,

		`{"features":[{"code":"a","quantity":6},{"code":"b","quantity":null}],"subscriptions":[]}`:   false,
		`{"features":[{"code":"a","quantity":"5"},{"code":"b","quantity":null}],"subscriptions":[]}`: false,
		`{"features":[{"code":"a","quantity":null},{"code":"b","quantity":5}],"subscriptions":[]}`:   false,
		`{"features":[{"code":"a","quantity":5}],"subscriptions":[{"code":"b","quantity":null}]}`:    false,
		`{"features":[{"code":"a","quantity":5},{"code":"b"}],"subscriptions":[]}`:                   false,
		`{"features":[[{"code":"a","quantity":5},{"code":"b","quantity":null}]],"subscriptions":[]}`: false,
		`{"features":[{"code":"a","quantity":5},{"code":"b","quantity":null}],"subscriptions":[[]]}`: false,
		`{"features":[{"code":"a","quantity":5},{"code":"b","quantity":null}],"subscriptions":null}`: false,
		`{"features":["{\"code\":\"a\",\"quantity\":5}","{\"code\":\"b\"}"],"subscriptions":[]}`:     false,
		`{"features":[{"code":"a"},{"quantity":5},{"code":"b","quantity":null}],"subscriptions":[]}`: false,
		`{}`: false,
	} {
		if got := bytes.Equal(digest(same), digest(change)); got != want {
			t.Errorf("%s: same %v, want %v", same, got, want)
		}
	}
	// A list in a list in a list costs no more than it is long.
	deep := strings.Repeat(`[`, 60) + `"\""` + strings.Repeat(`]`, 60)
	value, fault := content.Parse([]byte(deep))
	if n := len(appendCanonical(nil, value)); fault != nil || n > 100 {
		t.Errorf("%d bytes, %v", n, fault)
	}
	if value, _ := content.Parse([]byte(`{"payload":{}}`)); ChangeDigest(value) != nil {
		t.Error("a digest without a change")
	}
}
