package serve_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// Each setting of the gate reaches the gate. What the gate does with it is tested in its own package.
func TestGateSettings(t *testing.T) {
	t.Parallel()
	schema := filepath.Join(t.TempDir(), "schema.json")
	if err := os.WriteFile(schema, []byte(`{"type":"object","required":["mine"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	body := snapshot("acme", 5)
	mac := hmac.New(sha256.New, []byte("k"))
	mac.Write([]byte(body))
	for _, tc := range []struct {
		name     string
		settings []string
		body     string
		header   []string
		status   int
		decision string
	}{
		{"signed", []string{"USHER_WEBHOOK_SIGNING_KEY=k", "USHER_WEBHOOK_SIGNATURE_HEADER=X-Sig", "USHER_WEBHOOK_SIGNATURE_ALGORITHM=sha256"}, body, []string{"X-Sig", "sha256=" + hex.EncodeToString(mac.Sum(nil))}, 200, "forwarded"},
		{"not signed", []string{"USHER_WEBHOOK_SIGNING_KEY=k"}, body, nil, 401, "rejected"},
		{"other type", nil, `{"type":"Other"}`, nil, 422, "rejected"},
		{"any type", []string{"USHER_WEBHOOK_TYPES=*"}, `{"type":"Other"}`, nil, 200, "forwarded"},
		{"a question", []string{"USHER_WEBHOOK_SYNC_TYPES=Ask"}, `{"type":"Ask"}`, nil, 200, "forwarded"},
		{"own schema refuses", []string{"USHER_WEBHOOK_SCHEMA_FILE=" + schema}, body, nil, 422, "rejected"},
		{"size", []string{"USHER_WEBHOOK_MAX_BODY=10"}, body, nil, 413, "rejected"},
		{"path", []string{"USHER_WEBHOOK_PATH=/other"}, body, nil, 404, "rejected"},
		{"a copy", []string{"USHER_WEBHOOK_DEDUP_SIZE=2"}, body, nil, 200, "duplicate"},
		{"a copy of one of too many", []string{"USHER_WEBHOOK_DEDUP_SIZE=1"}, body, nil, 200, "forwarded"},
		{"a copy that comes too late", []string{"USHER_WEBHOOK_DEDUP_WINDOW=1ns"}, body, nil, 200, "forwarded"},
		{"no copies", []string{"USHER_WEBHOOK_DEDUP_WINDOW=0"}, body, nil, 200, "forwarded"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := startGate(t, tc.settings...)
			if strings.Contains(tc.name, "cop") {
				post(t, g.url, body)
				post(t, g.url, snapshot("other", 5))
			}
			status, decision, answer := post(t, g.url, tc.body, tc.header...)
			if status != tc.status || decision != tc.decision {
				t.Errorf("%d %s %s", status, decision, answer)
			}
		})
	}
}

// Bodies up to USHER_REPLAY_LIMIT are sent again after a 401; of others the caller gets it.
func TestReplayLimit(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := start(t, s.Environ("USHER_REPLAY_LIMIT=20KiB"))
	p.Ready(t)
	for size, want := range map[int]int{20 << 10: 200, 20<<10 + 1: 401} {
		s.Revoke()
		body := query + strings.Repeat(" ", size-len(query))
		if status, _, answer := post(t, p.URL(t, "main")+"/graphql", body); status != want {
			t.Errorf("%d bytes: %d %s, want %d", size, status, answer, want)
		}
	}
}

// usher calls a service over HTTP/1.1 even if it prefers HTTP/2.
func TestTLSUpstream(t *testing.T) {
	t.Parallel()
	var proto string
	b := sandbox.NewBilling(sandbox.Client{ID: "app", Secret: "t0psecret", Scopes: []string{"standard:read", "standard:write"}})
	b.OnCall = func(r *http.Request, _ []byte) { proto = r.Proto }
	srv := httptest.NewUnstartedServer(b)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	p := start(t, (&testkit.Service{Billing: b, URL: srv.URL}).Environ())
	p.Ready(t)
	wantCall(t, p.URL(t, "main"), 200, "accounts")
	if proto != "HTTP/1.1" {
		t.Errorf("the service was called over %s", proto)
	}
}

// A port may have the name of one of usher's own listeners, such as webhooks.
func TestPortNamedAsTheGate(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := start(t, s.Environ("USHER_PORTS_0_NAME=webhooks", "USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_1_NAME=admin", "USHER_PORTS_1_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_LISTEN=127.0.0.1:0"))
	_, body := get(t, p.URL(t, "admin")+"/api/status")
	var state struct {
		Ports []struct{ Name, Address string }
		Gate  struct{ Address string }
	}
	if err := json.Unmarshal([]byte(body), &state); err != nil || len(state.Ports) != 3 {
		t.Fatalf("%v: %s", err, body)
	}
	if port := state.Ports[1]; port.Name != "webhooks" || state.Gate.Address == port.Address+"/webhooks" {
		t.Errorf("the gate's address is that of the port: %s", body)
	}
}

func TestOwnSecretFileIsFollowed(t *testing.T) {
	t.Parallel()
	s := newService(t)
	path := filepath.Join(t.TempDir(), "own")
	if err := os.WriteFile(path, []byte("t0psecret"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, s.Environ("USHER_PORTS_0_LISTEN=127.0.0.1:0", "USHER_PORTS_0_CLIENT_SECRET_FILE="+path))
	p.Ready(t)
	s.EditClient("app", func(c *sandbox.Client) { c.Secret = "r0tated" }) // the main port's secret is of yesterday now
	s.Revoke()
	if err := os.WriteFile(path, []byte("r0tated"), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the new secret is in use", func() bool {
		resp, _ := call(t, p.URL(t, "0"))
		return resp.StatusCode == 200
	})
	if resp, _ := call(t, p.URL(t, "main")); resp.StatusCode != 502 {
		t.Errorf("the main port: %d", resp.StatusCode)
	}
}
