package serve_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"usher/internal/command"
	"usher/internal/testkit"
)

var writeInbox = flag.Bool("write-inbox", false, "write the inboxes in testdata anew, with this version")

// fixture is an inbox as the release 0.1.0 has written it: two webhooks of the tenant "first"
// wait, one of "second" is parked, and what both may use is known. A change of the format that today's usher can't read shows
// here. Then it is a new format: see "Upgrades" in docs/operations.md, write the fixtures
// anew (go test ./internal/serve -run TestUpgrade -write-inbox), and say it in the changelog.
type fixture struct {
	name string
	open func(t *testing.T, dir string) (url string, close func()) // the inbox in a folder
}

var fixtures = []fixture{
	{"inbox-0.1.0-file", func(_ *testing.T, dir string) (string, func()) {
		return "file:" + filepath.Join(dir, "inbox.db"), func() {}
	}},
	{"inbox-0.1.0-nats", openServer},
}

func openServer(t *testing.T, dir string) (string, func()) {
	s, err := server.NewServer(&server.Options{ServerName: "n0", Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, SyncAlways: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the NATS server does not start")
	}
	return s.ClientURL() + "?replicas=1", func() { s.Shutdown(); s.WaitForShutdown() }
}

func TestUpgrade(t *testing.T) {
	t.Parallel()
	for _, f := range fixtures {
		t.Run(f.name, func(t *testing.T) {
			path := filepath.Join("testdata", f.name+".tar.gz")
			if *writeInbox {
				f.write(t, path)
			}
			dir := t.TempDir()
			unpack(t, path, dir)
			f.goOn(t, dir)
		})
	}
}

// goOn starts today's usher on the inbox: what waited is delivered in order, what was parked
// still is, and can be sent again; and what the tenants may use is answered as before.
func (f *fixture) goOn(t *testing.T, dir string) {
	receiver := new(upgradeReceiver)
	receiver.answer.Store("first", http.StatusOK)
	receiver.answer.Store("second", http.StatusOK)
	usher, done := f.start(t, dir, receiver)
	defer done()
	testkit.Eventually(t, "delivered", func() bool { return len(receiver.got()) >= 2 })
	if want := []string{upgradeBody("first", 1), upgradeBody("first", 2)}; !slices.Equal(receiver.got(), want) {
		t.Fatalf("delivered %q\nwant %q", receiver.got(), want)
	}
	for tenant, limit := range map[string]int{"first": 2, "second": 1} {
		status, answer := get(t, usher.URL(t, "entitlements")+"/v1/entitlements/"+tenant+"/users")
		if want := fmt.Sprintf(`"limit":%d`, limit); status != http.StatusOK || !strings.Contains(answer, want) {
			t.Errorf("%s may use %d %s, want %s", tenant, status, answer, want)
		}
	}
	admin := []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(usher.URL(t, "admin"), "http://")}
	code, parked := run(t, admin, "inbox", "ls", "--state", "parked")
	id, rest, _ := strings.Cut(strings.TrimSpace(parked), " ")
	if code != 0 || strings.Count(parked, "\n") != 1 || !strings.Contains(rest, "second") {
		t.Fatalf("parked (%d):\n%s", code, parked)
	}
	if code, out := run(t, admin, "inbox", "redeliver", id); code != 0 {
		t.Fatalf("redeliver %s: %d %s", id, code, out)
	}
	testkit.Eventually(t, "sent again", func() bool { return slices.Contains(receiver.got(), upgradeBody("second", 1)) })
}

// write makes the fixture.
func (f *fixture) write(t *testing.T, path string) {
	t.Helper()
	dir, receiver := t.TempDir(), new(upgradeReceiver)
	receiver.answer.Store("first", http.StatusServiceUnavailable)
	receiver.answer.Store("second", http.StatusUnprocessableEntity)
	usher, done := f.start(t, dir, receiver)
	for _, body := range []string{upgradeBody("first", 1), upgradeBody("first", 2), upgradeBody("second", 1)} {
		resp, err := http.Post(usher.URL(t, "webhooks")+"/webhooks", "application/json", strings.NewReader(body))
		if resp, text := whole(t, resp, err); resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
	}
	admin := []string{"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(usher.URL(t, "admin"), "http://")}
	testkit.Eventually(t, "tried and parked", func() bool {
		_, all := run(t, admin, "inbox", "ls")
		return strings.Contains(all, "parked") && slices.Contains(receiver.got(), upgradeBody("first", 1))
	})
	done()
	packFolder(t, dir, path)
}

// start runs usher on the inbox in dir. What it returns ends both.
func (f *fixture) start(t *testing.T, dir string, receiver http.Handler) (*testkit.Usher, func()) {
	t.Helper()
	srv := httptest.NewServer(receiver)
	t.Cleanup(srv.Close)
	url, closeInbox := f.open(t, dir)
	usher := start(t, []string{
		"USHER_WEBHOOK_INBOX=" + url, "USHER_WEBHOOK_FORWARD_URL=" + srv.URL, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0",
		"USHER_WEBHOOK_INBOX_MAX_AGE=876000h", // a fixture grows old
		"USHER_LOG_FORMAT=json",
	})
	usher.Ready(t)
	return usher, func() { usher.Stop(); <-usher.Ended; closeInbox() }
}

func run(t *testing.T, environ []string, args ...string) (int, string) {
	t.Helper()
	var out testkit.Output
	code := command.Main(t.Context(), command.Process{Args: args, Environ: environ, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out})
	return code, out.String()
}

func upgradeBody(tenant string, quantity int) string {
	return fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":%q,"platform":{"code":"app"}},"change":{"features":[{"code":"users","quantity":%d}],"subscriptions":[]}}}`, tenant, quantity)
}

// upgradeReceiver answers by tenant, and remembers what came.
type upgradeReceiver struct {
	answer sync.Map // tenant → status
	mu     sync.Mutex
	bodies []string // guarded by mu
}

func (r *upgradeReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	r.bodies = append(r.bodies, string(body))
	r.mu.Unlock()
	r.answer.Range(func(tenant, status any) bool {
		if strings.Contains(string(body), fmt.Sprintf(`"code":%q`, tenant)) {
			w.WriteHeader(status.(int))
			return false
		}
		return true
	})
}

func (r *upgradeReceiver) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.bodies)
}

func packFolder(t *testing.T, dir, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z, _ := gzip.NewWriterLevel(f, gzip.BestCompression)
	archive := tar.NewWriter(z)
	if err := errors.Join(archive.AddFS(os.DirFS(dir)), archive.Close(), z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func unpack(t *testing.T, path, dir string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.FileInfo().IsDir() {
			err = os.MkdirAll(to, 0o755)
		} else {
			var b []byte
			b, err = io.ReadAll(archive)
			err = errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, b, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
