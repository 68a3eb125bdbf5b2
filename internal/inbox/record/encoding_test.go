package record

import (
	"bytes"
	"crypto/sha256"
	"errors"

	"net/http"
	"reflect"

	"testing"
	"time"

	"usher/webhookgate"
	"usher/webhookgate/content"
)

func TestRecordComesBackAsItWas(t *testing.T) {
	for name, change := range map[string]func(*webhookgate.Webhook){
		"plain":             func(*webhookgate.Webhook) {},
		"no body":           func(w *webhookgate.Webhook) { w.Body = nil },
		"any bytes":         func(w *webhookgate.Webhook) { w.Body = []byte{0, 0xff, '\n', 0x80} },
		"no tenant":         func(w *webhookgate.Webhook) { w.Lane, w.Snapshot = webhookgate.Lane{Type: "X"}, false },
		"quotes":            func(w *webhookgate.Webhook) { w.Lane.Tenant = `"],["<&>` + "\u2028" },
		"header in UTF-8":   func(w *webhookgate.Webhook) { w.Header.Set("X-Name", "Grüße") },
		"header in Latin-1": func(w *webhookgate.Webhook) { w.Header.Set("X-Name", "Gr\xfc\xdfe") },
		"header repeated":   func(w *webhookgate.Webhook) { w.Header["X-Name"] = []string{"", "a", "a"} },
	} {
		t.Run(name, func(t *testing.T) {
			w := webhook("t", "A")
			change(w)
			got, previous, err := Decode(Encode(w, 7))
			if err != nil || previous != 7 {
				t.Fatal(previous, err)
			}
			if !got.Received.Equal(w.Received) {
				t.Errorf("received %v, was %v", got.Received, w.Received)
			}
			got.Received = w.Received
			if !bytes.Equal(got.Body, w.Body) {
				t.Errorf("body %q, was %q", got.Body, w.Body)
			}
			got.Body = w.Body
			if !reflect.DeepEqual(got, w) {
				t.Errorf("got %+v\nwas %+v", got, w)
			}
		})
	}
}

func TestLaneKeysDiffer(t *testing.T) {
	seen := make(map[string]webhookgate.Lane)
	for _, l := range []webhookgate.Lane{
		{}, {Platform: "a"}, {Tenant: "a"}, {Type: "a"}, {Platform: "a", Tenant: "b"}, {Platform: "ab"}, {Tenant: "ab"},
		{Platform: `a","b`}, {Platform: "a", Tenant: `b","`}, {Tenant: "a\x00"}, {Platform: "a", Type: "b"},
	} {
		key := string(LaneKey(l))
		if other, ok := seen[key]; ok {
			t.Errorf("%+v and %+v share %q", l, other, key)
		}
		seen[key] = l
	}
}

// Every single bit counts.
func TestEveryFlippedBitIsSeen(t *testing.T) {
	record := Encode(webhook("t", "A"), 0)
	status, err := EncodeStatus(&Status{State: Waiting, Changed: time.Now(), Attempts: []Attempt{{Status: 500}}})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 8 * len(record) {
		b := bytes.Clone(record)
		b[n/8] ^= 1 << (n % 8)
		if _, _, err := Decode(b); !errors.Is(err, ErrDamaged) {
			t.Errorf("record, bit %d: %v", n, err)
		}
	}
	for n := range 8 * len(status) {
		b := bytes.Clone(status)
		b[n/8] ^= 1 << (n % 8)
		if _, err := DecodeStatus(b); !errors.Is(err, ErrDamaged) {
			t.Errorf("status, bit %d: %v", n, err)
		}
		if Finished(b) {
			t.Errorf("status, bit %d: what waits counts as finished, and would be passed over and trimmed", n)
		}
	}
}

func FuzzRecord(f *testing.F) {
	w := webhook("t", "A")
	w.Header = http.Header{"A": {"b", ""}}
	b := Encode(w, 3)
	f.Add(b)
	f.Add(Seal([]byte{0xff, 0xff, 0xff, 0xff}, []byte("{}")))
	f.Add(Seal([]byte{0, 0, 0, 2}, []byte("{}")))
	f.Add([]byte{})
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, Seal(b)} { // few would have the right checksum
			w, previous, err := Decode(b)
			if err != nil {
				if w != nil || !errors.Is(err, ErrDamaged) {
					t.Fatal(w, err)
				}
				continue
			}
			x, p, err := Decode(Encode(w, previous))
			if err != nil || p != previous || !bytes.Equal(x.Body, w.Body) || x.ID != w.ID || x.Lane != w.Lane || x.Digest != w.Digest {
				t.Fatalf("%+v, then %+v, %v", w, x, err)
			}
		}
	})
}

func FuzzStatus(f *testing.F) {
	for _, s := range []Status{
		{State: Waiting},
		{State: Parked, Why: "too old", Changed: time.Unix(1, 2), Tries: 3, Attempts: []Attempt{{Status: 500}, {Error: "x"}}},
		{State: Delivered, Again: time.Unix(5, 0)},
	} {
		b, err := EncodeStatus(&s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(Seal([]byte("w{}")))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, Seal(b)} {
			Finished(b)
			s, err := DecodeStatus(b)
			if err != nil {
				if !errors.Is(err, ErrDamaged) {
					t.Fatal(err)
				}
				continue
			}
			if s.State == "" {
				continue
			}
			again, err := EncodeStatus(&s)
			if err != nil {
				t.Skip()
			}
			if x, err := DecodeStatus(again); err != nil || x.State != s.State || x.Why != s.Why || len(x.Attempts) != len(s.Attempts) {
				t.Fatalf("%+v, then %+v, %v", s, x, err)
			}
		}
	})
}

func TestTenantKeyBeginsItsLanes(t *testing.T) {
	for _, l := range []webhookgate.Lane{{Platform: "p", Tenant: "t"}, {Tenant: "t"}, {Platform: "t", Tenant: "t"}} {
		if !bytes.HasPrefix(LaneKey(l), TenantKey("t")) || bytes.HasPrefix(LaneKey(l), TenantKey("p")) {
			t.Errorf("%+v", l)
		}
	}
}

func TestSlimIsWholeWithoutContent(t *testing.T) {
	w := webhook("t", "A")
	got, err := DecodeSlim(Encode(w, 7))
	if err != nil {
		t.Fatal(err)
	}
	want := Slim(w)
	want.Received, got.Received = time.Time{}, time.Time{}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// Of every state it can be told, without the rest, whether it is finished.
func TestFinished(t *testing.T) {
	for state, want := range map[State]bool{Waiting: false, Parked: false, Delivered: true, Superseded: true, Discarded: true, Kept: true} {
		b, err := EncodeStatus(&Status{State: state})
		if err != nil || Finished(b) != want || state.Finished() != want {
			t.Errorf("%s: %v, %v", state, Finished(b), err)
		}
	}
}

func webhook(tenant, body string) *webhookgate.Webhook {
	return &webhookgate.Webhook{
		ID: "id-1", Type: content.TenantProvisioningChange,
		Lane: webhookgate.Lane{Platform: "p", Tenant: tenant}, Snapshot: true,
		Digest: sha256.Sum256([]byte(body)), Body: []byte(body), Received: time.Now(),
		Header: http.Header{"X-Test": {"1"}},
	}
}
