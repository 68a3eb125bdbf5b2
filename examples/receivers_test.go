package examples

import (
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

const forwardSigningKey = "whsec_aW4gdGhlIGV4YW1wbGVzLCBub3QgZm9yIHlvdQ=="

func TestReceivers(t *testing.T) {
	t.Parallel()
	script := func(program ...string) func(*testing.T, string) *exec.Cmd {
		return func(t *testing.T, addr string) *exec.Cmd {
			needs(t, program[0])
			return exec.Command(program[0], strings.Split(strings.ReplaceAll(strings.Join(program[1:], " "), "ADDR", addr), " ")...)
		}
	}
	for _, tc := range []struct {
		name    string
		program func(t *testing.T, addr string) *exec.Cmd
		read    func(t *testing.T, dir string) []tenantState
	}{
		{"Go", func(t *testing.T, _ string) *exec.Cmd {
			if testing.Short() {
				t.Skip("short: it is about built programs, in which nothing looks for races")
			}
			return exec.Command(testkit.Build(t, "usher/examples/receiver-go"))
		}, fromFiles},
		{"PHP", script("php", "-S", "ADDR", "receiver-php/receiver.php"), fromFiles},
		{"Python", script("python3", "receiver-python/receiver.py"), fromSQLite},
		{"Node", script("node", "receiver-node/receiver.mjs"), fromFiles},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tryReceiver(t, tc.program, tc.read)
		})
	}
}

// tryReceiver runs a receiver behind usher: it ends up with what the subscriptions
// say, and rejects what usher did not sign. And it passes the rehearsal.
func tryReceiver(t *testing.T, program func(t *testing.T, addr string) *exec.Cmd, read func(t *testing.T, dir string) []tenantState) {
	dir, addr := t.TempDir(), testkit.FreeAddress(t)
	cmd := program(t, addr)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "WEBHOOK_SECRET=" + forwardSigningKey, "STATE_DIR=" + dir, "LISTEN=" + addr}
	receiver := testkit.Start(t, cmd)
	testkit.Eventually(t, "listening: the receiver", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})

	target := "http://" + addr + "/provisioning"
	gate := start(t, testkit.NewService(t).Environ("USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_FORWARD_URL="+target, "USHER_WEBHOOK_FORWARD_SIGNING_KEY="+forwardSigningKey)).URL(t, "webhooks")
	sender := sandbox.NewSender(7, gate+"/webhooks")
	var sent [][]byte
	want := make(map[string]map[string]*int)
	for range 40 {
		entry := sender.Change(t.Context())
		if entry.Decision != "forwarded" {
			t.Fatalf("%d %s", entry.Status, entry.Answer)
		}
		sent = append(sent, entry.Body)
		tenant := tenantOf(t, entry.Body)
		want[tenant.Platform+"/"+tenant.Code] = tenant.Features
	}
	wantState(t, read(t, dir), want)

	// What follows comes past usher. An old snapshot, so that it would show.
	body := sent[0]
	now := time.Now().Unix()
	good := signature(forwardSigningKey, "a", now, body)
	for _, tc := range []struct {
		name      string
		timestamp int64
		signature string
		body      []byte
	}{
		{"not signed", now, "", body},
		{"of another key", now, signature("whsec_"+base64.StdEncoding.EncodeToString([]byte("forged")), "a", now, body), body},
		{"of another time", now + 1, good, body},
		{"of another body", now, good, append([]byte(" "), body...)},
		{"too old", now - 301, signature(forwardSigningKey, "a", now-301, body), body},
		{"from the future", now + 400, signature(forwardSigningKey, "a", now+400, body), body},
		{"of another version", now, strings.Replace(good, "v1,", "v2,", 1), body},
	} {
		if status := post(t, target, tc.timestamp, tc.signature, tc.body); status != http.StatusUnauthorized {
			t.Errorf("%s: %d, want 401", tc.name, status)
		}
	}
	wantState(t, read(t, dir), want)

	// Several signatures, as while keys are rotated: one that fits is enough. And once
	// more: the same snapshot twice is the same state.
	old := tenantOf(t, body)
	want[old.Platform+"/"+old.Code] = old.Features
	for range 2 {
		if status := post(t, target, now, "v1,bm90IHRoaXMgb25l v2,x "+good, body); status/100 != 2 {
			t.Errorf("one of several fits: %d", status)
		}
		wantState(t, read(t, dir), want)
	}

	// What was sent before that comes too late.
	other := []byte(strings.ReplaceAll(string(body), `"quantity"`, `"amount"`))
	if status := post(t, target, now-1, signature(forwardSigningKey, "a", now-1, other), other); status != http.StatusServiceUnavailable {
		t.Errorf("late: %d, want 503", status)
	}
	wantState(t, read(t, dir), want)

	p := start(t, nil, "sandbox", "rehearse", target, "--signing-key", forwardSigningKey)
	<-p.Ended
	played := 0
	for line := range strings.Lines(p.Stdout.String()) {
		// A busy machine may stop everything for a second.
		if strings.HasPrefix(line, "held ") || strings.HasPrefix(line, "FAILED") && strings.HasSuffix(line, ", want at most 1s\n") {
			played++
		}
	}
	if played != 11 {
		t.Errorf("the rehearsal:\n%s", p.Stdout.String())
	}
	if features := len(tenantNamed(t, read(t, dir), "-d").Features); features < 1000 {
		t.Errorf("%d features of a large payload", features)
	}
	if f := tenantNamed(t, read(t, dir), "-b").Features; len(f) != 0 {
		t.Errorf("canceled, but may use %v", f)
	}

	for _, s := range read(t, dir) {
		if s.Code == sandbox.RefusedTenant {
			t.Error("it took the question at a checkout for a change")
		}
	}

	// Ctrl-C ends it, and is no error.
	before := len(receiver.Stderr.String()) // on a slow machine the rehearsal has hung up on it
	receiver.End()
	if trace := regexp.MustCompile(`(?s)Traceback .*|Fatal error.*|Uncaught .*|goroutine .*`).FindString(receiver.Stderr.String()[before:]); trace != "" {
		t.Errorf("after Ctrl-C: %s", trace)
	}
}

