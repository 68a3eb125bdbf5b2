package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"usher/internal/secret"
	"usher/internal/text"
	"usher/internal/wire"
)

// FetchTimeout is how long one request to the token endpoint may take.
const FetchTimeout = 10 * time.Second

const (
	maxAnswer     = 1 << 20
	maxShownError = 300 // bytes of a description that are passed on
)

// RejectedError says that the token endpoint has refused to issue a token.
type RejectedError struct {
	Status      int
	Code        string // its error code, such as invalid_client
	Description string // its own words, shortened, and without the secret
}

func (e *RejectedError) Error() string {
	if e.Description == "" {
		return fmt.Sprintf("the token endpoint rejected the request: %s", e.Code)
	}
	return fmt.Sprintf("the token endpoint rejected the request: %s: %s", e.Code, strings.TrimRight(e.Description, "."))
}

// Rejected reports whether err wraps a *RejectedError.
func Rejected(err error) bool {
	_, rejected := errors.AsType[*RejectedError](err)
	return rejected
}

// Client asks a token endpoint for tokens of one identity.
type Client struct {
	URL       string        // of the token endpoint
	ID        string        // of the API client application
	Secret    func() string // returns the current client secret
	Scope     string        // the scopes to request, separated by spaces
	UserAgent string        // empty: none

	// HTTP must not follow redirects, which could show the secret to somebody else, and its errors must not quote the
	// answer, which may contain a token.
	HTTP http.RoundTripper
}

// Fetch requests a token once. Its error is a *RejectedError if the endpoint refused. Any other error
// means that the endpoint could not be reached, or that its answer makes no sense.
func (c *Client) Fetch(ctx context.Context) (*Token, error) {
	token, _, err := c.request(ctx, c.Secret(), func(*Token, error) {})
	return token, err
}

// request does the work of Fetch. If it has to send the request a second time, it calls fetched with
// the failure of the first. The duration is the endpoint's Retry-After, or zero.
func (c *Client) request(
	ctx context.Context, clientSecret string, fetched func(*Token, error),
) (*Token, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, FetchTimeout)
	defer cancel()

	asked := time.Now()
	resp, err := c.ask(ctx, clientSecret)
	if stale := new(wire.StaleError); errors.As(err, &stale) {
		// The endpoint may have closed an idle connection just before the request came. Without a
		// second request it would seem to be down until the next refresh. If it has received both
		// requests, it issues two tokens, which does no harm.
		fetched(nil, err)
		asked = time.Now()
		resp, err = c.ask(wire.With(ctx, wire.Call{New: true}), clientSecret)
	}
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, 0, fmt.Errorf("the token endpoint's answer ended too early: %w", err)
	}
	if len(body) > maxAnswer {
		return nil, 0, fmt.Errorf("the token endpoint's answer is larger than %d bytes", maxAnswer)
	}
	token, err := readAnswer(resp.StatusCode, body, asked, clientSecret)
	return token, wire.RetryAfter(resp.Header), err
}

func (c *Client) ask(ctx context.Context, clientSecret string) (*http.Response, error) {
	form := url.Values{
		"grant_type": {"client_credentials"}, "scope": {c.Scope}, "client_id": {c.ID}, "client_secret": {clientSecret},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.UserAgent)
	resp, err := c.HTTP.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("the token endpoint can't be reached: %w", err)
	}
	return resp, nil
}

// StatusError is a status with which the token endpoint neither issues a token nor rejects the request.
type StatusError int

func (e StatusError) Error() string { return fmt.Sprintf("the token endpoint answered %d", int(e)) }

// readAnswer turns the token endpoint's answer into a token or an error.
func readAnswer(status int, body []byte, asked time.Time, clientSecret string) (*Token, error) {
	// A map, not a struct: a struct's fields would match names in upper and lower case.
	var fields map[string]json.RawMessage
	jsonErr := json.Unmarshal(body, &fields)
	switch {
	case status == 400 || status == 401 || status == 403:
		if code := stringIn(fields["error"]); code != "" {
			description := presentable(stringIn(fields["error_description"]), clientSecret)
			return nil, &RejectedError{status, presentable(code, clientSecret), description}
		}
		return nil, fmt.Errorf("the token endpoint answered %d without an OAuth error", status)
	case status >= 300 && status < 400:
		return nil, fmt.Errorf("the token endpoint answered %d: a redirect, which usher does not follow with "+
			"a secret; is the base address right?", status)
	case status < 200 || status > 299:
		return nil, StatusError(status)
	case jsonErr != nil:
		// Not %w: a syntax error would quote from the answer, which may contain a token.
		return nil, fmt.Errorf("the token endpoint answered %d, but not with a JSON object", status)
	}
	value := stringIn(fields["access_token"])
	switch {
	case value == "":
		return nil, errors.New("the token endpoint's answer has no access_token")
	case strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		// It could break out of its header.
		return nil, errors.New("the token endpoint issued a token with a character that is not allowed in a token")
	}
	switch kind := fields["token_type"]; {
	case kind == nil, string(kind) == "null", string(kind) == `""`: // not said
	case !strings.EqualFold(stringIn(kind), "bearer"):
		return nil, errors.New("the token endpoint issued a token that is not a bearer token")
	}
	return newToken(value, asked, lifeOf(value, fields["expires_in"])), nil
}

func stringIn(raw json.RawMessage) (s string) {
	_ = json.Unmarshal(raw, &s) // anything else counts as empty
	return s
}

// presentable makes a text of the endpoint safe to log and to pass on: short, on one line, and without
// the client secret, which a careless endpoint may repeat. The secret is hidden last, because Plain may
// unescape it, and also first, because Plain may take a part of it for markup.
func presentable(s, clientSecret string) string {
	s = text.Visible(text.Plain(secret.Hide(s, clientSecret)))
	return text.Clip(secret.Hide(s, clientSecret), maxShownError)
}
