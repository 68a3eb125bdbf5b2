package catchup

import (
	"bytes"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"time"

	"usher/internal/content"
)

// query is what usher asks of the service. Its names are those of the published schema.
const query = `query usherCatchUp($first: Int, $after: String) {
  webhookEvents(first: $first, after: $after, sort: "created_at DESC") {
    nodes { id createdAt payload url responseCode }
    pageInfo { endCursor hasNextPage }
  }
}`

// page is a page of the service's webhook log, the newest event first.
type page struct {
	WebhookEvents struct {
		Nodes    []*event
		PageInfo struct {
			EndCursor   string
			HasNextPage bool
		}
	}
}

// An event is an entry of the service's webhook log: a webhook that the service has made, whatever came of it.
type event struct {
	CreatedAt    time.Time
	Payload      json.RawMessage // a string with JSON in it, or that JSON itself
	URL          string
	ResponseCode any
}

// answered2xx says whether the receiver's answer to the event was a success.
func (e *event) answered2xx() bool { return strings.HasPrefix(e.answer(), "2") && len(e.answer()) == 3 }

// answer is the status of the answer that the service got; empty: it got none.
func (e *event) answer() string {
	if e.ResponseCode == nil {
		return ""
	}
	code, _ := json.Marshal(e.ResponseCode)
	return strings.Trim(string(code), `"`)
}

// body returns the webhook's body.
func (e *event) body() []byte {
	var text string
	if json.Unmarshal(e.Payload, &text) == nil {
		return []byte(text)
	}
	return e.Payload
}

// subject is whose state an event is about: the tenant's record in the service, which stays the same when it is
// renamed, else its platform and code. Empty: the event is no TenantProvisioningChange, or does not say.
func subject(body []byte) string {
	var webhook struct {
		Type    string `json:"type"`
		Payload struct {
			Tenant struct {
				ID       any `json:"id"`
				Code     any `json:"code"`
				Platform struct {
					Code any `json:"code"`
				} `json:"platform"`
			} `json:"tenant"`
		} `json:"payload"`
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if decoder.Decode(&webhook) != nil || webhook.Type != content.TenantProvisioningChange {
		return ""
	}
	t := &webhook.Payload.Tenant
	name := []any{t.ID}
	if t.ID == nil {
		name = []any{t.Platform.Code, t.Code}
	}
	key, _ := json.Marshal(name)
	return string(key)
}

var jsonString = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// unescape undoes what Go escapes and JavaScript does not. It passes over a backslash that is escaped itself.
var unescape = strings.NewReplacer(`\\`, `\\`, `\u2028`, "\u2028", `\u2029`, "\u2029")

// compact returns a body as the service writes it, and as JavaScript would write it again: receivers check the
// signature over what they have parsed and written again.
func compact(body []byte) []byte {
	var b bytes.Buffer
	if json.Compact(&b, body) != nil {
		return body // the checks of a webhook say what is wrong with it
	}
	return jsonString.ReplaceAllFunc(b.Bytes(), func(literal []byte) []byte {
		var s string
		if !bytes.Contains(literal, []byte(`\`)) || json.Unmarshal(literal, &s) != nil ||
			strings.ContainsRune(s, '\uFFFD') { // half of a character, perhaps: it stays as it is
			return literal
		}
		var again bytes.Buffer
		encoder := json.NewEncoder(&again)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(s) // a string
		return []byte(unescape.Replace(strings.TrimSuffix(again.String(), "\n")))
	})
}

// IsBelow says whether a webhook that was sent to an address was sent to one of these, or below it: a token may be one
// more segment of the path.
func IsBelow(address string, bases []*url.URL) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	for _, base := range bases {
		rest, found := strings.CutPrefix(u.EscapedPath(), strings.TrimSuffix(base.EscapedPath(), "/"))
		if found && (rest == "" || rest[0] == '/') &&
			strings.EqualFold(u.Scheme, base.Scheme) && hostOf(u) == hostOf(base) {
			return true
		}
	}
	return false
}

// hostOf returns the host and the port of an address.
func hostOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[strings.ToLower(u.Scheme)]
	}
	return strings.ToLower(u.Hostname()) + ":" + port
}
