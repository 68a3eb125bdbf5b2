//go:build linux

package deploy_test

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// The final stage of the Dockerfile, built from a binary of this tree and run: as the
// user that it names, against a billing service whose certificate only the image's
// own roots know, with an inbox, a time zone and the image's own health check.
func TestImage(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds an image: not in short mode")
	}
	b := newBuildah(t)
	service := httptest.NewTLSServer(sandbox.NewBilling(sandbox.Client{ID: "app", Secret: "t0psecret", Scopes: []string{"standard:read", "standard:write"}}))
	defer service.Close()
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: service.Certificate().Raw})
	b.must(t, "bud", "--isolation", "chroot", "--format", "docker", "--build-context", "build="+stageFolder(t, roots),
		"--build-arg", "VERSION=v9.9.9", "--build-arg", "COMMIT=abcdef", "--tag", "usher", "..")

	image := b.inspect(t)
	tryConfig(t, image)

	container := strings.TrimSpace(b.must(t, "from", "--pull-never", "localhost/usher"))
	settings := []string{
		"TZ=Asia/Tokyo", "USHER_BASE_URL=" + service.URL, "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=t0psecret",
		"USHER_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=" + testkit.FreeAddress(t), "USHER_WEBHOOK_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_INBOX=file:/var/lib/usher/inbox.db",
	}
	healthy := func() bool {
		return b.inContainer(container, settings, image.Healthcheck.Test[1:]...).Run() == nil
	}
	if healthy() {
		t.Error("healthy before it was started")
	}
	usher, log := b.inContainer(container, settings, image.Entrypoint...), new(testkit.Output)
	usher.Stdout, usher.Stderr = log, log
	usher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := usher.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-usher.Process.Pid, syscall.SIGKILL)
		_ = usher.Wait()
		if t.Failed() {
			t.Log(log)
		}
	})
	testkit.Eventually(t, "healthy", healthy)
	tryFiles(t, strings.TrimSpace(b.must(t, "mount", container)))
	if err := syscall.Kill(ushersPID(t, usher.Process.Pid), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := usher.Wait(); err != nil || !strings.Contains(log.String(), "shutting down") {
		t.Errorf("ended with %v", err)
	}
	if !strings.Contains(log.String(), "+09:00") {
		t.Error("the image knows no time zones: with TZ=Asia/Tokyo the log has other times")
	}
}

func tryConfig(t *testing.T, image imageConfig) {
	t.Helper()
	if image.User != "65532:65532" || !slices.Equal(image.Entrypoint, []string{"/usher"}) {
		t.Errorf("user %q, entry point %q", image.User, image.Entrypoint)
	}
	for label, want := range map[string]string{"title": "usher", "version": "v9.9.9", "revision": "abcdef"} {
		if got := image.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s: %q, want %q", label, got, want)
		}
	}
	if !slices.Equal(image.Healthcheck.Test, []string{"CMD", "/usher", "healthcheck"}) { // CMD: without a shell
		t.Fatalf("health check %q", image.Healthcheck.Test)
	}
}

// tryFiles looks at the file system of a container in which usher runs.
func tryFiles(t *testing.T, root string) {
	t.Helper()
	if info, err := os.Stat(filepath.Join(root, "tmp")); err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
		t.Errorf("/tmp: %v %v", info, err)
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(filepath.Join(root, "var/lib/usher/inbox.db"), &stat); err != nil || stat.Uid != 65532 {
		t.Errorf("inbox.db: owner %d, %v", stat.Uid, err)
	}
}

// stageFolder makes what the stage "build" leaves, without a compiler's image.
func stageFolder(t *testing.T, roots []byte) string {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{"state", "image/tmp", "image/etc/ssl/certs"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "image/tmp"), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "image/etc/ssl/certs/ca-certificates.crt"), roots, 0o644); err != nil {
		t.Fatal(err)
	}
	// "go run" keeps what it has linked in Go's cache.
	build := exec.Command("go", "run", "-trimpath", "-tags", "timetzdata", "-ldflags", "-s -w", "-exec", "cp", "usher", filepath.Join(dir, "image/usher"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// buildah is one with a store of its own.
type buildah struct{ store []string }

// newBuildah skips the test where there is none that can work: it needs root's
// rights, or something close to them.
func newBuildah(t *testing.T) *buildah {
	t.Helper()
	path, err := exec.LookPath("buildah")
	if err != nil {
		t.Skip("buildah is not installed: the image is not tried")
	}
	dir, err := os.MkdirTemp("", "usher-image-")
	if err != nil {
		t.Fatal(err)
	}
	b := &buildah{[]string{path, "--root", dir + "/root", "--runroot", dir + "/run", "--storage-driver", "vfs"}}
	t.Cleanup(func() {
		_ = b.command("umount", "--all").Run()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if out, err := b.command("from", "scratch").CombinedOutput(); err != nil {
		t.Skipf("buildah can't work here, the image is not tried: %v: %s", err, out)
	}
	return b
}

func (b *buildah) command(args ...string) *exec.Cmd {
	return exec.Command(b.store[0], append(b.store[1:len(b.store):len(b.store)], args...)...)
}

func (b *buildah) must(t *testing.T, args ...string) string {
	t.Helper()
	var complaints bytes.Buffer
	cmd := b.command(args...)
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("buildah %s: %v: %s%s", args[0], err, out, complaints.String())
	}
	return string(out)
}

func (b *buildah) inContainer(container string, env []string, command ...string) *exec.Cmd {
	args := []string{"run", "--isolation", "chroot"}
	for _, kv := range env {
		args = append(args, "--env", kv)
	}
	return b.command(slices.Concat(args, []string{container, "--"}, command)...)
}

type imageConfig struct {
	User        string
	Entrypoint  []string
	Labels      map[string]string
	Healthcheck struct{ Test []string }
}

func (b *buildah) inspect(t *testing.T) imageConfig {
	t.Helper()
	var answer struct{ Docker struct{ Config imageConfig } }
	if err := json.Unmarshal([]byte(b.must(t, "inspect", "--type", "image", "localhost/usher")), &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Docker.Config
}

// ushersPID finds usher itself among the processes that buildah started it with: a
// signal to buildah would not reach it.
func ushersPID(t *testing.T, group int) int {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		name, rest, ok := strings.Cut(string(stat), ") ") // pid (name) state parent group …
		if fields := strings.Fields(rest); err != nil || !ok || len(fields) < 3 || fields[2] != strconv.Itoa(group) || !strings.HasSuffix(name, "(usher") {
			continue
		}
		var pid int
		if _, err := fmt.Sscan(name, &pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	t.Fatal("usher is not among the processes")
	return 0
}
