package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/testkit"
)

func envFile(t *testing.T, dir, name string, lines ...string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// usher gets its settings from files. A command that gets the same files finds that usher, even if it cannot
// read the secrets that the files name.
func TestEnvFile(t *testing.T) {
	dir, addr := t.TempDir(), testkit.FreeAddress(t)
	common := envFile(t, dir, "common.env", testkit.NewService(t).Environ("# the address of nobody", "USHER_ADMIN_LISTEN=127.0.0.1:1")...)
	own := envFile(t, dir, "own.env", `USHER_ADMIN_LISTEN="`+addr+`"`)
	u := start(t, nil, "--env-file", common, "--env-file="+own)
	testkit.Eventually(t, "it serves", func() bool { return strings.Contains(u.Stderr.String(), addr) })

	sealed := envFile(t, dir, "sealed.env", "USHER_CLIENT_SECRET_FILE=/run/credentials/none", "USHER_LOG_LEVEL=nonsense", "USHER_ADMIN_LISTEN="+addr)
	for _, args := range [][]string{{"healthcheck"}, {"inbox", "ls"}, {"entitlements", "acme"}} {
		p := start(t, []string{"USHER_ADMIN_LISTEN="}, append([]string{"--env-file", sealed}, args...)...)
		if <-p.Ended; p.Code == exitUsage || strings.Contains(p.Stderr.String(), "cannot reach") {
			t.Errorf("%s: %d %s", args, p.Code, p.Stderr.String())
		}
	}
	p := start(t, []string{"USHER_ADMIN_LISTEN=" + addr}, "--env-file", common, "healthcheck")
	if <-p.Ended; !strings.Contains(p.Stdout.String(), "ready") {
		t.Errorf("the environment does not win: %s", p.Stderr.String())
	}
}

func TestEnvFileMisused(t *testing.T) {
	dir := t.TempDir()
	bad := envFile(t, dir, "bad.env", "USHER_KEY=1", "t0psecret")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--env-file"}, "--env-file needs a file"},
		{[]string{"--env-file=", "version"}, "--env-file needs a file"},
		{[]string{"--env-file", dir + "/none", "version"}, "--env-file " + dir + "/none: no such file"},
		{[]string{"--env-file", bad, "inbox", "ls"}, "lines that are not NAME=VALUE, or whose quote does not end: 2"},
		{[]string{"--env-file", bad, "--env-file", dir + "/none"}, "/none: no such file"},
	} {
		p := start(t, nil, tt.args...)
		<-p.Ended
		if out := p.Stderr.String(); p.Code != exitUsage || !strings.Contains(out, tt.want) || strings.Contains(out, "t0psecret") {
			t.Errorf("%q: %d %s, want 2 and %s", tt.args, p.Code, out, tt.want)
		}
	}
}
