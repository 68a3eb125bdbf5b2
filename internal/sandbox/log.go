package sandbox

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/graph-gophers/graphql-go"
)

// webhookLog is the service's webhook log: an entry for each webhook and each URL, sent or not. It is bounded: new
// entries replace the oldest ones.
type webhookLog struct {
	limit   int           // of bytes
	earlier time.Duration // how much earlier entries say that they were made

	mu     sync.Mutex
	events []*webhookEvent // the oldest first; an entry that changes is replaced; guarded by mu
	lastID int             // guarded by mu
	bytes  int             // of all payloads, guarded by mu
}

const maxLog = 32 << 20

// webhookEvent is an entry of the log. It is never changed.
type webhookEvent struct {
	ID                         graphql.ID
	CreatedAt, UpdatedAt       moment
	Payload                    *string
	PayloadType                *string
	ResponseCode, ResponseBody *string // null without an answer
	Headers                    *anyJSON
	URL                        *string
}

// add makes an entry for a webhook that is about to be sent, or that is lost.
func (l *webhookLog) add(url string, body []byte, header http.Header) graphql.ID {
	var compact bytes.Buffer
	if json.Compact(&compact, body) != nil {
		compact.Reset()
		compact.Write(body)
	}
	sent := make(map[string]string)
	for name := range header {
		if name != "Authorization" { // the token is a secret
			sent[name] = header.Get(name)
		}
	}
	now := moment{time.Now().Add(-l.earlier)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastID++
	e := &webhookEvent{
		ID: graphql.ID(strconv.Itoa(l.lastID)), CreatedAt: now, UpdatedAt: now,
		Payload: new(compact.String()), PayloadType: new("default"), Headers: &anyJSON{encode(sent)}, URL: &url,
	}
	l.events = append(l.events, e)
	l.bytes += compact.Len()
	for l.bytes > l.limit {
		l.bytes -= len(*l.events[0].Payload)
		l.events = l.events[1:]
	}
	return e.ID
}

// answered notes the answer to the last attempt of an entry.
func (l *webhookLog) answered(id graphql.ID, status int, body string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.events, func(e *webhookEvent) bool { return e.ID == id })
	if i < 0 {
		return // forgotten
	}
	e := *l.events[i]
	e.UpdatedAt, e.ResponseCode, e.ResponseBody = moment{time.Now()}, nil, nil
	if status != 0 {
		e.ResponseCode, e.ResponseBody = new(strconv.Itoa(status)), &body
	}
	l.events[i] = &e
}

// all returns the entries, the oldest first.
func (l *webhookLog) all() []*webhookEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}
