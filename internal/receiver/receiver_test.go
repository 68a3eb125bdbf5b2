package receiver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/signature"
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
		{" two\r\n\tlines\x1b[2J ", "", "two   lines[2J"},
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

// What may no longer be sent, or not to its end, does not arrive; internal/wire tests how often
// a fence is asked.
func TestFenced(t *testing.T) {
	var arrived atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			arrived.Add(1)
		}
	}))
	defer server.Close()
	r := &Receiver{Timeout: time.Minute, Transport: NewTransport(1)}
	r.URL, _ = url.Parse(server.URL)
	defer NewSet(r).CloseIdleConnections()
	for n, step := range []struct {
		size, looks int // how often it may
		arrives     bool
	}{
		{2, 0, false},
		{2, 1, true},
		{2, 1, true}, // on the connection that is there
		{1 << 20, 1, false},
		{1 << 20, 1000, true},
	} {
		arrived.Store(0)
		looks := 0
		ctx := Fenced(t.Context(), func() bool { looks++; return looks <= step.looks })
		a := r.Try(ctx, "id", make(http.Header), make([]byte, step.size))
		if got := arrived.Load() == 1; got != step.arrives || a.Accepted() != step.arrives || !a.Accepted() && !errors.Is(a.Err, errFenced) {
			t.Errorf("step %d: arrived %v, %+v", n, got, a)
		}
	}
}

func TestSet(t *testing.T) {
	main, crm, docs := &Receiver{Name: Main}, &Receiver{Platforms: []string{"crm", "mail"}}, &Receiver{Platforms: []string{"docs"}}
	for _, tc := range []struct {
		set      *Set
		platform string
		want     *Receiver
	}{
		{NewSet(main, crm, docs), "crm", crm},
		{NewSet(main, crm, docs), "mail", crm},
		{NewSet(main, crm, docs), "docs", docs},
		{NewSet(main, crm, docs), "Docs", main}, // letter by letter
		{NewSet(main, crm, docs), "", main},
		{NewSet(crm, docs), "mail", crm},
		{NewSet(crm, docs), "shop", nil},
		{NewSet(crm, docs), "", nil},
		{NewSet(), "crm", nil},
		{nil, "crm", nil},
	} {
		if got := tc.set.For(tc.platform); got != tc.want {
			t.Errorf("%d receivers, platform %q: %+v", len(tc.set.All()), tc.platform, got)
		}
	}
}

// Each try is counted once. A question that its sender gave up says nothing about the receiver.
func TestTried(t *testing.T) {
	var results []string
	r := &Receiver{URL: new(url.URL), Timeout: time.Minute, Tried: func(result string, _ int, _ time.Duration) { results = append(results, result) }}
	for _, status := range []int{200, 403, 500, 0} {
		r.Transport = roundTrip(func(*http.Request) (*http.Response, error) {
			if status == 0 {
				return nil, context.DeadlineExceeded
			}
			return &http.Response{StatusCode: status, Header: make(http.Header), Body: http.NoBody}, nil
		})
		r.Try(t.Context(), "id", make(http.Header), nil)
		r.Ask(t.Context(), "id", make(http.Header), nil)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	r.Ask(ended, "id", make(http.Header), nil)
	if got, want := strings.Join(results, " "), "ok ok status ok status status timeout timeout"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// People read the error of a try in lists and on pages: it is not Go's.
func TestTooSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Receiver{URL: new(url.URL), Timeout: 10 * time.Second, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}
		if got := r.Try(t.Context(), "id", make(http.Header), nil); !got.TimedOut() || got.Err.Error() != "no answer within 10s" {
			t.Error(got.Err)
		}
	})
}

// A try is unanswered until its answer has ended.
func TestUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body, written := io.Pipe()
		r := &Receiver{URL: new(url.URL), Timeout: time.Minute, Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second)
			return &http.Response{StatusCode: 200, Body: body}, nil
		})}
		began := time.Now()
		go r.Try(t.Context(), "id", http.Header{}, nil)
		time.Sleep(3 * time.Second)
		if since := r.Unanswered(); !since.Equal(began) {
			t.Errorf("unanswered since %v, want %v", since, began)
		}
		written.Close()
		synctest.Wait()
		if since := r.Unanswered(); !since.IsZero() {
			t.Errorf("answered, but unanswered since %v", since)
		}
	})
}

// Each try carries today's first token. What the service has signed arrives as it was; what usher has made is signed.
func TestServiceCredentials(t *testing.T) {
	sha1, _ := signature.ByName("sha1")
	token, body := "t0ken-one,t0ken-two", []byte(`{"a":1}`)
	var sent http.Header
	r := &Receiver{URL: new(url.URL), Timeout: time.Minute, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		sent = r.Header
		return &http.Response{StatusCode: 400, Header: make(http.Header), Body: io.NopCloser(strings.NewReader("Bearer " + token))}, nil
	})}
	r.Service = Credentials{
		Tokens: func() string { return token }, SigningKeys: func() string { return "key, other" },
		SignatureHeader: "x-sig", HMAC: sha1,
	}
	for _, step := range []struct{ token, signature, bearer string }{
		{"t0ken-one,t0ken-two", "", "Bearer t0ken-one"},
		{" t0ken-new , t0ken-one", "the service's", "Bearer t0ken-new"},
	} {
		token = step.token
		stored := http.Header{"Authorization": {"Bearer of yesterday"}}
		want := sha1.Sign("key", body)
		if step.signature != "" {
			stored.Set("X-Sig", step.signature)
			want = step.signature
		}
		got := r.Try(t.Context(), "id", stored, body)
		if !slices.Equal(sent["Authorization"], []string{step.bearer}) || !slices.Equal(sent["X-Sig"], []string{want}) {
			t.Errorf("%q: %v", step.token, sent)
		}
		if stored.Get("Authorization") != "Bearer of yesterday" || strings.Contains(got.Excerpt, strings.TrimPrefix(step.bearer, "Bearer ")) {
			t.Errorf("%q is kept in %v, or shown in %q", step.token, stored, got.Excerpt)
		}
	}
	r.URL.User = url.UserPassword("u", "p")
	if r.Try(t.Context(), "id", make(http.Header), body); sent.Get("Authorization") != "Basic dTpw" {
		t.Errorf("an address with a password: %v", sent)
	}
}
