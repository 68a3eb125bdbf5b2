//go:build unix

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/testkit/pgtest"
)

// TestReconcileMany compares 100,000 tenants of which 50 differ, while webhooks come, with the long
// form; else 250, of which 10 do. It tells how long that takes, how much memory it needs, and how
// long a webhook takes meanwhile. What is judged is memory: less than 100 MB more in usher, and less
// than 100 MB in the command.
func TestReconcileMany(t *testing.T) {
	tenants, differ := pick(250, 100_000), pick(10, 50)
	for _, engine := range []string{"file", "database"} {
		t.Run(engine, func(t *testing.T) {
			w, dir := newWorld(t), t.TempDir()
			inbox := "file:" + filepath.Join(dir, "inbox.db")
			if engine == "database" {
				inbox = pgtest.Schema(t)
			}
			environ := w.environ("USHER_WEBHOOK_INBOX=" + inbox)
			u := startBuilt(t, environ).ready(t)
			environ = append(environ, "USHER_ADMIN_LISTEN="+u.admin)
			known, lines := filepath.Join(dir, "known"), filepath.Join(dir, "lines")
			writeTenants(t, known, tenants, func(n int) string {
				return payload(fmt.Sprint("tenant-", n), fmt.Sprint("users=", n), "sso", "api=5")
			})
			writeTenants(t, lines, tenants, func(n int) string {
				if n%(tenants/differ) == 0 {
					return payload(fmt.Sprint("tenant-", n), "users=7", "sso")
				}
				return payload(fmt.Sprint("tenant-", n), fmt.Sprint("users=", n), "sso", "api=5")
			})
			if p := startProcess(t, environ, "reconcile", "--apply", "--no-deliver", "--max", "0", "--yes", "--", "cat", known); true {
				if <-p.Ended; p.Code != 0 {
					t.Fatal(p.Stderr.String())
				}
			}
			if *long { // what was stored is finished, and more than is kept: usher deletes it in steps
				time.Sleep(40 * time.Second)
			}
			quiet := webhooksTake(u, t, pick(0, 4*time.Second))
			before := statusMB(u.Process.Pid, "VmRSS:")
			var peak, command int
			var meanwhile []time.Duration
			began := time.Now()
			p := startProcess(t, environ, "reconcile", "--partial", "--apply", "--yes", "--", "cat", lines)
			var watch sync.WaitGroup
			watch.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-p.Ended:
						return
					default:
					}
					peak, command = max(peak, statusMB(u.Process.Pid, "VmRSS:")), max(command, statusMB(p.Process.Pid, "VmHWM:"))
					sent := time.Now()
					if got := u.send(fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":%s}`, payload(fmt.Sprint("other-", n%50), fmt.Sprint("n=", n)))); got.status != 200 {
						t.Errorf("%d %s", got.status, got.body)
					}
					meanwhile = append(meanwhile, time.Since(sent))
					time.Sleep(10 * time.Millisecond)
				}
			})
			<-p.Ended
			took := time.Since(began)
			watch.Wait()
			// The others come while it runs, and are changed or unknown to the list.
			if want := fmt.Sprintf("%d tenants taken in", differ); p.Code != 0 || !strings.Contains(p.Stdout.String(), want) {
				t.Errorf("%d\n%s%s", p.Code, p.Stdout.String(), p.Stderr.String())
			}
			if more := peak - before; more > 100 || command > 100 {
				t.Errorf("usher has %d MB more, the command %d MB", more, command)
			}
			t.Logf("%d tenants in %.1f s; usher %d MB, %d before; the command %d MB", tenants, took.Seconds(), peak, before, command)
			t.Logf("a webhook takes %s; before: %s", spread(meanwhile), spread(quiet))
		})
	}
}

// webhooksTake is how long webhooks take that come in a while.
func webhooksTake(u *usher, t *testing.T, during time.Duration) (all []time.Duration) {
	for began := time.Now(); len(all) == 0 || time.Since(began) < during; {
		sent := time.Now()
		body := payload(fmt.Sprint("other-", len(all)%50), fmt.Sprint("q=", len(all)))
		if got := u.send(`{"type":"TenantProvisioningChange","payload":` + body + `}`); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		all = append(all, time.Since(sent))
		time.Sleep(10 * time.Millisecond)
	}
	return all
}

func spread(all []time.Duration) string {
	all = slices.Sorted(slices.Values(all))
	return fmt.Sprintf("%v (median), %v (99 of 100), %v at most, of %d", all[len(all)/2], all[len(all)*99/100], all[len(all)-1], len(all))
}

func writeTenants(t *testing.T, path string, n int, line func(int) string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := bufio.NewWriter(f)
	for i := range n {
		fmt.Fprintln(out, line(i))
	}
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
}
