//go:build unix

package examples

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"usher/internal/testkit"
)

// Each copy is right in the end, by HTTP and by 'usher changes', although usher and the programs
// are killed again and again.
func TestCopy(t *testing.T) {
	t.Parallel()
	needs(t, "python3")
	binary, dir := testkit.Binary(t), t.TempDir()
	goProgram := testkit.Build(t, "usher/examples/copy-go")
	gate, port := testkit.FreeAddress(t), testkit.FreeAddress(t)
	env := append(os.Environ(), "USHER_WEBHOOK_INBOX=file:"+filepath.Join(dir, "inbox.db"), "USHER_WEBHOOK_LISTEN="+gate, "USHER_ENTITLEMENTS_LISTEN="+port,
		"USHER_ENTITLEMENTS_KEY="+theKey, "ENTITLEMENTS_KEY="+theKey, "USHER_ADMIN_LISTEN=off", "USHER_LOG_FORMAT=json")
	usher := func() *testkit.Usher {
		cmd := exec.Command(binary)
		cmd.Env = env
		return testkit.Start(t, cmd)
	}
	programs := map[string][]string{
		"python by HTTP":    {"python3", "copy-python/copy.py", "DB", "http://" + port},
		"python by command": {binary, "changes", "--cursor", filepath.Join(dir, "python.cursor"), "--limit", "3", "--follow", "--", "python3", "copy-python/copy.py", "DB"},
		"go by HTTP":        {goProgram, "DB", "http://" + port},
		"go by command":     {binary, "changes", "--cursor", filepath.Join(dir, "go.cursor"), "--limit", "3", "--follow", "--", goProgram, "DB"},
	}
	file := func(name string) string { return filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".db") }
	begin := func(name string) (end func()) {
		args := strings.Split(strings.ReplaceAll(strings.Join(programs[name], "\x00"), "DB", file(name)), "\x00")
		ctx, kill := context.WithCancel(context.Background())
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = env
		ended := make(chan struct{})
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { _ = cmd.Wait(); close(ended) }()
		return func() { kill(); <-ended }
	}
	running := make(map[string]func())
	for name := range programs {
		running[name] = begin(name)
	}
	t.Cleanup(func() {
		for _, end := range running {
			end()
		}
	})
	names := []string{"python by HTTP", "python by command", "go by HTTP", "go by command"}
	u := usher()
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
	for round := range 4 {
		for n := range 25 {
			send(round*100 + n)
			if n == 12 {
				name := names[rand.IntN(len(names))]
				running[name]()
				running[name] = begin(name)
			}
		}
		u.Kill()
		u = usher()
	}
	send(1000)
	for _, name := range names {
		var have map[string]string
		right := false
		testkit.Eventually(t, name+" is right", func() bool {
			have = copied(t, file(name))
			right = maps.Equal(have, truth)
			return right
		})
		if !right {
			t.Errorf("%s has %v, want %v", name, have, truth)
		}
	}
}

// copied is what a copy has.
func copied(t *testing.T, file string) map[string]string {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query(`SELECT t.platform || '/' || t.tenant, f.feature || ' ' || f."limit" FROM tenants t JOIN features f USING (platform, tenant)`)
	if err != nil {
		return nil // there are no tables yet
	}
	defer rows.Close()
	have := make(map[string]string)
	for rows.Next() {
		var tenant, feature string
		if err := rows.Scan(&tenant, &feature); err != nil {
			t.Fatal(err)
		}
		have[tenant] = feature
	}
	return have
}
