package entitlements

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// A stored snapshot that was cut off, or that a later usher wrote, is an error and
// never a shorter list: what is not in it would be denied.
func TestStoredForm(t *testing.T) {
	s := listing(t, `{"code":"users","name":"Users","quantity":9007199254740991}`, `{"code":"sso","value":"`+strings.Repeat("x", 300)+`"}`)
	stored, err := s.AppendBinary([]byte("before"))
	if err != nil || !bytes.HasPrefix(stored, []byte("before")) {
		t.Fatalf("%q %v", stored, err)
	}
	stored = stored[len("before"):]
	whole := slices.Collect(s.Features())
	for n := range len(stored) {
		var cut Snapshot
		if err := cut.UnmarshalBinary(stored[:n]); err == nil {
			t.Errorf("%d bytes of %d are %+v", n, len(stored), slices.Collect(cut.Features()))
		}
	}
	var again Snapshot
	if err := again.UnmarshalBinary(stored); err != nil || !slices.Equal(slices.Collect(again.Features()), whole) {
		t.Errorf("%+v, %v", again, err)
	}
	for _, bad := range []string{"", "\x00", "\x12", "\x10more", "\x11", "\x11\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "\x11\x00\x00", "\x11\x01\x00\x00\x00\x00", "\x11\x01\x01a\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00", "\x11\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"} {
		if err := new(Snapshot).UnmarshalBinary([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// Whatever a disk gives back, it is an error or a snapshot that can be used.
func FuzzStored(f *testing.F) {
	stored, _ := listing(f, `{"code":"users","name":"Users","quantity":25}`, `{"code":"sso","value":"saml"}`).AppendBinary(nil)
	f.Add(stored)
	f.Add([]byte{storedUnknown})
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Snapshot
		if s.UnmarshalBinary(data) != nil {
			return
		}
		for feature := range s.Features() {
			if feature.Code == "" || feature.Limit < Unlimited || feature.Limit > MaxLimit {
				t.Fatalf("%+v in %q", feature, data)
			}
		}
	})
}
