package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net/http"
	"sync"
	"time"

	"usher/webhookgate"
)

// What is stored is sealed: a format version, a CRC-32C of the rest, the rest.
const (
	// Format is the version of all that is stored.
	Format   = 2
	sealSize = 5
)

// castagnoli takes a millisecond to make, which a start without an inbox can do without.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// Seal puts parts together, with what Unseal checks.
func Seal(parts ...[]byte) []byte {
	n := sealSize
	for _, p := range parts {
		n += len(p)
	}
	b := make([]byte, sealSize, n)
	b[0] = Format
	for _, p := range parts {
		b = append(b, p...)
	}
	binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[sealSize:], castagnoli()))
	return b
}

// Unseal returns what was sealed. It shares b's memory.
func Unseal(b []byte) ([]byte, error) {
	switch {
	case len(b) < sealSize:
		return nil, ErrDamaged
	case b[0] != Format:
		return nil, fmt.Errorf("%w, or of format %d, which this version does not know", ErrDamaged, b[0])
	case crc32.Checksum(b[sealSize:], castagnoli()) != binary.BigEndian.Uint32(b[1:]):
		return nil, ErrDamaged
	}
	return b[sealSize:], nil
}

// Encode writes the facts about the body, then the body as it came; previous is
// the id of the lane's last before it, 0 where none was known. Not JSON: header values
// need not be UTF-8, and this is done for every webhook.
func Encode(w *webhookgate.Webhook, previous uint64) []byte {
	b := make([]byte, 0, 512)
	b = binary.AppendUvarint(b, previous)
	b = binary.AppendVarint(b, w.Received.UnixNano())
	if w.Snapshot {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	b = append(b, w.Digest[:]...)
	for _, s := range []string{w.ID, w.Type, w.Lane.Platform, w.Lane.Tenant, w.Lane.Type} {
		b = appendText(b, s)
	}
	b = binary.AppendUvarint(b, uint64(len(w.Header)))
	for name, values := range w.Header {
		b = appendText(b, name)
		b = binary.AppendUvarint(b, uint64(len(values)))
		for _, v := range values {
			b = appendText(b, v)
		}
	}
	return Seal(b, w.Body)
}

// Decode returns the webhook and the id of the one before it. Nothing of it
// shares b's memory.
func Decode(b []byte) (*webhookgate.Webhook, uint64, error) { return decode(b, true) }

// DecodeSlim is Decode without the content: of many only that is needed.
func DecodeSlim(b []byte) (*webhookgate.Webhook, error) {
	w, _, err := decode(b, false)
	return w, err
}

func decode(b []byte, whole bool) (*webhookgate.Webhook, uint64, error) {
	b, err := Unseal(b)
	if err != nil {
		return nil, 0, err
	}
	f := &fields{rest: b}
	previous := f.number()
	w := &webhookgate.Webhook{Received: time.Unix(0, f.signed()), Snapshot: f.number() == 1}
	copy(w.Digest[:], f.take(uint64(len(w.Digest))))
	w.ID, w.Type = f.text(), f.text()
	w.Lane = webhookgate.Lane{Platform: f.text(), Tenant: f.text(), Type: f.text()}
	if whole {
		w.Header = make(http.Header)
		for n := f.number(); n > 0 && !f.bad; n-- {
			name := f.text()
			for n := f.number(); n > 0 && !f.bad; n-- {
				w.Header[name] = append(w.Header[name], f.text())
			}
		}
		w.Body = bytes.Clone(f.rest)
	}
	if f.bad {
		return nil, 0, ErrDamaged
	}
	return w, previous, nil
}

func appendText[T ~string | ~[]byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// fields reads what Encode wrote. Where it ends too early all that follows is
// empty, and bad.
type fields struct {
	rest []byte
	bad  bool
}

func (f *fields) number() uint64 {
	n, size := binary.Uvarint(f.rest)
	f.skip(size)
	return n
}

func (f *fields) signed() int64 {
	n, size := binary.Varint(f.rest)
	f.skip(size)
	return n
}

func (f *fields) skip(size int) {
	if size <= 0 {
		f.rest, f.bad = nil, true
		return
	}
	f.rest = f.rest[size:]
}

func (f *fields) take(n uint64) []byte {
	if n > uint64(len(f.rest)) {
		f.rest, f.bad = nil, true
		return nil
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) text() string { return string(f.take(f.number())) }

// EncodeStatus puts the state first, so that it can be told without the rest.
func EncodeStatus(s *Status) ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return Seal([]byte{s.State[0]}, b), nil
}

// Fresh is the status of what waits since it came, and was never tried.
func Fresh() []byte { return Seal([]byte{Waiting[0]}) }

// DecodeStatus reads what EncodeStatus wrote, or Fresh.
func DecodeStatus(b []byte) (Status, error) {
	b, err := Unseal(b)
	if err != nil {
		return Status{}, err
	}
	if string(b) == string(Waiting[:1]) {
		return Status{State: Waiting}, nil
	}
	var s Status
	if len(b) < 1 || json.Unmarshal(b[1:], &s) != nil {
		return Status{}, ErrDamaged
	}
	return s, nil
}

// Finished says of an encoded status whether its record is only kept to be looked at.
// One that is damaged is not: what it was of may still have to be delivered.
func Finished(b []byte) bool {
	b, err := Unseal(b)
	return err == nil && len(b) > 0 && b[0] != Waiting[0] && b[0] != Parked[0]
}

// IDKey is an id as a key of a store: keys sort as ids do.
func IDKey(id uint64) []byte { return binary.BigEndian.AppendUint64(nil, id) }

// KeyID is IDKey's reverse. Of a key that is none, in a damaged store, it is 0, which is nobody's id.
func KeyID(k []byte) uint64 {
	if len(k) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(k)
}

// LaneKey is a digest of what can't be that of another lane: a tenant's code may be
// longer than a key of a store. The keys of a tenant's lanes begin with its TenantKey.
func LaneKey(l webhookgate.Lane) []byte {
	return append(TenantKey(l.Tenant), digest(l.Platform, l.Type)...)
}

// TenantKey is what the LaneKeys of a tenant begin with.
func TenantKey(tenant string) []byte { return digest(tenant) }

// digest is of the strings with their lengths: put together they would be ambiguous.
func digest(texts ...string) []byte {
	b := make([]byte, 0, 128)
	for _, s := range texts {
		b = appendText(b, s)
	}
	sum := sha256.Sum256(b)
	return sum[:16:16]
}
