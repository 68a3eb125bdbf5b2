package inbox

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"

	"github.com/nats-io/nats.go"

	"usher/webhookgate"
)

// How webhooks, and copies of them, look in the log.

const (
	encodingHeader = "Usher-Encoding"
	deflate        = "deflate"
	// deflateFrom is the size from which a record is compressed: the servers take
	// messages up to 1 MiB, unless they are told otherwise, and a webhook may be as large.
	deflateFrom = 64 << 10
	// inflatedMost bounds what a record may grow to.
	inflatedMost = 1 << 30
)

// recordMessage is w as it goes into the log, at the end of its lane. That can be read in
// its header, by people.
func (s *jetStore) recordMessage(w *webhookgate.Webhook, last mirrorLane) *nats.Msg {
	m := nats.NewMsg(s.laneSubject(w.Lane))
	m.Data = encodeRecord(w, last.ID)
	for name, value := range map[string]string{"Usher-Webhook": w.ID, "Usher-Type": w.Type, "Usher-Platform": w.Lane.Platform, "Usher-Tenant": w.Lane.Tenant} {
		m.Header.Set(name, fmt.Sprintf("%.200q", value))
	}
	if len(m.Data) >= deflateFrom {
		m.Data = compress(m.Data)
		m.Header.Set(encodingHeader, deflate)
	}
	expect(m, last.end)
	return m
}

// copyHeader marks a message that says that a copy of its lane's last came, and which.
const copyHeader = "Usher-Copy"

// copyMessage says that w came, a copy of what is last in its lane. It stands in the lane
// itself, as only there the servers refuse what was to stand in its place.
func (s *jetStore) copyMessage(w *webhookgate.Webhook, end uint64) *nats.Msg {
	m := nats.NewMsg(s.laneSubject(w.Lane))
	m.Header.Set(copyHeader, w.ID)
	expect(m, end)
	return m
}

// compress makes a record smaller. What has hardly a repetition in it, base64 say, is stored
// as it is by every fast level since Go 1.27; by its letters alone it still gets smaller,
// and has to, or the servers would not take it.
func compress(data []byte) []byte {
	fast := compressAt(flate.BestSpeed, data)
	if len(fast) < len(data)/4*3 {
		return fast
	}
	if letters := compressAt(flate.HuffmanOnly, data); len(letters) < len(fast) {
		return letters
	}
	return fast
}

func compressAt(level int, data []byte) []byte {
	var b bytes.Buffer
	z, _ := flate.NewWriter(&b, level) // the level is known
	z.Write(data)                      // to memory
	z.Close()
	return b.Bytes()
}

// unpackRecord is the reverse of recordMessage.
func unpackRecord(data []byte, deflated bool) (*webhookgate.Webhook, uint64, error) {
	if deflated {
		var err error
		if data, err = io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(data)), inflatedMost)); err != nil {
			return nil, 0, ErrDamaged
		}
	}
	return decodeRecord(data)
}
