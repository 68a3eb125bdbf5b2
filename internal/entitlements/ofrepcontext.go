package entitlements

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"time"
	"unicode/utf8"
)

const (
	// maxContext is the largest body of a question, bodyPatience how long it may take to
	// arrive.
	maxContext   = 256 << 10
	bodyPatience = 10 * time.Second
)

// readContext reads which tenant the question is about.
func readContext(w http.ResponseWriter, r *http.Request) (tenant string, platform *string, err error) {
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		// Some providers do not escape the key. Of "a?b" only "a" would remain.
		return "", nil, parseError("There must be no query. Percent-encode the key.")
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyPatience)) // net/http removes it at the body's end
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxContext))
	if err != nil {
		return "", nil, parseError("The body is too large, or it ended too early.")
	}
	if !utf8.Valid(body) || !json.Valid(body) {
		return "", nil, parseError("The body is not JSON.")
	}
	request, ok := members(body)
	if !ok {
		return "", nil, parseError("The body must be a JSON object, with no name twice.")
	}
	about, ok := members(request["context"])
	if !ok {
		return "", nil, invalidContext("The context must be an object, with no name twice.")
	}
	key, ok := optionalText(about["targetingKey"])
	switch {
	case !ok:
		return "", nil, invalidContext("The targetingKey must be a string: the tenant's code.")
	case key == nil || *key == "":
		return "", nil, flagProblem("TARGETING_KEY_MISSING", "The context has no targetingKey: the tenant's code.")
	}
	if platform, ok = optionalText(about["platform"]); !ok {
		return "", nil, invalidContext("The platform must be a string: the platform's code.")
	}
	return *key, platform, nil
}

// members returns the members of a valid JSON object. Names must match exactly; the fields of a
// struct would match them in upper and lower case. A name that occurs twice is refused: the caller
// and usher could mean two different tenants. A missing or null object has no members.
func members(object json.RawMessage) (_ map[string]json.RawMessage, ok bool) {
	all := make(map[string]json.RawMessage)
	if absent(object) {
		return all, true
	}
	d := json.NewDecoder(bytes.NewReader(object))
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return nil, false
	}
	for d.More() {
		name, _ := d.Token()
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, false
		}
		if _, twice := all[name.(string)]; twice {
			return nil, false
		}
		all[name.(string)] = value
	}
	return all, true
}

// optionalText returns a string, or nil if it is missing or null; ok is false for anything else.
func optionalText(value json.RawMessage) (_ *string, ok bool) {
	if absent(value) {
		return nil, true
	}
	var s string
	if value[0] != '"' || json.Unmarshal(value, &s) != nil {
		return nil, false
	}
	return &s, true
}

func absent(value json.RawMessage) bool { return len(value) == 0 || string(value) == "null" }

// An error in the form of the protocol.
type flagError struct {
	Key     string `json:"key,omitempty"` // missing if the question was about all flags
	Code    string `json:"errorCode"`
	Details string `json:"errorDetails"`
}

func parseError(message string) error     { return flagProblem("PARSE_ERROR", message) }
func invalidContext(message string) error { return flagProblem("INVALID_CONTEXT", message) }

func flagProblem(code, message string) error {
	return &problem{status: http.StatusBadRequest, ofrep: code, message: message}
}

// flagBody returns the problem in the form of the protocol.
func (p *problem) flagBody(to target) flagError {
	return flagError{to.feature, cmp.Or(p.ofrep, "GENERAL"), p.message}
}

// flagStatus returns the status for the protocol, which has no 409.
func (p *problem) flagStatus() int {
	if p.status == http.StatusConflict {
		return http.StatusBadRequest
	}
	return p.status
}