// tenantNamed is the one whose code ends so.
func tenantNamed(t *testing.T, states []tenantState, end string) tenantState {
	t.Helper()
	for _, s := range states {
		if strings.HasSuffix(s.Code, end) {
			return s
		}
	}
	t.Errorf("no tenant ends in %s", end)
	return tenantState{}
}

// tenantState is what the receivers keep.
type tenantState struct {
	Platform, Code string
	Features       map[string]*int
}

// tenantOf is what they should make of a webhook.
func tenantOf(t *testing.T, body []byte) tenantState {
	t.Helper()
	var webhook struct {
		Payload struct {
			Tenant struct {
				Code     string
				Platform struct{ Code string }
			}
			Change struct {
				Features []sandbox.Feature
			}
		}
	}
	if err := json.Unmarshal(body, &webhook); err != nil {
		t.Fatal(err)
	}
	p := webhook.Payload
	s := tenantState{p.Tenant.Platform.Code, p.Tenant.Code, make(map[string]*int)}
	for _, f := range p.Change.Features {
		s.Features[f.Code] = f.Quantity
	}
	return s
}

// fromFiles reads one file for each tenant.
func fromFiles(t *testing.T, dir string) (states []tenantState) {
	t.Helper()
	files, err := filepath.Glob(dir + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var s tenantState
		if err := json.Unmarshal(content, &s); err != nil {
			t.Fatalf("%v in %s", err, content)
		}
		states = append(states, s)
	}
	return states
}

// fromSQLite reads the tables of the receiver in Python.
func fromSQLite(t *testing.T, dir string) (states []tenantState) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(dir, "tenants.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var all string
	const query = `SELECT json_group_array(json_object('platform', platform, 'code', code, 'features',
		(SELECT json_group_object(f.code, quantity) FROM features f WHERE f.platform = t.platform AND tenant = t.code))) FROM tenants t`
	err = db.QueryRow(query).Scan(&all)
	if err == nil {
		err = json.Unmarshal([]byte(all), &states)
	}
	if err != nil {
		t.Fatalf("%v in %s", err, all)
	}
	return states
}

func wantState(t *testing.T, got []tenantState, want map[string]map[string]*int) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d tenants, want %d", len(got), len(want))
	}
	for _, s := range got {
		features, known := want[s.Platform+"/"+s.Code]
		same := func(a, b *int) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
		if !known || !maps.EqualFunc(s.Features, features, same) {
			t.Errorf("%s/%s is known as %v, want %v", s.Platform, s.Code, s.Features, features)
		}
	}
}

func signature(secret, id string, timestamp int64, body []byte) string {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.%s", id, timestamp, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// post sends a webhook with the id "a" past usher.
func post(t *testing.T, url string, timestamp int64, signature string, body []byte) int {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Webhook-Id", "a")
	req.Header.Set("Webhook-Timestamp", fmt.Sprint(timestamp))
	req.Header.Set("Webhook-Signature", signature)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}
