package delivery

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Of what a receiver says others get the beginning, if it can be read.
func TestExcerpt(t *testing.T) {
	for _, tt := range []struct {
		said, encoding string
		want           string
	}{
		{`{"reason":"<no> such plan"}`, "", `{"reason":"<no> such plan"}`},
		{strings.Repeat("é", 5000), "", strings.Repeat("é", maxExcerpt/2) + "…"},
		{"a\xffb", "", "a\uFFFDb"},
		{"\x1f\x8b", "gzip", ""},
	} {
		r := &Receiver{URL: new(url.URL), Timeout: time.Minute, Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			h := make(http.Header)
			if tt.encoding != "" {
				h.Set("Content-Encoding", tt.encoding)
			}
			return &http.Response{StatusCode: 400, Header: h, Body: io.NopCloser(strings.NewReader(tt.said))}, nil
		})}
		if got := r.Try(t.Context(), "id", make(http.Header), nil); got.Status != 400 || got.Accepted() || got.Excerpt != tt.want {
			t.Errorf("%.20q: got %+v, want %q", tt.said, got, tt.want)
		}
	}
}
