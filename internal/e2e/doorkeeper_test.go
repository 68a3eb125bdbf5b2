//go:build unix

package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"usher/internal/testkit"
)

// doorkeeper is a billing service whose OAuth nobody here wrote: see doorkeeper/config.ru.
type doorkeeper struct{ url string }

func startDoorkeeper(t *testing.T, settings ...string) *doorkeeper {
	t.Helper()
	if exec.Command("ruby", "-e", `%w[rails doorkeeper sqlite3 jwt puma].each { |name| gem name }`).Run() != nil {
		testkit.Missing(t, "ruby-doorkeeper, ruby-rails, ruby-sqlite3, ruby-jwt or puma is not installed: usher is not tried with them")
	}
	address := testkit.FreeAddress(t)
	cmd := exec.Command("puma", "--quiet", "--bind", "tcp://"+address, "--threads", "8:8", "--environment", "production", "doorkeeper/config.ru")
	cmd.Env = append(os.Environ(), append(settings, "DATABASE_URL=sqlite3:"+filepath.Join(t.TempDir(), "tokens.db")+"?pool=8&timeout=5000")...)
	testkit.Start(t, cmd)
	d := &doorkeeper{"http://" + address}
	testkit.Eventually(t, "Rails answers", func() bool {
		resp, err := http.Get(d.url + "/issued")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == 200
	})
	return d
}

func (d *doorkeeper) environ(extra ...string) []string {
	return append([]string{
		"USHER_BASE_URL=" + d.url, "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=t0psecret", "USHER_LOG_FORMAT=json",
		"USHER_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
	}, extra...)
}

// issued is how many tokens it has issued.
func (d *doorkeeper) issued(t *testing.T) (n int) {
	t.Helper()
	_, answer := testkit.Get(t, d.url+"/issued")
	if _, err := fmt.Sscanf(answer, `{"tokens":%d}`, &n); err != nil {
		t.Fatal(err, answer)
	}
	return n
}

// end ends the life of all tokens: "expire" or "revoke".
func (d *doorkeeper) end(t *testing.T, how string) {
	t.Helper()
	if status, _, answer := testkit.Post(t, d.url+"/"+how, "{}"); status != 200 || answer == `{"tokens":0}` {
		t.Fatalf("%s: %d %s", how, status, answer)
	}
}

// callers call through ushers without end. Each call has a name of its own. It has to get its own answer,
// which says how often the service acted on it.
type callers struct {
	t       *testing.T
	calls   atomic.Int64
	stop    atomic.Bool
	running sync.WaitGroup
	mu      sync.Mutex
	answers map[string]int // by status and code; guarded by mu
}

func call(t *testing.T, ushers ...*usher) *callers {
	c := &callers{t: t, answers: make(map[string]int)}
	for _, u := range ushers {
		for range 8 / len(ushers) {
			c.running.Go(func() {
				for !c.stop.Load() {
					c.call(u)
				}
			})
		}
	}
	t.Cleanup(func() { c.stop.Store(true); c.running.Wait() })
	return c
}

func (c *callers) call(u *usher) {
	name := fmt.Sprint("call ", c.calls.Add(1))
	r := post(u.local, "/graphql", fmt.Sprintf(`{"query":"query($filter: String) { accounts(filter: $filter) { id name } }","variables":{"filter":%q}}`, name))
	if r.err != nil {
		c.t.Errorf("%s: %v", name, r.err)
	}
	if want := fmt.Sprintf(`"accounts":[{"id":1,"name":%q}]`, name); r.status == 200 && !strings.Contains(r.body, want) {
		c.t.Errorf("%s: %s", name, r.body)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[strings.TrimSpace(fmt.Sprint(r.status, " ", r.code()))]++
}

// seen is a copy of the answers until now.
func (c *callers) seen() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.answers)
}

// more waits until this answer has come so often again.
func (c *callers) more(times int, answer string) {
	c.t.Helper()
	enough := c.seen()[answer] + times
	testkit.Eventually(c.t, answer, func() bool { return c.seen()[answer] >= enough })
}

// only ends the calls, and holds that no others but these answers came.
func (c *callers) only(answers ...string) {
	c.t.Helper()
	c.stop.Store(true)
	c.running.Wait()
	for answer, times := range c.answers {
		if !slices.Contains(answers, answer) {
			c.t.Errorf("%d times %s", times, answer)
		}
	}
	c.t.Logf("answers: %v", c.answers)
}

