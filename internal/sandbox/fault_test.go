package sandbox

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestFaultAnswers(t *testing.T) {
	b := NewBilling(testClient())
	tok := getToken(t, b).AccessToken
	b.FailTokens(Fault{Status: 503, Body: "down", Header: http.Header{"Retry-After": {"7"}}, Times: 2})
	for range 2 {
		w := post(b, "/oauth/token", formType, fields().Encode())
		if w.Code != 503 || w.Body.String() != "down" || w.Header().Get("Retry-After") != "7" {
			t.Errorf("token fault: %d %q %v", w.Code, w.Body, w.Header())
		}
	}
	getToken(t, b) // two times only
	b.FailGraphQL(Fault{Body: `{"odd":1}`})
	if w := ask(b, tok, typename); w.Code != 200 || w.Body.String() != `{"odd":1}` || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		t.Errorf("GraphQL fault: %d %q %v", w.Code, w.Body, w.Header())
	}
	if ok, _ := b.Calls(); ok != 0 {
		t.Errorf("a fault's answer was counted as a call")
	}
	b.FailGraphQL(Fault{})
	wantAccess(t, b, tok, "")
	if n := b.TokenRequests(); n != 4 {
		t.Errorf("TokenRequests %d", n)
	}
}

func TestFaultHangUp(t *testing.T) {
	b := NewBilling(testClient())
	s := httptest.NewServer(b)
	defer s.Close()
	send := func() (string, error) {
		resp, err := s.Client().Post(s.URL+"/graphql", "application/json", strings.NewReader(typename))
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	b.FailGraphQL(Fault{HangUp: true})
	if body, err := send(); !errors.Is(err, io.EOF) {
		t.Errorf("hung up: %q %v", body, err)
	}
	b.FailGraphQL(Fault{HangUp: true, Status: 200, Body: "half"})
	if body, err := send(); body != "half" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("broken off: %q %v", body, err)
	}
}
