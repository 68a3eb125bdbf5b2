package outbound

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"usher/internal/secret"
	"usher/internal/text"
	"usher/internal/version"
	"usher/tokens"
)

// A Caller makes usher's own calls of the service. It has a token of its own, with scopes of its own: what happens to
// that token touches neither the tokens of the local ports nor their backoff. Use it from one goroutine at a time.
type Caller struct {
	o      *Outbound
	client tokens.Client
	token  *tokens.Token
}

// NewCaller returns a caller for the main port's API client with these scopes.
func (o *Outbound) NewCaller(scope string) *Caller {
	c := &Caller{o: o, client: *o.client(o.cfg.Main)}
	c.client.Scope = scope
	return c
}

// A CallRefusedError is the service's reason why this API client may not make a call. It stays so until somebody
// changes something in the service. The text is foreign.
type CallRefusedError string

func (e CallRefusedError) Error() string { return string(e) }

// maxCallAnswer bounds an answer.
const maxCallAnswer = 64 << 20

// Call makes a GraphQL call, decodes the data of its answer, and returns the service's time. Only one with data and no
// error counts. A *CallRefusedError says that the service does not allow the call: the service says so in many ways,
// with a status, or beside the data, or inside each of its fields.
func (c *Caller) Call(ctx context.Context, query string, variables map[string]any, data any) (at time.Time, err error) {
	body, err := json.Marshal(map[string]any{"query": query, "variables": variables})
	if err != nil {
		return at, err
	}
	for again := false; ; again = true {
		if c.token == nil || time.Until(c.token.Expiry()) < time.Minute {
			if c.token, err = c.client.Fetch(ctx); tokens.Rejected(err) {
				return at, CallRefusedError(err.Error())
			} else if err != nil {
				return at, err
			}
		}
		status, answer, at, err := c.send(ctx, body)
		switch {
		case err != nil:
			return at, err
		case status == http.StatusUnauthorized && !again:
			c.token = nil // revoked: another one is asked for once
			continue
		case status == http.StatusTooManyRequests || status >= 500:
			return at, fmt.Errorf("the service answered %d", status)
		case status != http.StatusOK:
			return at, CallRefusedError(fmt.Sprintf("the service answered %d", status))
		}
		return at, c.read(answer, data)
	}
}

// read decodes the data of an answer with the status 200.
func (c *Caller) read(answer []byte, data any) error {
	var got struct{ Data json.RawMessage }
	switch why, refused := c.refusal(answer); {
	case json.Unmarshal(answer, &got) != nil:
		return errors.New("the service's answer is not that of a GraphQL API")
	case refused:
		return CallRefusedError("the service answered: " + why)
	case len(got.Data) == 0 || string(got.Data) == "null":
		return errors.New("the service's answer has no data")
	case json.Unmarshal(got.Data, data) != nil:
		return errors.New("the data in the service's answer has another form than the service publishes")
	}
	return nil
}

// refusal returns the first error of an answer: beside the data or, if a scope is missing, inside one of its fields.
func (c *Caller) refusal(answer []byte) (why string, refused bool) {
	type failures struct{ Errors []json.RawMessage }
	var top failures
	var fields struct{ Data map[string]json.RawMessage }
	_, _ = json.Unmarshal(answer, &top), json.Unmarshal(answer, &fields) // anything else has no errors
	all := top.Errors
	for _, field := range fields.Data {
		var inside failures
		_ = json.Unmarshal(field, &inside)
		all = append(all, inside.Errors...)
	}
	if len(all) == 0 {
		return "", false
	}
	var failure struct{ Message string }
	if json.Unmarshal(all[0], &failure) != nil {
		_ = json.Unmarshal(all[0], &failure.Message)
	}
	sent := strings.TrimPrefix(c.token.Header()[0], "Bearer ")
	return text.Clip(secret.Hide(text.Visible(failure.Message), sent), 200), true
}

// Probe calls the service with a token. Its error says what is wrong, and what to do about it.
func (o *Outbound) Probe(ctx context.Context, token *tokens.Token) error {
	c := &Caller{o: o, token: token}
	status, answer, _, err := c.send(ctx, []byte(`{"query":"{__typename}"}`))
	if err != nil {
		err = fmt.Errorf("%w; the same address did answer with a token, so try again, or increase "+
			"USHER_UPSTREAM_TIMEOUT", err)
	} else {
		err = c.judge(status, answer)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o.target.Redacted(), err)
	}
	return nil
}

// judge returns an error that says what is wrong with the answer to a probe, and what to do about it.
func (c *Caller) judge(status int, answer []byte) error {
	why, refused := c.refusal(answer)
	var got struct{ Data *json.RawMessage }
	_ = json.Unmarshal(answer, &got) // other JSON counts as an answer without errors
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return refusedError(status)
	case status >= 500:
		return fmt.Errorf("answered %d; this is an error of the service, try again later", status)
	case status != http.StatusOK:
		return fmt.Errorf("answered %d; is USHER_BASE_URL right?", status)
	case !json.Valid(answer):
		return errors.New("the answer is not JSON; is USHER_BASE_URL right?")
	case got.Data != nil: // an error beside it, such as "deprecated", does no harm here
	case refused && why == "":
		return errors.New("answered with an error; is this API client allowed to use the API with these scopes?")
	case refused:
		return fmt.Errorf("answered with an error: %s; is this API client allowed to use the API with these scopes?", why)
	}
	return nil
}

// refusedError says that the service refused a token, with the status of its answer.
type refusedError int

func (status refusedError) Error() string {
	return fmt.Sprintf("answered %d; the service rejects the token that it has just issued: does another "+
		"program use this API client, and is the client allowed to use the API?", int(status))
}

// Refused reports whether err, of Probe, says that the service refused the token.
func Refused(err error) bool {
	_, refused := errors.AsType[refusedError](err)
	return refused
}

func (c *Caller) send(ctx context.Context, body []byte) (status int, answer []byte, at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.cfg.UpstreamTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.o.target.String(), bytes.NewReader(body))
	if err != nil {
		return 0, nil, at, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", version.UserAgent())
	req.Header["Authorization"] = c.token.Header()
	resp, err := c.o.upstream.RoundTrip(req)
	if err != nil {
		return 0, nil, at, fmt.Errorf("the service cannot be reached: %w", err)
	}
	defer resp.Body.Close()
	if at, err = http.ParseTime(resp.Header.Get("Date")); err != nil {
		at = time.Now()
	}
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxCallAnswer))
	return resp.StatusCode, answer, at, err
}
