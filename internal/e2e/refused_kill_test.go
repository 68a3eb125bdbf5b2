//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// odd is a webhook of the right sender that usher refuses: its quantity is no number.
func odd(tenant string, users int) string {
	return strings.Replace(testkit.Snapshot(tenant, users), fmt.Sprintf(`"quantity":%d`, users), fmt.Sprintf(`"quantity":"%d"`, users), 1)
}

// refusedOf are the refused webhooks of a tenant, as the API has them.
func refusedOf(t *testing.T, u *testkit.Usher, tenant string) (all []struct {
	ID, Tenant, State, Decision, Why, From string
	Status, Times                          int
	Changes                                []string
}) {
	t.Helper()
	_, body := testkit.Get(t, u.URL(t, "admin")+"/api/webhooks?state=refused&tenant="+url.QueryEscape(tenant))
	list := struct{ Webhooks any }{&all}
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return all
}

// Killed between the store of a refused webhook and its answer: it is there after the restart, and what its sender sends again is a
// copy.
func TestRefusedAndKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the built usher")
	}
	for name, prepare := range map[string]func(t *testing.T) (inbox string, stored func(tenant string) bool, latency func(time.Duration)){
		"file": func(t *testing.T) (string, func(string) bool, func(time.Duration)) {
			file := filepath.Join(t.TempDir(), "inbox.db")
			return "file:" + file, func(tenant string) bool {
				text, _ := os.ReadFile(file + "-wal")
				return bytes.Contains(text, []byte(tenant))
			}, func(time.Duration) {}
		},
		"PostgreSQL": func(t *testing.T) (string, func(string) bool, func(time.Duration)) {
			database := pgtest.Schema(t)
			address, err := url.Parse(database)
			if err != nil {
				t.Fatal(err)
			}
			wire := pgtest.Cut(t, address.Host)
			schema := address.Query().Get("schema")
			address.RawQuery = "sslmode=disable"
			conn, err := pgx.Connect(t.Context(), address.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close(t.Context()) })
			return wire.Through(database), func(tenant string) bool {
				n := 0
				_ = conn.QueryRow(t.Context(), "SELECT count(*) FROM "+schema+".content WHERE position($1::bytea IN body) > 0", []byte(tenant)).Scan(&n) // the table may not be there yet
				return n > 0
			}, wire.Latency
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inbox, stored, latency := prepare(t)
			environ := gateAlone(newReceiver(t, 200).url, "USHER_WEBHOOK_INBOX="+inbox)
			hit := 0
			for n := 1; n <= 10 && hit == 0; n++ { // the moment is short in a file
				tenant := fmt.Sprint("killed-", n)
				p := startProcess(t, environ)
				p.Ready(t)
				gate, answer := hooks(t, p), make(chan reply, 1)
				latency(40 * time.Millisecond) // for as long usher does not know that the database has it
				go func() {
					answer <- post(strings.TrimSuffix(strings.TrimPrefix(gate, "http://"), "/webhooks"), "/webhooks", odd(tenant, 5))
				}()
				for !stored(tenant) && len(answer) == 0 { // nothing else says so
					time.Sleep(10 * time.Microsecond)
				}
				p.Kill()
				latency(0)
				if got := <-answer; got.status == 0 {
					hit++
				} else if got.status != 422 {
					t.Fatalf("%d %s", got.status, got.body)
				}
				p = startProcess(t, environ)
				p.Ready(t)
				if all := refusedOf(t, p, tenant); len(all) != 1 || all[0].Times != 1 {
					t.Fatalf("after the restart: %+v", all)
				}
				if status, _, body := testkit.Post(t, hooks(t, p), odd(tenant, 5)); status != 422 {
					t.Fatalf("sent again: %d %s", status, body)
				}
				if all := refusedOf(t, p, tenant); len(all) != 1 || all[0].Times != 2 {
					t.Fatalf("sent again: %+v", all)
				}
				p.Kill()
			}
			t.Logf("killed before the answer: %d", hit)
		})
	}
}

// Killed during an import: nothing of it is in, and the whole file can be imported again.
func TestImportKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the built usher")
	}
	onBothInboxes(t, func(t *testing.T, inbox string) {
		environ := gateAlone(newReceiver(t, 200).url, inbox, "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0")
		p := startProcess(t, environ)
		p.Ready(t)
		const most = 2000
		var file strings.Builder
		for n := 1; n <= most; n++ {
			file.WriteString(testkit.Snapshot(fmt.Sprint("t", n), n) + "\n")
		}
		half := file.String()[:file.Len()/2]
		c := exec.Command(testkit.Binary(t), "inbox", "import", "-")
		c.Env = []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(p.URL(t, "admin"), "http://")}
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, half); err != nil {
			t.Fatal(err)
		}
		// Intake waits for the import, so one that is not answered says that it has begun.
		impatient := *client
		impatient.Timeout = 300 * time.Millisecond
		testkit.Eventually(t, "intake waits", func() bool {
			resp, err := impatient.Post(hooks(t, p), "application/json", strings.NewReader(testkit.Snapshot("sent", int(time.Now().UnixMicro()%1e6))))
			if err == nil {
				resp.Body.Close()
			}
			return err != nil
		})
		p.Kill()
		in.Close()
		if c.Wait() == nil {
			t.Error("the import says that it was done")
		}
		p = startProcess(t, environ)
		p.Ready(t)
		if status, body := testkit.Get(t, p.URL(t, "entitlements")+"/v1/entitlements/t1"); status != 404 {
			t.Errorf("a part of the import is in: %d %s", status, body)
		}
		if got := figures(t, p)["usher_entitlement_tenants"]; got > "1" {
			t.Errorf("%s tenants are known", got)
		}
		whole := filepath.Join(t.TempDir(), "whole.jsonl")
		if err := os.WriteFile(whole, []byte(file.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out := inboxOf(t, p, "import", whole); code != 0 || !strings.Contains(out, fmt.Sprintf("imported %d webhooks and %d snapshots", most, most)) {
			t.Errorf("again: %d %s", code, out)
		}
		if status, body := testkit.Get(t, p.URL(t, "entitlements")+"/v1/entitlements/t1/users"); status != 200 || !strings.Contains(body, `"limit":1,`) {
			t.Errorf("%d %s", status, body)
		}
	})
}
