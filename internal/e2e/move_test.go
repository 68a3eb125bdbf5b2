//go:build unix

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// docs/operations.md says how to move from a file to PostgreSQL, and how to begin. Its commands, as they are printed there, do that:
// what waited is delivered once, what was refused is still there, and tenants from before usher are known.
func TestMovingAndDayOneAsPrinted(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the built usher")
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, moving, found := strings.Cut(string(doc), "**Moving from a file to PostgreSQL.**")
	moving, first, found2 := strings.Cut(moving, "**Day one.**")
	first, _, found3 := strings.Cut(first, "**The format.**")
	if !found || !found2 || !found3 {
		t.Fatal("docs/operations.md does not have these parts")
	}
	blocks := func(text string) (all []string) {
		for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		return all
	}
	move, begin := blocks(moving), blocks(first)
	if len(move) != 2 || len(begin) != 1 {
		t.Fatalf("%d and %d blocks of commands", len(move), len(begin))
	}
	dir := t.TempDir()
	if err := os.Symlink(testkit.Binary(t), filepath.Join(dir, "usher")); err != nil {
		t.Fatal(err)
	}
	types := func(p *testkit.Usher, lines string) string {
		t.Helper()
		c := exec.Command("sh", "-e", "-c", lines)
		c.Dir, c.Env = dir, []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "USHER_ADMIN_LISTEN=" + strings.TrimPrefix(p.URL(t, "admin"), "http://")}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s%s%v", lines, out, err)
		}
		return string(out)
	}
	rc := newReceiver(t, 503)
	serve := func(inbox string) *testkit.Usher {
		p := startProcess(t, gateAlone(rc.url, "USHER_WEBHOOK_INBOX="+inbox, "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0"))
		p.Ready(t)
		return p
	}
	from := serve("file:" + filepath.Join(dir, "inbox.db"))
	testkit.Post(t, hooks(t, from), testkit.Snapshot("acme", 5))
	testkit.Post(t, hooks(t, from), odd("other", 5))
	types(from, move[0])
	from.End()
	rc.set(200)
	tried := rc.count()
	to := serve(pgtest.Schema(t))
	types(to, move[1])
	testkit.Eventually(t, "delivered", func() bool { return rc.count() == tried+1 && strings.Contains(states(t, to), "delivered") })
	if all := refusedOf(t, to, "crm/other"); len(all) != 1 {
		t.Errorf("refused: %+v", all)
	}
	if err := os.WriteFile(filepath.Join(dir, "webhooks.jsonl"), []byte(testkit.Snapshot("old", 1)+"\n"+testkit.Snapshot("old", 2)+"\n"+testkit.Snapshot("acme", 6)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	types(to, begin[0])
	for tenant, limit := range map[string]string{"old": `"limit":2,`, "acme": `"limit":5,`} {
		if _, body := testkit.Get(t, to.URL(t, "entitlements")+"/v1/entitlements/"+tenant+"/users"); !strings.Contains(body, limit) {
			t.Errorf("%s: %s", tenant, body)
		}
	}
	if rc.count() != tried+1 {
		t.Errorf("%d deliveries", rc.count()-tried)
	}
}
