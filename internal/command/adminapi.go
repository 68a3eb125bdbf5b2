package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"usher/internal/admin"
	"usher/internal/settings"
)

// adminAPI calls a running usher through its admin port.
type adminAPI struct {
	client             *http.Client
	listen, url, token string
}

// apiError is an answer of the API that is no 200.
type apiError struct {
	status int
	admin.Problem
}

func (e *apiError) Error() string { return visible(e.Problem.Error) }

// newAdminAPI calls the admin port that the settings name.
func newAdminAPI(environ []string) (*adminAPI, error) {
	a, err := settings.ReadAdmin(environ)
	if err != nil {
		return nil, err
	}
	if a.Listen == "off" {
		return nil, errAdminOff
	}
	client, url := adminClient(a.Listen)
	client.Timeout = 30 * time.Second
	return &adminAPI{client, a.Listen, url, a.Token.Get()}, nil
}

// call sends body, if there is one, as JSON, and decodes the answer into result. It
// returns the answer's bytes too.
func (a *adminAPI) call(ctx context.Context, method, target string, body, result any) ([]byte, error) {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url+target, content)
	if err != nil {
		return nil, fmt.Errorf("USHER_ADMIN_LISTEN: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, notAsked(a.listen, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("the answer ended too early: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, a.refused(resp.StatusCode, raw)
	}
	if err := json.Unmarshal(raw, result); err != nil {
		return nil, fmt.Errorf("%s is not an usher, or not of this version: %w", a.url, err)
	}
	return raw, nil
}

func (a *adminAPI) refused(status int, raw []byte) error {
	e := &apiError{status: status}
	if coded := new(codedError); coded.message(raw) != "" {
		e.Problem.Error = coded.Error.Message
		return e
	}
	switch err := json.Unmarshal(raw, &e.Problem); {
	case status == http.StatusUnauthorized:
		e.Problem.Error = "the admin token is missing or wrong: set USHER_ADMIN_TOKEN, or USHER_ADMIN_TOKEN_FILE, to that of the running usher"
	case err != nil || e.Problem.Error == "":
		e.Problem.Error = fmt.Sprintf("%s answered %d: is there an usher?", a.url, status)
	}
	return e
}
