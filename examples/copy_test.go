//go:build unix

package examples

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"usher/internal/testkit"
)

// The loop that docs/entitlements.md shows keeps a copy that is right in the end, although usher and the loop
// are killed again and again, a tenant is erased, and another inbox takes the place of the first.
func TestCopy(t *testing.T) {
	t.Parallel()
	needs(t, "curl")
	needs(t, "jq")
	binary, dir := testkit.Binary(t), t.TempDir()
	gate, port, admin := testkit.FreeAddress(t), testkit.FreeAddress(t), testkit.FreeAddress(t)
	_, loop, _ := strings.Cut(page(t, "../docs/entitlements.md"), "```sh\n[ -s copy.json ]")
	loop, _, _ = strings.Cut("[ -s copy.json ]"+loop, "```")
	loop = strings.NewReplacer("127.0.0.1:8070", port, "sleep 5", "sleep 0.1").Replace(loop)
	start := func(inbox string) *testkit.Usher {
		cmd := exec.Command(binary)
		cmd.Env = append(os.Environ(), "USHER_WEBHOOK_INBOX=file:"+filepath.Join(dir, inbox), "USHER_WEBHOOK_LISTEN="+gate,
			"USHER_ENTITLEMENTS_LISTEN="+port, "USHER_ADMIN_LISTEN="+admin, "USHER_LOG_FORMAT=json")
		return testkit.Start(t, cmd)
	}
	begin := func() (end func()) {
		ctx, kill := context.WithCancel(context.Background())
		cmd := exec.CommandContext(ctx, "sh", "-c", loop)
		cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // curl and jq, too
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		return func() { kill(); <-ended }
	}
	end := begin()
	t.Cleanup(func() { end() })
	truth := make(map[string]string)
	send := func(version int) {
		tenant := fmt.Sprint("t", rand.IntN(8))
		body := fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":%q,"platform":{"code":"eu"}},"change":{"features":[{"code":"users","quantity":%d}]}}}`, tenant, version)
		testkit.Eventually(t, "a webhook is taken in", func() bool { // its sender tries again
			resp, err := http.Post("http://"+gate+"/webhooks", "application/json", strings.NewReader(body))
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
			return resp.StatusCode == http.StatusOK
		})
		truth["eu/"+tenant] = fmt.Sprint("users ", version)
	}
	isRight := func() {
		t.Helper()
		var have map[string]string
		testkit.Eventually(t, "the copy is right", func() bool {
			have = copied(t, filepath.Join(dir, "copy.json"))
			return maps.Equal(have, truth)
		})
	}
	for round, inbox := range []string{"one.db", "one.db", "two.db", "two.db"} {
		if round == 2 {
			clear(truth)
		}
		u := start(inbox)
		for n := range 25 {
			send(round*100 + n)
			if n == 12 {
				end()
				end = begin()
			}
		}
		if round%2 == 1 {
			isRight()
			gone := slices.Sorted(maps.Keys(truth))[0]
			erase := exec.Command(binary, "inbox", "erase", "--yes", gone)
			erase.Env = append(os.Environ(), "USHER_ADMIN_LISTEN="+admin)
			if out, err := erase.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			delete(truth, gone)
			isRight()
		}
		u.Kill()
	}
}

// copied is what a copy has.
func copied(t *testing.T, file string) map[string]string {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil // there is none yet
	}
	var all struct {
		Tenants map[string]struct {
			Tenant, Platform string
			Features         []struct {
				Feature string
				Limit   int
			}
		}
	}
	if err := json.Unmarshal(content, &all); err != nil {
		t.Fatal(err)
	}
	have := make(map[string]string)
	for _, tenant := range all.Tenants {
		for _, f := range tenant.Features {
			have[tenant.Platform+"/"+tenant.Tenant] = fmt.Sprint(f.Feature, " ", f.Limit)
		}
	}
	return have
}
