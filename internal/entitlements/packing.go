package entitlements

import (
	"encoding/binary"
	"errors"
	"unique"
)

// A packed feature is its limit as a varint (0: no limit, otherwise the limit plus 1), and its value.
// A text is its length as a varint, and its bytes.

func packOwn(b []byte, limit Limit, value string) []byte {
	return packText(binary.AppendUvarint(b, uint64(limit+1)), value)
}

func packText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// unpackOwn reads what packOwn wrote.
func unpackOwn(s string) (limit Limit, value, rest string) {
	n, s := unpackUint(s)
	length, s := unpackUint(s)
	return Limit(n) - 1, s[:length], s[length:]
}

// unpackUint is binary.Uvarint for a string that is known to be valid.
func unpackUint(s string) (n uint64, rest string) {
	for i := 0; ; i++ {
		b := s[i]
		n |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return n, s[i+1:]
		}
	}
}

// The stored form, for a store on disk: its version, whether the features are known, how many there
// are, then the code, name, limit and value of each. It contains nothing else of the webhook, and so
// no contacts.
const (
	storedUnknown = 0x10
	storedKnown   = 0x11
)

// AppendBinary appends the stored form. It never fails.
func (s Snapshot) AppendBinary(b []byte) ([]byte, error) {
	if !s.known {
		return append(b, storedUnknown), nil
	}
	b = binary.AppendUvarint(append(b, storedKnown), uint64(s.Len()))
	for f := range s.Features() {
		b = packOwn(packText(packText(b, f.Code), f.Name), f.Limit, f.Value)
	}
	return b, nil
}

// errDamaged says that bytes are not the stored form of a snapshot.
var errDamaged = errors.New("not the stored form of a snapshot")

// UnmarshalBinary reads the stored form. It reports what it cannot read, but does not find every
// damage: the store has checksums for that.
func (s *Snapshot) UnmarshalBinary(data []byte) error {
	switch {
	case len(data) == 1 && data[0] == storedUnknown:
		*s = Snapshot{}
		return nil
	case len(data) == 0 || data[0] != storedKnown:
		return errDamaged
	}
	u := unpacker{rest: data[1:]}
	count := u.uint()
	if count > uint64(len(u.rest)) {
		return errDamaged // before it allocates memory for so many
	}
	read := Snapshot{known: true, names: make([]unique.Handle[named], 0, count)}
	var own []byte
	for range count {
		code, name := u.text(), u.text()
		limit, value := u.uint(), u.text()
		if u.failed || code == "" || limit > uint64(MaxLimit)+1 {
			return errDamaged
		}
		read.names = append(read.names, unique.Make(named{code, name}))
		own = packOwn(own, Limit(limit)-1, value)
	}
	if u.failed || len(u.rest) > 0 {
		return errDamaged
	}
	read.own = string(own)
	*s = read
	return nil
}

// unpacker reads untrusted bytes. After a failure it returns empty values.
type unpacker struct {
	rest   []byte
	failed bool
}

func (u *unpacker) uint() uint64 {
	n, size := binary.Uvarint(u.rest)
	if size <= 0 {
		u.failed, u.rest = true, nil
		return 0
	}
	u.rest = u.rest[size:]
	return n
}

func (u *unpacker) text() string {
	n := u.uint()
	if n > uint64(len(u.rest)) {
		u.failed, u.rest = true, nil
		return ""
	}
	s := string(u.rest[:n])
	u.rest = u.rest[n:]
	return s
}
