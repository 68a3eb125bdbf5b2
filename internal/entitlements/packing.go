package entitlements

import "encoding/binary"

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
