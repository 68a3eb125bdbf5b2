package outbound

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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
	type failure struct{ Message string }
	var got struct {
		Data   map[string]json.RawMessage
		Errors []failure
	}
	if json.Unmarshal(answer, &got) != nil {
		return errors.New("the service's answer is not that of a GraphQL API")
	}
	whys := got.Errors
	for _, field := range got.Data { // the service's own way to say that a scope is missing
		var inside struct{ Errors []json.RawMessage }
		_ = json.Unmarshal(field, &inside) // anything else has no errors
		for _, e := range inside.Errors {
			why := failure{Message: string(e)}
			if json.Unmarshal(e, &why) != nil {
				_ = json.Unmarshal(e, &why.Message)
			}
			whys = append(whys, why)
		}
	}
	switch {
	case len(whys) > 0:
		sent := string(bytes.TrimPrefix([]byte(c.token.Header()[0]), []byte("Bearer ")))
		return CallRefusedError("the service answered: " + text.Clip(secret.Hide(text.Visible(whys[0].Message), sent), 200))
	case got.Data == nil:
		return errors.New("the service's answer has no data")
	}
	var envelope struct{ Data json.RawMessage }
	if err := json.Unmarshal(answer, &envelope); err != nil {
		return err
	}
	if json.Unmarshal(envelope.Data, data) != nil {
		return errors.New("the data in the service's answer has another form than the service publishes")
	}
	return nil
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