// usher in front of Rails with Doorkeeper, under load.
func TestDoorkeeper(t *testing.T) {
	if !*long {
		t.Skip("Rails and tokens that expire take a minute: with -long")
	}
	const enough = 50 // calls between two events

	t.Run("three lives of a token", func(t *testing.T) {
		d := startDoorkeeper(t, "LIFETIME=8")
		c := call(t, start(t, d.environ()).ready(t))
		testkit.Eventually(t, "three renewals", func() bool { return d.issued(t) >= 4 })
		c.more(enough, "200")
		c.only("200")
		t.Logf("%d tokens", d.issued(t))
	})

	t.Run("the service ends tokens early", func(t *testing.T) {
		d := startDoorkeeper(t)
		u := start(t, d.environ()).ready(t)
		c := call(t, u)
		for _, how := range []string{"expire", "expire", "expire", "revoke"} {
			c.more(enough, "200")
			d.end(t, how)
		}
		c.more(enough, "200")
		c.only("200")
		if n := d.issued(t); n != 5 {
			t.Errorf("%d tokens, want 5: one for each end", n)
		}
	})

	t.Run("a wrong secret", func(t *testing.T) {
		d := startDoorkeeper(t)
		secret := filepath.Join(t.TempDir(), "secret")
		write := func(content string) {
			if err := os.WriteFile(secret, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("t0psecret")
		u := start(t, d.environ("USHER_CLIENT_SECRET=", "USHER_CLIENT_SECRET_FILE="+secret)).ready(t)
		c := call(t, u)
		write("wr0ng")
		testkit.Eventually(t, "usher tries it", func() bool { return strings.Contains(u.Stderr.String(), "invalid_client") })
		c.more(enough, "200") // with the token that it has
		d.end(t, "revoke")
		c.more(enough, "502 TOKEN_REJECTED")
		if log := u.Stderr.String(); strings.Contains(log, "wr0ng") || strings.Contains(log, "t0psecret") {
			t.Errorf("the log shows a secret: %s", log)
		}
		write("t0psecret")
		c.more(enough, "200")
		c.only("200", "502 TOKEN_REJECTED")
	})

	t.Run("what usher check says", func(t *testing.T) {
		d, revoking := startDoorkeeper(t), startDoorkeeper(t, "OPTION=revoke_previous_client_credentials_token")
		for _, tc := range []struct {
			service *doorkeeper
			setting string
			code    int
			want    string
		}{
			{d, "USHER_SCOPE=", 0, "a second token did not revoke the first"},
			{d, "USHER_CLIENT_SECRET=wr0ng", 1, "invalid_client"},
			{d, "USHER_SCOPE=admin", 1, "invalid_scope"},
			{revoking, "USHER_SCOPE=", 0, "each new token revokes the one before"},
		} {
			p := startProcess(t, tc.service.environ("USHER_WEBHOOK_FORWARD_URL=", "USHER_WEBHOOK_LISTEN=", tc.setting), "check")
			if <-p.Ended; p.Code != tc.code || !strings.Contains(p.Stdout.String(), tc.want) {
				t.Errorf("%s: %d, want %d with %s:\n%s", tc.setting, p.Code, tc.code, tc.want, p.Stdout.String())
			}
		}
	})

	// Doorkeeper hands out the same token again, with what is left of its life.
	t.Run("reuse_access_token", func(t *testing.T) {
		d := startDoorkeeper(t, "LIFETIME=8", "OPTION=reuse_access_token")
		c := call(t, start(t, d.environ()).ready(t))
		testkit.Eventually(t, "three lives", func() bool { return d.issued(t) >= 4 })
		c.more(enough, "200")
		c.only("200")
		t.Logf("%d tokens", d.issued(t))
	})

	// Each usher's new token revokes the other's. What neither can help is the service's own 401.
	t.Run("revoke_previous_client_credentials_token", func(t *testing.T) {
		d := startDoorkeeper(t, "OPTION=revoke_previous_client_credentials_token")
		var ushers []*usher
		for range 2 { // one after the other: of two requests at once, Doorkeeper revokes neither token
			ushers = append(ushers, start(t, d.environ()).ready(t))
		}
		c := call(t, ushers...)
		c.more(1000, "200")
		c.only("200", "401")
		t.Logf("%d tokens", d.issued(t))
		for _, u := range ushers {
			if !strings.Contains(u.Stderr.String(), "another program uses the same API client") {
				t.Error("the log does not say why")
			}
		}
	})
}
