package receiver

import (
	"net/http"
	"strings"

	"usher/internal/secret"
	"usher/internal/text"
)

const (
	maxSearched = 4 << 10 // how much of an answer is searched for secrets
	maxExcerpt  = 1 << 10 // how much of it people see
	// cutPiece is how much at the end of what is searched may be the beginning of a secret, which is not found.
	cutPiece = 64
)

// notShown stands for an answer that spells a secret once its markup is removed.
const notShown = "(not shown: it repeats what usher sent)"

// excerpt returns the beginning of what the receiver said to a request with this header, on one line. A
// receiver may repeat the request. So nothing is shown of the credentials, and no piece of the address's path
// or query: more people see the excerpt than know these.
func (r *Receiver) excerpt(said []byte, header http.Header) string {
	hidden := r.secrets(header)
	shown := text.Readable(string(said), maxSearched)
	if len(said) > maxSearched {
		shown = shown[:max(0, len(shown)-cutPiece)]
	}
	shown = secret.RedactPieces(shown, hidden...)
	// People see it as plain text.
	if plain := text.Plain(shown); plain != shown && secret.RedactPieces(plain, hidden...) != plain {
		return notShown
	}
	return text.Clip(shown, maxExcerpt)
}

// secrets returns what must not be shown of a request with this header.
func (r *Receiver) secrets(header http.Header) []string {
	hidden := []string{r.URL.EscapedPath(), r.URL.RawQuery}
	if len(hidden[0]) < secret.MinPiece { // less than a piece is no secret; of credentials it is
		hidden[0] = ""
	}
	if len(hidden[1]) < secret.MinPiece {
		hidden[1] = ""
	}
	header = header.Clone()
	r.authorize(header)
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Webhook-Token"} {
		for _, value := range header.Values(name) {
			_, credentials, _ := strings.Cut(value, " ")
			user, password, _ := (&http.Request{Header: http.Header{"Authorization": {value}}}).BasicAuth()
			hidden = append(hidden, value, credentials, user, password)
			for pair := range strings.SplitSeq(value, ";") {
				if _, v, _ := strings.Cut(pair, "="); name == "Cookie" && len(v) >= minCookie {
					hidden = append(hidden, v)
				}
			}
		}
	}
	return text.Once(hidden)
}

// minCookie is how long the value of a cookie must be to be a secret: many are 0 or 1.
const minCookie = 4
