package message

import (
	"bytes"
	"compress/flate"
	"io"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

const (
	deflate = "deflate"
	// deflateFrom is the size from which a content is compressed: the servers take messages
	// up to 1 MiB, unless they are told otherwise, and a webhook may be as large.
	deflateFrom = 64 << 10
	// rememberedFrom is the size from which a content is compressed that is remembered. What is smaller
	// saves little, and takes as long.
	rememberedFrom = 2 << 10
	// inflatedMost bounds what a content may grow to.
	inflatedMost = 1 << 30
	// Aside is what a webhook counts for beside its content: where it stands, why, and what its
	// lane remembers of it. That is less, unless the receiver used many words.
	Aside = 2 << 10
)

// Content is a webhook whole, as a message carries it.
type Content struct {
	Data     []byte
	encoding string
}

// Pack makes w ready for a message.
func Pack(w *webhookgate.Webhook) Content {
	c := Content{Data: record.Encode(w, 0)}
	if len(c.Data) >= deflateFrom {
		c = Content{compress(c.Data), deflate}
	}
	return c
}

// Packed is what a message carries.
func Packed(h nats.Header, data []byte) Content { return Content{data, h.Get(encodingHeader)} }

// Put writes the content into m.
func (c Content) Put(m *nats.Msg) {
	m.Data = c.Data
	if c.encoding != "" {
		m.Header.Set(encodingHeader, c.encoding)
	}
}

// Unpack is the webhook.
func (c Content) Unpack() (*webhookgate.Webhook, error) {
	w, _, err := c.unpack()
	return w, err
}

// IsEssence says whether c is only what is remembered of a webhook that is finished.
func (c Content) IsEssence() bool {
	_, mark, err := c.unpack()
	return err == nil && mark == essential
}

// essential stands in an essence where a file has a record's number.
const essential = 1

func (c Content) unpack() (w *webhookgate.Webhook, mark uint64, err error) {
	data := c.Data
	if c.encoding == deflate {
		if data, err = io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(data)), inflatedMost)); err != nil {
			return nil, 0, record.ErrDamaged
		}
	}
	return record.Decode(data)
}

// Remembered is c for a message that stays for as long as there is the tenant: essence is what stays of the
// body, nil: all of it.
func (c Content) Remembered(essence func(body []byte) []byte) Content {
	if w, err := c.Unpack(); err == nil && essence != nil { // what is damaged stays as it is
		short := *w
		short.Header, short.Body = nil, essence(w.Body)
		c = Content{Data: record.Encode(&short, essential)}
	}
	if c.encoding == "" && len(c.Data) >= rememberedFrom {
		return Content{compress(c.Data), deflate}
	}
	return c
}

// SizeOf is what a message with a webhook counts for while it waits.
func SizeOf(h nats.Header, data []byte) int {
	const rest = 250 // the subject, the headers' names, what the servers add
	return ContentSize(h, data) + len(h.Get(HeadHeader)) + len(h.Get(StatusHeader)) + rest + Aside
}

// ContentSize is the size of a content. Where it was not read, the servers say how large it is.
func ContentSize(h nats.Header, data []byte) int {
	if n, err := strconv.Atoi(h.Get("Nats-Msg-Size")); err == nil {
		return n
	}
	return len(data)
}

// compress makes a content smaller. What has hardly a repetition in it, base64 say, is stored
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
	z, ok := compressors[level+2].Get().(*flate.Writer)
	if !ok {
		z, _ = flate.NewWriter(nil, level) // the level is known
	}
	defer compressors[level+2].Put(z)
	b := bytes.NewBuffer(make([]byte, 0, len(data)))
	z.Reset(b)
	z.Write(data) // to memory
	z.Close()
	return b.Bytes()
}

// compressors are by level. To make one takes a megabyte, and far longer than to use it.
var compressors [4]sync.Pool
