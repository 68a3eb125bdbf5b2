// Package tokens keeps a valid OAuth 2.0 access token ready, from the client-credentials grant. A [Source] holds the
// current token of one identity (client and scope), and renews it in the background well before it expires, with one
// request for all callers. A caller needs one atomic load. It waits only if there is no valid token, or the service has
// just refused it.
package tokens

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"usher/internal/clock"
)

const (
	unknownLife  = 5 * time.Minute     // the life of a token if the endpoint does not say how long it lives
	longestLife  = 30 * 24 * time.Hour // the longest life that usher believes
	shortestLife = time.Second         // the shortest: with some milliseconds each call would need a new token
)

// Token is an access token, and how long it may be used. It prints as its fingerprint.
type Token struct {
	header      []string // the value of the Authorization header, ready for use
	fingerprint string

	asked   time.Time // when it was requested
	life    time.Duration
	renewAt time.Duration // the age at which to renew it

	refused atomic.Bool // the service has refused it, and a refresh is about to replace it
}

func newToken(value string, asked time.Time, life time.Duration) *Token {
	sum := sha256.Sum256([]byte(value))
	return &Token{
		header: []string{"Bearer " + value}, fingerprint: hex.EncodeToString(sum[:4]), asked: asked, life: life,
		renewAt: jitter(life, 0.76, 0.82), // random, so that replicas that started together do not renew together
	}
}

// Header returns the value of the Authorization header for t, ready for an http.Header. All callers
// share it, and must not change it.
func (t *Token) Header() []string { return t.header }

// Fingerprint identifies t without showing it: the first 8 hex digits of its SHA-256.
func (t *Token) Fingerprint() string { return t.fingerprint }

// Expiry returns when t expires, by the wall clock.
func (t *Token) Expiry() time.Time { return t.asked.Round(0).Add(t.life) }

// Asked returns when t was requested, by the wall clock.
func (t *Token) Asked() time.Time { return t.asked.Round(0) }

// age counts from the request, not from the answer: the endpoint may have issued t at any time between.
func (t *Token) age(now time.Time) time.Duration { return clock.Age(t.asked, now) }

func (t *Token) valid(now time.Time) bool { return t.age(now) < t.life }

func (t *Token) String() string { return t.fingerprint }

func (t *Token) GoString() string { return t.fingerprint }

func (t *Token) LogValue() slog.Value { return slog.StringValue(t.fingerprint) }

// lifeOf returns how long a token lives: the shorter of the answer's expires_in and the token's own
// exp minus iat.
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

// seconds reads expires_in: a number, or a string with a number, as some servers write it. ok is
// false for anything else, and for a number that is not positive.
func seconds(raw json.RawMessage) (time.Duration, bool) {
	text := string(raw)
	var quoted string
	if json.Unmarshal(raw, &quoted) == nil {
		text = strings.TrimSpace(quoted)
	}
	if strings.Trim(text, "0123456789.eE+-") != "" { // ParseFloat would accept hex, and "Infinity"
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil && !math.IsInf(f, 1) { // a number too large for a float64 is a very long life
		return 0, false
	}
	return clampSeconds(f)
}

// jwtLife reads the life of a JWT without verifying it: usher only wants to know when to renew it. ok is false if the
// token is not a JWT, or does not have both claims: exp alone would be compared with our clock, not the service's.
func jwtLife(token string) (time.Duration, bool) {
	claims := jwt.MapClaims{}
	// The error does not matter: the parser fills claims before it checks the algorithm, and a claim
	// that cannot be read counts as missing.
	_, _, _ = jwt.NewParser().ParseUnverified(token, claims)
	exp, okExp := claims["exp"].(float64)
	iat, okIat := claims["iat"].(float64)
	if !okExp || !okIat {
		return 0, false
	}
	return clampSeconds(exp - iat)
}

// clampSeconds makes a life from seconds. It clamps them before it multiplies, because a huge number
// would overflow a Duration. ok is false if they are not positive.
func clampSeconds(s float64) (time.Duration, bool) {
	if math.IsNaN(s) || s <= 0 {
		return 0, false
	}
	s = min(s, longestLife.Seconds())
	return max(time.Duration(s*float64(time.Second)), shortestLife), true
}

func jitter(d time.Duration, from, to float64) time.Duration {
	return time.Duration(float64(d) * (from + (to-from)*rand.Float64()))
}
