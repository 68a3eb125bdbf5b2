package record

import (
	"errors"
	"reflect"
	"testing"
	"time"
)

func TestPack(t *testing.T) {
	type values struct {
		text string
		raw  []byte
		n    uint64
		yes  bool
		at   time.Time
		none time.Time
	}
	list := func(v *values) []any { return []any{&v.text, &v.raw, &v.n, &v.yes, &v.at, &v.none} }
	in := values{"Älvdal\xff\n", []byte{1, 2}, 1 << 60, true, time.Unix(0, 1234567890123456789), time.Time{}}
	b := Pack(list(&in)...)
	var out values
	if err := Unpack(b, list(&out)...); err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("%+v became %+v, %v", in, out, err)
	}
	for n := range b {
		changed := append([]byte(nil), b...)
		changed[n] ^= 1
		if err := Unpack(changed, list(&out)...); !errors.Is(err, ErrDamaged) {
			t.Errorf("with byte %d changed: %v", n, err)
		}
	}
	// Sealed as it should be, and of other values.
	for _, other := range [][]byte{Pack(list(&in)[1:]...), Pack(append(list(&in), &in.n)...), Pack()} {
		if err := Unpack(other, list(&out)...); !errors.Is(err, ErrDamaged) {
			t.Errorf("%x: %v", other, err)
		}
	}
}
