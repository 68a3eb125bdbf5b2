package inbox

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"usher/internal/trial"
	"usher/webhookgate"
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
			got, previous, err := decodeRecord(encodeRecord(w, 7))
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
		key := string(laneKey(l))
		if other, ok := seen[key]; ok {
			t.Errorf("%+v and %+v share %q", l, other, key)
		}
		seen[key] = l
	}
}

// Every single bit counts.
func TestEveryFlippedBitIsSeen(t *testing.T) {
	record := encodeRecord(webhook("t", "A"), 0)
	status, err := encodeStatus(&Status{State: Waiting, Changed: time.Now(), Attempts: []Attempt{{Status: 500}}})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 8 * len(record) {
		b := bytes.Clone(record)
		b[n/8] ^= 1 << (n % 8)
		if _, _, err := decodeRecord(b); !errors.Is(err, ErrDamaged) {
			t.Errorf("record, bit %d: %v", n, err)
		}
	}
	for n := range 8 * len(status) {
		b := bytes.Clone(status)
		b[n/8] ^= 1 << (n % 8)
		if _, err := decodeStatus(b); !errors.Is(err, ErrDamaged) {
			t.Errorf("status, bit %d: %v", n, err)
		}
		if finished(b) {
			t.Errorf("status, bit %d: what waits counts as finished, and would be passed over and trimmed", n)
		}
	}
}

func FuzzRecord(f *testing.F) {
	w := webhook("t", "A")
	w.Header = http.Header{"A": {"b", ""}}
	b := encodeRecord(w, 3)
	f.Add(b)
	f.Add(seal([]byte{0xff, 0xff, 0xff, 0xff}, []byte("{}")))
	f.Add(seal([]byte{0, 0, 0, 2}, []byte("{}")))
	f.Add([]byte{})
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, seal(b)} { // few would have the right checksum
			w, previous, err := decodeRecord(b)
			if err != nil {
				if w != nil || !errors.Is(err, ErrDamaged) {
					t.Fatal(w, err)
				}
				continue
			}
			x, p, err := decodeRecord(encodeRecord(w, previous))
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
		b, err := encodeStatus(&s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(seal([]byte("w{}")))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, seal(b)} {
			finished(b)
			s, err := decodeStatus(b)
			if err != nil {
				if !errors.Is(err, ErrDamaged) {
					t.Fatal(err)
				}
				continue
			}
			if s.State == "" {
				continue
			}
			again, err := encodeStatus(&s)
			if err != nil {
				t.Skip()
			}
			if x, err := decodeStatus(again); err != nil || x.State != s.State || x.Why != s.Why || len(x.Attempts) != len(s.Attempts) {
				t.Fatalf("%+v, then %+v, %v", s, x, err)
			}
		}
	})
}

// A lane's memory lives as long as the lane is remembered, and there are thousands: it
// must not keep the content of the webhook that it was made of.
func TestMemoryOfALaneKeepsNoContent(t *testing.T) {
	rc := new(receiver)
	i := open(t, config(t.TempDir(), rc))
	kept := make([]weak.Pointer[webhookgate.Webhook], 10)
	for n := range kept {
		w := webhook(fmt.Sprint("tenant-", n), "A")
		kept[n] = weak.Make(w)
		if _, err := i.Keep(w); err != nil {
			t.Fatal(err)
		}
	}
	trial.Eventually(t, "the contents let go of", func() bool {
		runtime.GC()
		return !slices.ContainsFunc(kept, func(w weak.Pointer[webhookgate.Webhook]) bool { return w.Value() != nil })
	})
}
