package webhookgate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"usher/webhookgate/content"
	"usher/webhookgate/delivery"
)

// The decisions, as senders, logs and metrics know them.
const (
	forwarded = "forwarded"
	queued    = "queued"
	duplicate = "duplicate"
	rejected  = "rejected"
	failed    = "failed"
)

// comeBack is the Retry-After of every 503: long enough for a burst to pass, short enough
// that no change waits without need.
const comeBack = 5 * time.Second

// maxFaults limits the size of an answer: a body can have a hundred thousand faults, and
// nobody can read that many.
const maxFaults = 1000

// An answer is usher's answer to the sender. The package documentation describes its JSON
// fields. Copies of a webhook may share an answer, so it does not change once it is made.
type answer struct {
	status int
	header map[string]string // further headers; nil for none

	decision *delivery.Decision // the receiver's own answer, instead of all that follows; nil: none

	Decision string           `json:"decision"`
	Error    string           `json:"error,omitempty"`
	Faults   []content.Fault  `json:"faults,omitempty"`
	Webhook  string           `json:"webhook,omitempty"`
	Tries    int              `json:"tries,omitempty"`
	Receiver *receiversAnswer `json:"receiver,omitempty"`
}

type receiversAnswer struct {
	Status int    `json:"status"`
	Body   string `json:"body"`
}

// reject is the answer to a request that is the sender's fault.
func reject(status int, why string) *answer {
	return &answer{status: status, Decision: rejected, Error: why}
}

// faulty refuses a body and lists its faults, at most maxFaults. The sentence names the first
// one, because some webhook logs show only one line.
func faulty(status int, faults ...content.Fault) *answer {
	path := faults[0].Path
	if path == "" {
		path = "the body"
	}
	why := path + " " + faults[0].Message
	switch more := len(faults) - 1; {
	case more == 1:
		why += ", and one more fault"
	case more > 1:
		why += fmt.Sprintf(", and %d more faults", more)
	}
	no := reject(status, why)
	no.Faults = faults[:min(len(faults), maxFaults)]
	return no
}

// busy tells the sender to come back later.
func busy(why string) *answer {
	return &answer{
		status:   http.StatusServiceUnavailable,
		header:   map[string]string{"Retry-After": seconds(comeBack)},
		Decision: failed,
		Error:    why,
	}
}

// with adds a header.
func (a *answer) with(name, value string) *answer {
	if a.header == nil {
		a.header = make(map[string]string)
	}
	a.header[name] = value
	return a
}

// duplicateOf is the answer to a copy of a snapshot that the receiver holds.
func duplicateOf(webhook string) *answer {
	return &answer{status: http.StatusOK, Decision: duplicate, Webhook: webhook}
}

// shared is the answer to a copy of a webhook that got the answer a.
func (a *answer) shared() *answer {
	if a.Decision == forwarded {
		return duplicateOf(a.Webhook)
	}
	return a
}

func (a *answer) write(w http.ResponseWriter) {
	if a.decision != nil {
		writeDecision(w, a.decision)
		return
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // people read this in a webhook log
	if err := enc.Encode(a); err != nil {
		panic(err) // cannot happen: strings and numbers only
	}
	h := w.Header()
	for name, value := range a.header {
		h.Set(name, value)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	h.Set("Usher-Decision", a.Decision)
	w.WriteHeader(a.status)
	w.Write(body.Bytes()) // an error means that the sender has gone
}

// seconds writes d in the form of Retry-After.
func seconds(d time.Duration) string {
	return strconv.Itoa(int(math.Ceil(d.Seconds())))
}
