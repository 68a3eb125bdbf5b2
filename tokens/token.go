// Package tokens keeps an OAuth 2.0 access token at hand, got with the
// client-credentials grant.
//
// A [Source] holds the current token of one identity (client and scope). Reading
// it is one atomic load. It is renewed in the background well before its end, by
// one request however many callers there are; a caller waits only when there is
// no valid token, and then on its own context. Every failure has a type that says
// whether the token endpoint refused ([RejectedError]) or could not be asked.
package tokens

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	// unknownLife is assumed where the answer does not say how long a token lives.
	unknownLife = 5 * time.Minute
	// longestLife bounds what an answer may claim.
	longestLife = 30 * 24 * time.Hour
	// shortestLife keeps a life of some milliseconds from becoming a request for
	// each call.
	shortestLife = time.Second
)

// Token is one access token and how long it may be used. It prints as its
// fingerprint, never as itself.
type Token struct {
	header      []string // the value of the Authorization header, ready to be put there
	fingerprint string

	// When it was asked for, by both clocks: the monotonic one stands still while
	// a laptop sleeps, the wall clock can be set back.
	asked     time.Time
	askedWall time.Time

	life    time.Duration
	renewAt time.Duration // the age at which it is time for a new one

	refused atomic.Bool // by the service, and the refresh that is under way is to replace it
}

func newToken(value string, asked time.Time, life time.Duration) *Token {
	sum := sha256.Sum256([]byte(value))
	return &Token{
		header:      []string{"Bearer " + value},
		fingerprint: hex.EncodeToString(sum[:4]),
		asked:       asked,
		askedWall:   asked.Round(0),
		life:        life,
		renewAt:     renewal(life),
	}
}

// Header returns the value of the Authorization header that carries t, as an
// http.Header holds it. It is shared: callers must not change it.
func (t *Token) Header() []string { return t.header }

// Fingerprint identifies t without giving it away: the first 8 hex digits of its SHA-256.
func (t *Token) Fingerprint() string { return t.fingerprint }

// Expiry is when t ends, by the wall clock.
func (t *Token) Expiry() time.Time { return t.askedWall.Add(t.life) }

// Asked is when t was asked for, by the wall clock.
func (t *Token) Asked() time.Time { return t.askedWall }

// age is the time since t was asked for, by the clock that went further.
func (t *Token) age(now time.Time) time.Duration {
	return max(now.Sub(t.asked), now.Round(0).Sub(t.askedWall))
}

func (t *Token) valid(now time.Time) bool { return t.age(now) < t.life }

func (t *Token) String() string       { return t.fingerprint }
func (t *Token) GoString() string     { return t.fingerprint }
func (t *Token) LogValue() slog.Value { return slog.StringValue(t.fingerprint) }

// lifeOf is the shorter of what the answer says (expires_in) and what the token
// says of itself (exp minus iat).
func lifeOf(token string, expiresIn json.RawMessage) time.Duration {
	life := unknownLife
	if d, ok := seconds(expiresIn); ok {
		life = d
	}
	if d, ok := jwtLife(token); ok {
		life = min(life, d)
	}
	return life
}

// seconds reads expires_in: a number, or a number in a string, as some servers
// write it. Anything else, and what is not positive, does not count.
func seconds(raw json.RawMessage) (time.Duration, bool) {
	text := string(raw)
	var quoted string
	if json.Unmarshal(raw, &quoted) == nil {
		text = strings.TrimSpace(quoted)
	}
	if strings.Trim(text, "0123456789.eE+-") != "" { // ParseFloat knows hex, and "Infinity"
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil && !math.IsInf(f, 1) { // a number beyond float64 is just very long
		return 0, false
	}
	return clampSeconds(f)
}

// jwtLife reads the life of a JWT without verifying it: usher is not the token's
// audience, it only wants to know when to ask for the next one. An opaque token,
// or one without both claims, has no life of its own; exp alone is not used, as
// it would compare the service's clock with ours.
func jwtLife(token string) (time.Duration, bool) {
	claims := jwt.MapClaims{}
	// The error is of no interest: claims are read before the algorithm is looked
	// at, and what could not be read is not there.
	_, _, _ = jwt.NewParser().ParseUnverified(token, claims)
	exp, okExp := claims["exp"].(float64)
	iat, okIat := claims["iat"].(float64)
	if !okExp || !okIat {
		return 0, false
	}
	return clampSeconds(exp - iat)
}

// clampSeconds clamps before it multiplies: a huge number would overflow a Duration.
func clampSeconds(s float64) (time.Duration, bool) {
	if math.IsNaN(s) || s <= 0 {
		return 0, false
	}
	s = min(s, longestLife.Seconds())
	return max(time.Duration(s*float64(time.Second)), shortestLife), true
}
