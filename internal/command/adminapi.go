package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"usher/internal/admin"
	"usher/internal/serve"
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
	var coded struct{ Error struct{ Message string } } // the form of what is about entitlements
	if _ = json.Unmarshal(raw, &coded); coded.Error.Message != "" {
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

// adminClient returns a client for the admin port that listens on addr on this machine, and
// the address to use with it.
func adminClient(addr string) (*http.Client, string) {
	if strings.HasPrefix(addr, "unix:") {
		return serve.Client(addr)
	}
	if host, port, err := net.SplitHostPort(addr); err == nil {
		ip, err := netip.ParseAddr(host)
		switch {
		case host == "", err == nil && ip.IsUnspecified() && ip.Is4():
			addr = net.JoinHostPort("127.0.0.1", port)
		case err == nil && ip.IsUnspecified():
			addr = net.JoinHostPort("::1", port)
		}
	}
	return serve.Client("http://" + addr)
}

// notAsked says that no usher answered on the admin port.
func notAsked(listen string, err error) error {
	if request := new(url.Error); errors.As(err, &request) {
		err = request.Err // without the request, which nobody wrote
	}
	return fmt.Errorf("cannot reach usher at %s. Is it running? USHER_ADMIN_LISTEN says where: %w", listen, err)
}
