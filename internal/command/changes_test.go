//go:build unix

package command

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/testkit"
)

// pages is an entitlements port with these answers, one after the other: a page, or a status. After
// the last one it ends ctx.
func pages(t *testing.T, answers ...string) (at string, asked *[]string, ctx context.Context) {
	asked = new([]string)
	ctx, cancel := context.WithCancel(t.Context())
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.URL.RawQuery+" "+r.Header.Get("X-Usher-Key"))
		if len(*asked) > len(answers) {
			cancel()
			w.WriteHeader(500)
			return
		}
		a := answers[len(*asked)-1]
		if status, body, ok := strings.Cut(a, "|"); ok {
			code := 0
			fmt.Sscan(status, &code)
			w.WriteHeader(code)
			a = body
		}
		fmt.Fprint(w, a)
	}))
	t.Cleanup(s.Close)
	return s.URL, asked, ctx
}

func aPage(cursor string, more bool, tenants ...string) string {
	for i, tenant := range tenants {
		tenants[i] = `{"tenant":"` + tenant + `"}`
	}
	return fmt.Sprintf(`{"changes":[%s],"cursor":%q,"more":%t}`, strings.Join(tenants, ","), cursor, more)
}

func runChanges(t *testing.T, ctx context.Context, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr strings.Builder
	code = Main(ctx, Process{Args: append([]string{"changes"}, args...), Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr,
		Environ: []string{"USHER_ENTITLEMENTS_KEY=first,second", "USHER_ADMIN_TOKEN=top-secret", "PATH=" + os.Getenv("PATH"), "OUT=" + t.TempDir()}})
	return code, stdout.String(), stderr.String()
}

// One line for each tenant, and two around all of them; the next call goes on where this one
// ended, also within the pass.
func TestChangesCommand(t *testing.T) {
	at, asked, ctx := pages(t, aPage("c1", true, "a", "b"), "503|", aPage("c2", true), aPage("c3", false, "c"), aPage("c4", false, "a"), aPage("c4", false),
		"410|", aPage("d1", false), "410|", aPage("e1", true), "410|", "410|", aPage("f1", false))
	file := filepath.Join(t.TempDir(), "cursor")
	for n, want := range []struct {
		code      int
		out, file string
	}{
		{1, "{\"all\":\"begin\"}\n{\"tenant\":\"a\"}\n{\"tenant\":\"b\"}\n", `{"cursor":"c1","all":true}`},
		{0, "{\"tenant\":\"c\"}\n{\"all\":\"end\"}\n", `{"cursor":"c3","all":false}`},
		{0, "{\"tenant\":\"a\"}\n", `{"cursor":"c4","all":false}`},
		{0, "", `{"cursor":"c4","all":false}`},
		{0, "{\"all\":\"begin\"}\n{\"all\":\"end\"}\n", `{"cursor":"d1","all":false}`},
		// it does not know its own cursor: there may be two inboxes at the address
		{1, "{\"all\":\"begin\"}\n", `{"cursor":"e1","all":true}`},
		{0, "{\"all\":\"begin\"}\n{\"all\":\"end\"}\n", `{"cursor":"f1","all":false}`}, // the next one begins again
	} {
		code, out, errs := runChanges(t, ctx, "--at", at, "--cursor", file, "--limit", "2")
		stored, err := os.ReadFile(file)
		info, _ := os.Stat(file)
		if err != nil || code != want.code || out != want.out || string(stored) != want.file+"\n" || info.Mode() != 0o600 {
			t.Errorf("run %d: %d, %q, file %q (%v), %v; want %+v. It says: %s", n, code, out, stored, info.Mode(), err, want, errs)
		}
	}
	want := []string{"limit=2&wait=0 first", "after=c1&limit=2&wait=0 first", "after=c1&limit=2&wait=0 first", "after=c2&limit=2&wait=0 first", "after=c3&limit=2&wait=0 first",
		"after=c4&limit=2&wait=0 first", "after=c4&limit=2&wait=0 first", "limit=2&wait=0 first",
		"after=d1&limit=2&wait=0 first", "limit=2&wait=0 first", "after=e1&limit=2&wait=0 first",
		"after=e1&limit=2&wait=0 first", "limit=2&wait=0 first"}
	if strings.Join(*asked, "\n") != strings.Join(want, "\n") {
		t.Errorf("asked\n%s\nwant\n%s", strings.Join(*asked, "\n"), strings.Join(want, "\n"))
	}
	if others, _ := filepath.Glob(file + "*"); len(others) != 2 { // and its lock
		t.Errorf("it left %v", others)
	}
}

