package testkit

import (
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"usher/internal/sandbox"
)

// Query is a call that every billing service answers.
const Query = `{"query":"{ accounts(limit: 1) { id name } }"}`

// Service is a billing service for an usher to use.
type Service struct {
	*sandbox.Billing
	URL string
}

func NewService(t testing.TB) *Service {
	t.Helper()
	b := sandbox.NewBilling(sandbox.Client{
		ID:     "app",
		Secret: "t0psecret",
		Scopes: []string{"standard:read", "standard:write"},
	})
	srv := httptest.NewServer(b)
	t.Cleanup(srv.Close)
	return &Service{b, srv.URL}
}

// Environ is the least that an usher needs to use s; its listeners take free ports.
func (s *Service) Environ(extra ...string) []string {
	return append([]string{
		"USHER_BASE_URL=" + s.URL, "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=t0psecret",
		"USHER_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_LEVEL=debug", "USHER_LOG_FORMAT=json",
	}, extra...)
}

// Snapshot is a webhook that gives a tenant so many users.
func Snapshot(tenant string, users int) string {
	return fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{`+
		`"tenant":{"id":%d,"code":%q,"name":"T","platform":{"id":1,"code":"crm","name":"CRM"}},`+
		`"change":{"features":[{"code":"users","name":"Users","quantity":%d}],"subscriptions":[]}}}`, crc32.ChecksumIEEE([]byte(tenant)), tenant, users)
}

// Wrong is what an overview says of now. Below that it says what is over, in the same words.
func Wrong(overview string) string {
	now, _, _ := strings.Cut(overview, "What is over")
	return now
}

func Get(t testing.TB, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	resp, body := Whole(t, resp, err)
	return resp.StatusCode, body
}

// Post sends a webhook, with further headers as names and values.
func Post(t testing.TB, url, body string, header ...string) (status int, decision, answer string) {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	resp, answer = Whole(t, resp, err)
	return resp.StatusCode, resp.Header.Get("Usher-Decision"), answer
}

// Call sends Query to a local port.
func Call(t testing.TB, url string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Post(url+"/graphql", "application/json", strings.NewReader(Query))
	return Whole(t, resp, err)
}

// WantCall is Call, which has to come to a status and to an answer with this part.
func WantCall(t testing.TB, url string, status int, part string) *http.Response {
	t.Helper()
	resp, body := Call(t, url)
	if resp.StatusCode != status || !strings.Contains(body, part) {
		t.Fatalf("%d %s, want %d with %s", resp.StatusCode, body, status, part)
	}
	return resp
}

// Whole reads an answer, which has to come whole.
func Whole(t testing.TB, resp *http.Response, err error) (*http.Response, string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}
