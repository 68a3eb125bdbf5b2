package outbound

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"usher/internal/terminal"
	"usher/internal/version"
	"usher/tokens"
)

// Probe calls the service with a token, and says what is wrong with the answer.
func (o *Outbound) Probe(ctx context.Context, token *tokens.Token) error {
	if err := o.typename(ctx, token); err != nil {
		return fmt.Errorf("%s: %w", o.target.Redacted(), err)
	}
	return nil
}

func (o *Outbound) typename(ctx context.Context, token *tokens.Token) error {
	ctx, cancel := context.WithTimeout(ctx, o.settings.Outbound.UpstreamTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.target.String(), strings.NewReader(`{"query":"{__typename}"}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", version.UserAgent())
	req.Header["Authorization"] = token.Header()
	resp, err := o.upstream.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%w; the same address did answer with a token, so try again, or increase USHER_UPSTREAM_TIMEOUT", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("the answer ended too early: %w; try again", err)
	}
	return judge(resp.StatusCode, body, token)
}

// judge says what is wrong with an answer of the API, and what to do about it.
func judge(status int, body []byte, token *tokens.Token) error {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fmt.Errorf("answered %d; the service rejects the token that it has just issued: does another program use this API client, and is the client allowed to use the API?", status)
	case status >= 500:
		return fmt.Errorf("answered %d; this is an error of the service, try again later", status)
	case status != http.StatusOK:
		return fmt.Errorf("answered %d; is USHER_BASE_URL right?", status)
	case !json.Valid(body):
		return errors.New("the answer is not JSON; is USHER_BASE_URL right?")
	}
	var answer struct {
		Data   json.RawMessage
		Errors []json.RawMessage
	}
	_ = json.Unmarshal(body, &answer) // any JSON will do: check only asks for an answer
	if len(answer.Errors) == 0 || len(answer.Data) > 0 && string(answer.Data) != "null" {
		return nil
	}
	var first struct{ Message string }
	if json.Unmarshal(answer.Errors[0], &first) == nil && first.Message != "" {
		secret := strings.TrimPrefix(token.Header()[0], "Bearer ")
		first.Message = ": " + terminal.Visible(strings.ReplaceAll(first.Message, secret, "[redacted]"))
	}
	return fmt.Errorf("answered with an error%s; is this API client allowed to use the API with these scopes?", first.Message)
}
