package command

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"usher/internal/admin"
	"usher/internal/secret"
	"usher/internal/serve"
	"usher/internal/settings"
)

// adminAPI calls a running usher through its admin port.
type adminAPI struct {
	client             *http.Client
	process            *Process
	listen, url, token string
}

// apiError is an answer of the API that is no 200.
type apiError struct {
	status int
	admin.Problem
	advice string // our own words; may be empty
}

func (e *apiError) Error() string { return visible(e.Problem.Error) + e.advice }

// newAdminAPI calls the admin port that the settings name.
func newAdminAPI(p *Process) (*adminAPI, error) {
	a, err := settings.ReadAdmin(p.Environ)
	if err != nil {
		return nil, err
	}
	client, url := adminClient(a.Listen)
	client.Timeout = 30 * time.Second
	token, _ := secret.Tokens(cmp.Or(a.Token, a.ReadToken).Get()) // settings have checked it
	api := &adminAPI{client: client, process: p, listen: a.Listen, url: url}
	if len(token) > 0 {
		api.token = token[0].Value
	}
	return api, nil
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
	resp, err := a.do(ctx, a.client, method, target, "application/json", content)
	if err != nil {
		return nil, err
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

// do sends a request, and returns the answer whatever its status.
func (a *adminAPI) do(ctx context.Context, client *http.Client, method, target, kind string, content io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.url+target, content)
	if err != nil {
		return nil, fmt.Errorf("USHER_ADMIN_LISTEN: %w", err)
	}
	req.Header.Set("Content-Type", kind)
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	if u, err := user.Current(); err == nil {
		req.Header.Set(admin.UserHeader, u.Username)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, a.process.notAsked(a.listen, err)
	}
	return resp, nil
}

func (a *adminAPI) refused(status int, raw []byte) error {
	e := &apiError{status: status}
	switch err := json.Unmarshal(raw, &e.Problem); {
	case status == http.StatusUnauthorized:
		e.Problem.Error = "the admin token is missing or wrong: set USHER_ADMIN_TOKEN, or USHER_ADMIN_TOKEN_FILE, to that of the running usher"
		e.advice = a.process.adviseEnvFile()
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

// notAsked says that no usher answered on the admin port, and how to name another one.
func (p *Process) notAsked(listen string, err error) error {
	if request := new(url.Error); errors.As(err, &request) {
		err = request.Err // without the request, which nobody wrote
	}
	return fmt.Errorf("cannot reach usher at %s: %w. Is it running? USHER_ADMIN_LISTEN says where, in the environment or in a file (usher --env-file FILE ...).%s", listen, err, p.adviseEnvFile())
}

// unitSettings is where the settings of the units under deploy/systemd are.
var unitSettings = "/etc/usher/*.env"

// adviseEnvFile names the settings of ushers on this machine that the command was not given.
func (p *Process) adviseEnvFile() string {
	files, _ := filepath.Glob(unitSettings)
	files = slices.DeleteFunc(files, func(file string) bool { return slices.Contains(p.envFiles, file) })
	if len(files) == 0 {
		return ""
	}
	return fmt.Sprintf("\nThis machine has settings of usher in %s. Try: usher --env-file %s ...", strings.Join(files, ", "), files[0])
}