// The command gets page by page, and no secret. A page counts only when it has ended with 0.
func TestChangesRunsACommand(t *testing.T) {
	at, asked, ctx := pages(t, aPage("c1", true, "a"), aPage("c1", true, "a"), aPage("c2", false, "b"), aPage("c3", false), aPage("c4", false, "c"))
	file := filepath.Join(t.TempDir(), "cursor")
	script := `cat >> "$OUT/lines"; echo "secrets: $USHER_ADMIN_TOKEN$USHER_ENTITLEMENTS_KEY" >> "$OUT/lines"; [ -e "$OUT/again" ] || { : > "$OUT/again"; exit 3; }; cat "$OUT/lines"; : > "$OUT/lines"`
	code, out, errs := runChanges(t, ctx, "--at", at, "--cursor", file, "--follow", "--", "sh", "-c", script)
	want := "{\"all\":\"begin\"}\n{\"tenant\":\"a\"}\nsecrets: \n{\"all\":\"begin\"}\n{\"tenant\":\"a\"}\nsecrets: \n{\"tenant\":\"b\"}\n{\"all\":\"end\"}\nsecrets: \n{\"tenant\":\"c\"}\nsecrets: \n"
	stored, _ := os.ReadFile(file)
	if code != 0 || out != want || string(stored) != `{"cursor":"c4","all":false}`+"\n" {
		t.Errorf("%d, %q, file %q\nwant %q", code, out, stored, want)
	}
	if !strings.Contains(errs, "usher: sh ended with 3. Trying again in 1s.\n") {
		t.Errorf("it says %q", errs)
	}
	if last := (*asked)[len(*asked)-1]; last != "after=c4&limit=100&wait=50 first" {
		t.Errorf("asked %q in the end", last)
	}
	at, _, ctx = pages(t, aPage("c1", false, "a"))
	file += "2"
	code, _, errs = runChanges(t, ctx, "--at", at, "--cursor", file, "--", "sh", "-c", "exit 7")
	if _, err := os.Stat(file); code != 1 || err == nil || !strings.Contains(errs, "usher: sh ended with 7\n") {
		t.Errorf("%d, %v: %s", code, err, errs)
	}
	at, _, ctx = pages(t, aPage("c1", false, strings.Repeat("x", 1<<20)))
	if code, _, errs = runChanges(t, ctx, "--at", at, "--", "true"); code != 0 {
		t.Errorf("a command that reads nothing: %d, %s", code, errs)
	}
}

// A command that a killed 'usher changes' has left may still write what is old by then. The next one waits for its end.
func TestChangesWaitsForALeftCommand(t *testing.T) {
	binary, dir := testkit.Binary(t), t.TempDir()
	at, _, ctx := pages(t, aPage("c1", false, "old"), aPage("c2", false, "new"))
	run := func(script string) *testkit.Usher {
		cmd := exec.CommandContext(ctx, binary, "changes", "--at", at, "--cursor", filepath.Join(dir, "cursor"), "--follow", "--", "sh", "-c", script)
		cmd.Env = append(os.Environ(), "DIR="+dir)
		return testkit.Start(t, cmd)
	}
	has := func(name string) bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil }
	killed := run(`exec >/dev/null 2>&1; : > "$DIR/begun"; until [ -e "$DIR/go" ]; do sleep 0.01; done; cat >> "$DIR/copy"; : > "$DIR/left"`)
	testkit.Eventually(t, "the command has begun", func() bool { return has("begun") })
	killed.Kill()
	next := run(`cat >> "$DIR/copy"; : > "$DIR/done"`)
	testkit.Eventually(t, "it waits", func() bool { return strings.Contains(next.Stderr.String(), "Trying again in 1s") || has("done") })
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "both commands have ended", func() bool { return has("left") && has("done") })
	if copied, err := os.ReadFile(filepath.Join(dir, "copy")); err != nil || !strings.HasSuffix(string(copied), "{\"tenant\":\"new\"}\n{\"all\":\"end\"}\n") {
		t.Errorf("%v, the copy is\n%s\nIt says: %s", err, copied, next.Stderr.String())
	}
}

// What waiting does not end, ends the command, also one that follows.
func TestChangesCommandFails(t *testing.T) {
	damaged := filepath.Join(t.TempDir(), "damaged")
	if err := os.WriteFile(damaged, []byte("c1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at, _, ctx := pages(t, `401|{"error":{"code":"KEY_REQUIRED","message":"The key is wrong."}}`, "404|nothing", "{}")
	for _, tc := range []struct {
		code int
		says string
		args []string
	}{
		{1, " answered 401: The key is wrong\n", []string{"--follow", "--at", at}},
		{1, " answered 404: is that usher?\n", []string{"--follow", "--at", at}},
		{1, " is not usher, or another version of it\n", []string{"--follow", "--at", at}},
		{1, "Delete the file to begin with all tenants\n", []string{"--follow", "--at", at, "--cursor", damaged}},
		{1, "cannot reach usher at http://127.0.0.1:1: ", []string{"--at", "http://127.0.0.1:1"}},
		{2, "set USHER_ENTITLEMENTS_LISTEN, or write --at URL", nil},
		{2, "--limit must be a whole number from 1 to 1000", []string{"--limit", "0"}},
		{2, "changes has no flag --cursr", []string{"--cursr", "x"}},
		{2, "write -- before the command", []string{"./update-table"}},
		{2, "--at must be", []string{"--at", "127.0.0.1:8070"}},
	} {
		code, out, errs := runChanges(t, ctx, tc.args...)
		if code != tc.code || out != "" || !strings.Contains(errs, tc.says) {
			t.Errorf("%q: %d, %q, %s", tc.args, code, out, errs)
		}
	}
}
