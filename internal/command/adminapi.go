package command

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"usher/internal/admin"
	"usher/internal/serve"
	"usher/internal/settings"
	"usher/internal/text"
	"usher/internal/view"
)

// adminAPI calls a running usher through its admin port.
type adminAPI struct {
	*Process
	client *serve.Client
	listen string // the address of the admin port
}

// apiError is an answer of the API other than 200. Its text can be printed: it has no control characters.
type apiError struct {
	status int
	admin.Problem
}

func (e *apiError) Error() string { return e.Problem.Error }

// newAdminAPI returns a client for the admin port that the settings name.
func newAdminAPI(p *Process) (*adminAPI, error) {
	s, err := settings.ReadAdmin(p.Environ)
	if err != nil {
		return nil, err
	}
	a := adminAPIAt(p, s.Listen, cmp.Or(s.Token, s.ReadToken).Get())
	a.client.Timeout = 30 * time.Second
	return a, nil
}

// adminAPIAt returns a client for the admin port of an usher on this machine, where addr is its
// USHER_ADMIN_LISTEN.
func adminAPIAt(p *Process, addr, tokens string) *adminAPI {
	a := &adminAPI{p, serve.NewClient(addr, tokens), addr}
	if u, err := user.Current(); err == nil {
		a.client.Header.Set(admin.UserHeader, u.Username)
	}
	return a
}

// get decodes an answer into result, and returns its bytes, too.
func (a *adminAPI) get(ctx context.Context, target string, result any) (raw []byte, err error) {
	resp, err := a.fetch(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if raw, err = io.ReadAll(resp.Body); err != nil {
		return nil, a.brokenOff(http.MethodGet, err)
	}
	if err := json.Unmarshal(raw, result); err != nil {
		return nil, fmt.Errorf("%s is not usher, or another version of it: %w", a.listen, err)
	}
	return raw, nil
}

// lines sends body, and calls each for every line of the answer as it comes, but the last one, which it returns. An
// answer without that has ended too early.
func (a *adminAPI) lines(ctx context.Context, method, target string, body any, each func(line []byte) error) (view.End, error) {
	var last struct{ End *view.End }
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return view.End{}, err
		}
		content = bytes.NewReader(b)
	}
	resp, err := a.fetch(ctx, method, target, content)
	if err != nil {
		return view.End{}, err
	}
	defer resp.Body.Close()
	d := json.NewDecoder(resp.Body)
	for last.End == nil {
		var line json.RawMessage
		if err := d.Decode(&line); err != nil {
			return view.End{}, a.brokenOff(method, err)
		}
		if err := json.Unmarshal(line, &last); err != nil {
			return view.End{}, a.brokenOff(method, err)
		}
		if last.End == nil {
			if err := each(line); err != nil {
				return view.End{}, err
			}
		}
	}
	if last.End.Error != "" {
		err = a.brokenOff(method, errors.New(text.Visible(last.End.Error)))
	}
	return *last.End, err
}

func (a *adminAPI) brokenOff(method string, err error) error {
	if method == http.MethodPost {
		return fmt.Errorf("the answer ended too early; 'usher inbox ls' shows whether it was done: %w", err)
	}
	return fmt.Errorf("the answer ended too early, so this is not all: %w", err)
}

// fetch sends a request and returns the answer. One other than 200 is an error.
func (a *adminAPI) fetch(ctx context.Context, method, target string, content io.Reader) (*http.Response, error) {
	resp, err := a.do(ctx, method, target, content)
	if err != nil || resp.StatusCode == http.StatusOK {
		return resp, err
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return nil, a.refused(resp.StatusCode, raw)
}

// do sends a request and returns the answer, whatever its status is. If usher cannot be reached, the error says
// how to name another admin port.
func (a *adminAPI) do(ctx context.Context, method, target string, content io.Reader) (*http.Response, error) {
	resp, err := a.client.Call(ctx, method, target, content)
	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err // without method and URL: the user typed neither
	}
	if err != nil {
		return nil, fmt.Errorf("cannot reach usher at %s: %w. Is it running? "+
			"Its address is in USHER_ADMIN_LISTEN, from the environment or a file (usher "+
			"--env-file FILE ...).%s", a.listen, err, a.envFileHint())
	}
	return resp, nil
}

// refused returns the error for an answer other than 200, whose body is raw.
func (a *adminAPI) refused(status int, raw []byte) error {
	e := &apiError{status: status}
	switch err := json.Unmarshal(raw, &e.Problem); {
	case status == http.StatusUnauthorized:
		e.Problem.Error = "the admin token is missing or wrong: set USHER_ADMIN_TOKEN, " +
			"or USHER_ADMIN_TOKEN_FILE, to that of the running usher" + a.envFileHint()
	case err != nil || e.Problem.Error == "":
		e.Problem.Error = fmt.Sprintf("%s answered %d: is that usher?", a.listen, status)
	default:
		e.Problem.Error = text.Visible(e.Problem.Error)
	}
	return e
}

// envFileHint suggests a settings file of the units in deploy/systemd that the user has not named with --env-file.
func (p *Process) envFileHint() string {
	files, _ := filepath.Glob("/etc/usher/*.env")
	files = slices.DeleteFunc(files, func(file string) bool { return slices.Contains(p.envFiles, file) })
	if len(files) == 0 {
		return ""
	}
	return fmt.Sprintf("\nThis machine has settings of usher in %s. Try: usher --env-file %s ...",
		strings.Join(files, ", "), text.Quote(files[0]))
}

// adminPortHelp ends the help of each command that calls a running usher. The command line follows it.
const adminPortHelp = `
It calls the admin port of a running usher, and uses only the admin settings
(USHER_ADMIN_LISTEN, USHER_ADMIN_TOKEN). If a service manager started usher,
name its settings:

  usher --env-file /etc/usher/gate.env `
