package inbox

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
	formatVersion = 1
	sealSize      = 5
)

// castagnoli takes a millisecond to make, which a start without an inbox can do without.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

func seal(parts ...[]byte) []byte {
	n := sealSize
	for _, p := range parts {
		n += len(p)
	}
	b := make([]byte, sealSize, n)
	b[0] = formatVersion
	for _, p := range parts {
		b = append(b, p...)
	}
	binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[sealSize:], castagnoli()))
	return b
}

// unseal returns what was sealed. It shares b's memory.
func unseal(b []byte) ([]byte, error) {
	switch {
	case len(b) < sealSize:
		return nil, ErrDamaged
	case b[0] != formatVersion:
		return nil, fmt.Errorf("%w, or of format %d, which this version does not know", ErrDamaged, b[0])
	case crc32.Checksum(b[sealSize:], castagnoli()) != binary.BigEndian.Uint32(b[1:]):
		return nil, ErrDamaged
	}
	return b[sealSize:], nil
}

// encodeRecord: what there is to say of the body, then the body as it came. Not JSON:
// header values need not be UTF-8, and this is done for every webhook.
func encodeRecord(w *webhookgate.Webhook, previous uint64) []byte {
	b := make([]byte, 0, 512)
	b = binary.AppendUvarint(b, previous) // id of the lane's tail at the time; 0: none was known
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
	return seal(b, w.Body)
}

// decodeRecord returns the webhook and the id of the one before it. Nothing of it
// shares b's memory.
func decodeRecord(b []byte) (*webhookgate.Webhook, uint64, error) {
	b, err := unseal(b)
	if err != nil {
		return nil, 0, err
	}
	f := &fields{rest: b}
	previous := f.number()
	w := &webhookgate.Webhook{Received: time.Unix(0, f.signed()), Snapshot: f.number() == 1}
	copy(w.Digest[:], f.take(uint64(len(w.Digest))))
	w.ID, w.Type = f.text(), f.text()
	w.Lane = webhookgate.Lane{Platform: f.text(), Tenant: f.text(), Type: f.text()}
	w.Header = make(http.Header)
	for n := f.number(); n > 0 && !f.bad; n-- {
		name := f.text()
		for n := f.number(); n > 0 && !f.bad; n-- {
			w.Header[name] = append(w.Header[name], f.text())
		}
	}
	if f.bad {
		return nil, 0, ErrDamaged
	}
	w.Body = bytes.Clone(f.rest)
	return w, previous, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// fields reads what encodeRecord wrote. Where it ends too early all that follows is
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

// encodeStatus puts the state first, so that it can be told without the rest.
func encodeStatus(s *Status) ([]byte, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return seal([]byte{s.State[0]}, b), nil
}

func decodeStatus(b []byte) (Status, error) {
	b, err := unseal(b)
	if err != nil {
		return Status{}, err
	}
	var s Status
	if len(b) < 1 || json.Unmarshal(b[1:], &s) != nil {
		return Status{}, ErrDamaged
	}
	return s, nil
}

// finished says of an encoded status whether its record is only kept to be looked at.
// One that is damaged is not: what it was of may still have to be delivered.
func finished(b []byte) bool {
	b, err := unseal(b)
	return err == nil && len(b) > 0 && (b[0] == Delivered[0] || b[0] == Superseded[0])
}

// tail is the last of a lane, as the lane remembers it.
type tail struct {
	Lane     webhookgate.Lane
	ID       uint64
	Webhook  string
	Snapshot bool
	Digest   []byte
}

func idKey(id uint64) []byte { return binary.BigEndian.AppendUint64(nil, id) }
func keyID(k []byte) uint64  { return binary.BigEndian.Uint64(k) }

// laneKey is a digest of what can't be that of another lane: JSON quotes what would
// be ambiguous, and a tenant's code may be longer than a key of the store's.
func laneKey(l webhookgate.Lane) []byte {
	b, err := json.Marshal([]string{l.Platform, l.Tenant, l.Type})
	if err != nil {
		panic(err) // strings always marshal
	}
	sum := sha256.Sum256(b)
	return sum[:]
}

// tailFor is the tail that w becomes as the record id. The digest is a copy: a slice of w's
// own would keep all of w in memory, its content included, for as long as the lane is
// remembered.
func tailFor(w *webhookgate.Webhook, id uint64) tail {
	return tail{Lane: w.Lane, ID: id, Webhook: w.ID, Snapshot: w.Snapshot, Digest: bytes.Clone(w.Digest[:])}
}

func decodeTail(b []byte) (t tail, err error) {
	if b, err = unseal(b); err != nil {
		return t, err
	}
	if json.Unmarshal(b, &t) != nil {
		return t, ErrDamaged
	}
	return t, nil
}
