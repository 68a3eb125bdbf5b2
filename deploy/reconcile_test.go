//go:build unix

package deploy_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// What systemd would do with the unit of reconcile, done without it: its command line, with the shipped
// settings of both other units, the credentials, and the script that its comment installs; beside the gate of
// its unit. It fails when something differs.
func TestReconcileUnit(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		testkit.Missing(t, "python3 is not installed: the unit of reconcile is not tried")
	}
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer receiver.Close()
	gate := testkit.FreeAddress(t)
	box, err := sandbox.Open(sandbox.Config{Listen: "127.0.0.1:0", ReceiverListen: "off", Sender: sandbox.NewSender(1, "http://"+gate+"/webhooks/t0psecret-t0psecret")})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	env := gateEnvironment(t, t.TempDir(), gate, receiver.URL)
	u := testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int { return usher(ctx, env, stdout, stderr) })
	u.Ready(t)

	etc := t.TempDir()
	install := func(from string, edits ...string) {
		t.Helper()
		write(t, filepath.Join(etc, filepath.Base(from)), []byte(strings.NewReplacer(edits...).Replace(string(read(t, from)))), 0o755)
	}
	install("systemd/usher.env", "https://billing.example.com", box.URL, "my-client-id", sandbox.ClientID)
	install("systemd/gate.env", "127.0.0.1:9095", strings.TrimPrefix(u.URL(t, "admin"), "http://"))
	install("../examples/reconcile/tenants.py")
	write(t, filepath.Join(etc, "client-secret"), []byte(sandbox.ClientSecret), 0o600)
	write(t, filepath.Join(etc, "admin-token"), []byte("t0psecret-t0psecret"), 0o600)
	unit := string(read(t, "systemd/usher-reconcile.service"))
	run := func() (string, int) {
		t.Helper()
		line := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/usher (.*)$`).FindStringSubmatch(unit)[1]
		words := strings.Fields(strings.NewReplacer("/etc/usher/", etc+"/", "/usr/local/lib/usher/", etc+"/").Replace(line))
		cmd := exec.Command(testkit.Binary(t), words...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
		for _, m := range regexp.MustCompile(`(?m)^Environment=(.*)$`).FindAllStringSubmatch(unit, -1) {
			cmd.Env = append(cmd.Env, strings.ReplaceAll(m[1], "%d", etc))
		}
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	send := func(users int, lost bool) {
		t.Helper()
		resp, err := http.Post(box.URL+"/sandbox/send", "", strings.NewReader(fmt.Sprintf(`{"tenant":"acme","features":{"users":%d},"lost":%t}`, users, lost)))
		if _, body := testkit.Whole(t, resp, err); !lost && !strings.Contains(body, `"status":200`) {
			t.Fatal(body)
		}
	}
	send(5, false)
	if out, code := run(); code != 0 || !strings.Contains(out, "Nothing differs") {
		t.Errorf("nothing differs: %d\n%s", code, out)
	}
	send(6, true)
	if out, code := run(); code != 3 || !strings.Contains(out, "users 5 → 6") {
		t.Errorf("something differs: %d\n%s", code, out)
	}
	box.FailGraphQL(sandbox.Fault{Status: 500})
	if out, code := run(); code != 1 {
		t.Errorf("the service fails: %d\n%s", code, out)
	}
}
