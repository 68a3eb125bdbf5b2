package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"time"

	"usher/internal/guard"
)

// Some client libraries fetch a token themselves. usher answers them: what it hands out opens this port, and nothing
// else. What a caller sends here may be the service's real secret, so nothing of it is logged, kept or put into an
// answer.

const (
	tokenPath = "/oauth/token"
	// localToken is what callers get at a port without a key.
	localToken = "usher-adds-the-token"
	// localLife is the life of a token as the answer says it. In truth it has no end.
	localLife = 2 * time.Hour
	// maxTokenRequest is the largest body of a token request.
	maxTokenRequest = 64 << 10
)

// asksForToken reports whether usher answers a request itself as a token endpoint does.
func asksForToken(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Path == tokenPath && r.URL.RawPath == ""
}

// answerToken answers a token request, or returns why not.
func (c *Config) answerToken(out *outcome, r *http.Request, patience time.Duration) *problem {
	setPatience(out.ResponseWriter, patience) // for all of the body
	body, err := io.ReadAll(http.MaxBytesReader(out.ResponseWriter, r.Body, maxTokenRequest))
	var form url.Values
	if err == nil {
		form, err = readForm(r.Header.Get("Content-Type"), body)
	}
	token, known := c.localToken(r, form)
	grant := form.Get("grant_type")
	refuse := func(status int, code, message string) *problem {
		return &problem{status: status, code: code, message: message, oauth: true, close: err != nil}
	}
	switch {
	case err != nil: // it may quote the body
		return refuse(http.StatusBadRequest, "invalid_request", "the body can't be read: it should be a form or JSON, of 64 KiB at most")
	case grant == "" && known, grant != "" && grant != "client_credentials":
		return refuse(http.StatusBadRequest, "unsupported_grant_type", "usher knows the grant client_credentials only")
	case !known:
		return refuse(http.StatusUnauthorized, "invalid_client",
			"the client_secret is not the key of this port: a program that calls usher sends USHER_KEY as its client secret")
	}
	out.Header().Set("Cache-Control", "no-store")
	guard.WriteJSON(out, http.StatusOK, map[string]any{
		"access_token": token, "token_type": "Bearer", "expires_in": int(localLife.Seconds()), "created_at": time.Now().Unix(),
	})
	return nil
}

// localToken returns what a caller gets who sent these credentials: the key that it has as its secret. Without a
// key any credentials will do.
func (c *Config) localToken(r *http.Request, form url.Values) (token string, known bool) {
	if c.Key == nil {
		return localToken, true
	}
	_, password, _ := r.BasicAuth()
	unescaped, _ := url.QueryUnescape(password) // as RFC 6749 wants it, and few clients send it
	for key := range strings.SplitSeq(c.Key(), ",") {
		if guard.OneOf([]string{form.Get("client_secret"), password, unescaped}, key) {
			token, known = strings.TrimSpace(key), true
		}
	}
	return token, known
}

// readForm reads the fields of a form, of multipart/form-data or of a JSON object.
func readForm(contentType string, body []byte) (url.Values, error) {
	kind, params, _ := mime.ParseMediaType(contentType)
	switch kind {
	case "application/json":
		var fields map[string]any
		err := json.Unmarshal(body, &fields)
		form := make(url.Values)
		for name, value := range fields {
			if text, ok := value.(string); ok {
				form.Set(name, text)
			}
		}
		return form, err
	case "multipart/form-data":
		if params["boundary"] == "" {
			return nil, errors.New("it has no boundary")
		}
		form, err := multipart.NewReader(bytes.NewReader(body), params["boundary"]).ReadForm(maxTokenRequest)
		if err != nil {
			return nil, err
		}
		return form.Value, nil
	}
	return url.ParseQuery(string(body))
}
