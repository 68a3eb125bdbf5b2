package receiver

import (
	"net/http"
	"net/url"
	"strings"

	"usher/internal/secret"
	"usher/internal/text"
)

const (
	maxSearched = 4 << 10 // how much of an answer is searched for secrets
	maxExcerpt  = 1 << 10 // how much of it people see
	// cutPiece is how much at the end of what is searched may be the beginning of a secret, which is not found.
	cutPiece = 256
	// minPart is how long a part of the address must be to be a secret. What is shorter is a word.
	minPart = 8
)

// excerpt returns the beginning of what the receiver said to a request with this header, on one line. A receiver
// may repeat the request, and more people see the excerpt than know its credentials or the receiver's address.
func (r *Receiver) excerpt(said []byte, header http.Header) string {
	shown := text.Readable(string(said), maxSearched)
	if len(said) > maxSearched {
		shown = shown[:max(0, len(shown)-cutPiece)]
	}
	secrets := append(r.hidden(header), secret.Words(r.Secrets)...)
	shown = secret.Hide(shown, secrets...)
	for i, one := range secrets {
		secrets[i] = withoutSpace(one)
	}
	if joined := withoutSpace(shown); secret.Hide(joined, secrets...) != joined {
		return "(not shown: it repeats a secret)" // over more than one line
	}
	return text.Clip(shown, maxExcerpt)
}

func withoutSpace(s string) string { return strings.Join(strings.Fields(s), "") }

// hidden returns what must not be shown of a request with this header.
func (r *Receiver) hidden(header http.Header) (all []string) {
	for _, part := range strings.FieldsFunc(r.URL.EscapedPath()+"?"+r.URL.RawQuery, separates) {
		decoded, _ := url.PathUnescape(part)
		for _, piece := range append(strings.FieldsFunc(decoded, separates), part, decoded) {
			if len(piece) >= minPart {
				all = append(all, piece)
			}
		}
	}
	header = header.Clone()
	r.authorize(header, nil)
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Webhook-Token"} {
		for _, value := range header.Values(name) {
			_, credentials, _ := strings.Cut(value, " ")
			user, password, _ := (&http.Request{Header: http.Header{"Authorization": {value}}}).BasicAuth()
			if password != "" { // else the user's name may be the secret
				user = ""
			}
			all = append(all, value, credentials, user, password)
			for pair := range strings.SplitSeq(value, ";") {
				if _, v, _ := strings.Cut(pair, "="); name == "Cookie" {
					all = append(all, v)
				}
			}
		}
	}
	return all
}

func separates(c rune) bool { return strings.ContainsRune("/?&=", c) }
