package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net/http"
	"time"

	"usher/webhookgate"
)

// What is stored is sealed: a format version, a CRC-32C of the rest, the rest.
const (
	formatVersion = 1
	sealSize      = 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

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
	binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[sealSize:], castagnoli))
	return b
}

// unseal returns what was sealed. It shares b's memory.
func unseal(b []byte) ([]byte, error) {
	switch {
	case len(b) < sealSize:
		return nil, ErrDamaged
	case b[0] != formatVersion:
		return nil, fmt.Errorf("%w, or of format %d, which this version does not know", ErrDamaged, b[0])
	case crc32.Checksum(b[sealSize:], castagnoli) != binary.BigEndian.Uint32(b[1:]):
		return nil, ErrDamaged
	}
	return b[sealSize:], nil
}

// envelope is what a record says of its body.
type envelope struct {
	Webhook  string
	Type     string
	Lane     webhookgate.Lane
	Snapshot bool
	Digest   []byte
	Header   map[string][][]byte // values need not be UTF-8, which JSON strings have to be
	Received time.Time
	Previous uint64 // id of the lane's tail at the time; 0: none was known
}

// encodeRecord: the envelope's length, the envelope in JSON, the body as it came.
func encodeRecord(w *webhookgate.Webhook, previous uint64) ([]byte, error) {
	header := make(map[string][][]byte, len(w.Header))
	for name, values := range w.Header {
		for _, v := range values {
			header[name] = append(header[name], []byte(v))
		}
	}
	e, err := json.Marshal(envelope{
		Webhook: w.ID, Type: w.Type, Lane: w.Lane, Snapshot: w.Snapshot, Digest: w.Digest[:],
		Header: header, Received: w.Received, Previous: previous,
	})
	if err != nil {
		return nil, err
	}
	return seal(binary.BigEndian.AppendUint32(nil, uint32(len(e))), e, w.Body), nil
}

// decodeRecord returns the webhook and the id of the one before it. Nothing of it
// shares b's memory.
func decodeRecord(b []byte) (*webhookgate.Webhook, uint64, error) {
	b, err := unseal(b)
	if err != nil {
		return nil, 0, err
	}
	if len(b) < 4 || uint32(len(b)-4) < binary.BigEndian.Uint32(b) {
		return nil, 0, ErrDamaged
	}
	n := 4 + binary.BigEndian.Uint32(b)
	var e envelope
	if err := json.Unmarshal(b[4:n], &e); err != nil || len(e.Digest) != len(webhookgate.Webhook{}.Digest) {
		return nil, 0, ErrDamaged
	}
	w := &webhookgate.Webhook{
		ID: e.Webhook, Type: e.Type, Lane: e.Lane, Snapshot: e.Snapshot, Received: e.Received,
		Header: make(http.Header, len(e.Header)), Body: append([]byte(nil), b[n:]...),
	}
	for name, values := range e.Header {
		for _, v := range values {
			w.Header[name] = append(w.Header[name], string(v))
		}
	}
	copy(w.Digest[:], e.Digest)
	return w, e.Previous, nil
}

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

// tailFor is the tail that w becomes as the record id.
func tailFor(w *webhookgate.Webhook, id uint64) tail {
	return tail{Lane: w.Lane, ID: id, Webhook: w.ID, Snapshot: w.Snapshot, Digest: w.Digest[:]}
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
