package sandbox

import (
	"crypto/rand"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"usher/internal/guard"
)

// oauthError is the token endpoint's error object.
type oauthError struct {
	Error       string `json:"error"`
	Description string `json:"error_description"`
}

// tokenResponse has the four documented fields and no others.
type tokenResponse struct {
	AccessToken string `json:"access_token"`
	TokenType   string `json:"token_type"`
	ExpiresIn   int64  `json:"expires_in"`
	CreatedAt   int64  `json:"created_at"`
}

const issuer = "usher-sandbox"

// claims are the claims of an access token. The subject is the client's ID.
type claims struct {
	Scope string `json:"scope"`
	jwt.RegisteredClaims
}

// grant is what the service remembers about a token. The JWT has whole seconds, so its exp can be up
// to a second before the end of expires_in. The service uses its own exact end, like a service that
// keeps tokens in a table.
type grant struct {
	clientID string
	expires  time.Time
}

// token answers a token request.
//
// The checks are in the order of common OAuth servers: the grant first, then the client, then the
// scope. So a stranger cannot find out the scopes.
func (b *Billing) token(contentType string, body []byte) answer {
	form := parseForm(contentType, body)
	if form.one("grant_type") != "client_credentials" {
		return refuseToken(http.StatusBadRequest, "unsupported_grant_type",
			"The authorization grant type is not supported by the authorization server.")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c, known := b.clients[form.one("client_id")]
	if !known || !guard.Equal(form.one("client_secret"), c.Secret) {
		return refuseToken(http.StatusUnauthorized, "invalid_client",
			"Client authentication failed due to unknown client, no client authentication included, or unsupported authentication method.")
	}
	scopes := strings.FieldsFunc(form.one("scope"), func(r rune) bool { return r == ' ' })
	foreign := func(s string) bool { return !slices.Contains(c.Scopes, s) }
	if len(scopes) == 0 || slices.ContainsFunc(scopes, foreign) {
		return refuseToken(http.StatusBadRequest, "invalid_scope",
			"The requested scope is invalid, unknown, or malformed.")
	}
	a := jsonAnswer(http.StatusOK, b.issueLocked(c, strings.Join(scopes, " ")))
	a.header.Set("Cache-Control", "no-store")
	return a
}

func refuseToken(status int, code, description string) answer {
	a := jsonAnswer(status, oauthError{code, description})
	a.header.Set("Cache-Control", "no-store")
	if status == http.StatusUnauthorized {
		a.header.Set("WWW-Authenticate", `Bearer realm="usher sandbox", error="`+code+`"`)
	}
	return a
}

func (b *Billing) issueLocked(c Client, scope string) tokenResponse {
	now := time.Now().Round(0) // the wall clock, which includes a laptop's sleep
	maps.DeleteFunc(b.issued, func(_ string, g grant) bool {
		return !now.Before(g.expires) || b.revokePrevious && g.clientID == c.ID
	})
	cl := claims{scope, jwt.RegisteredClaims{
		Issuer:    issuer,
		Subject:   c.ID,
		IssuedAt:  &jwt.NumericDate{Time: now},
		ExpiresAt: &jwt.NumericDate{Time: now.Add(c.TokenLife)},
		ID:        rand.Text(),
	}}
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, cl).SignedString(b.key)
	if err != nil {
		panic(err) // cannot happen: HMAC with our own key
	}
	b.issued[cl.ID] = grant{c.ID, now.Add(c.TokenLife)}
	return tokenResponse{signed, "Bearer", int64(c.TokenLife / time.Second), now.Unix()}
}

// check returns the scopes of a token, or says what is wrong with it.
func (b *Billing) check(token string) (scopes []string, fault string) {
	var cl claims
	_, err := b.parser.ParseWithClaims(token, &cl, func(*jwt.Token) (any, error) { return b.key, nil })
	if err != nil || cl.Issuer != issuer || cl.ExpiresAt == nil {
		return nil, "The access token is invalid"
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	g, live := b.issued[cl.ID]
	now := time.Now()
	switch {
	case live && !now.Before(g.expires), !live && !now.Before(cl.ExpiresAt.Time):
		return nil, "The access token expired"
	case !live:
		return nil, "The access token was revoked"
	}
	return strings.Fields(cl.Scope), ""
}

// form holds the fields of a form-encoded body.
type form url.Values

// parseForm returns no fields for a body that is not form-encoded: a JSON body is a request without a
// grant type.
func parseForm(contentType string, body []byte) form {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil || mediaType != "application/x-www-form-urlencoded" {
		return nil
	}
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return nil
	}
	return form(values)
}

// one returns a field's value, or nothing if it occurs twice (RFC 6749, 3.2).
func (f form) one(name string) string {
	if len(f[name]) != 1 {
		return ""
	}
	return f[name][0]
}
