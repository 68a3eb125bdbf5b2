package e2e

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// Go reads SSL_CERT_FILE from the process itself. It works in a file of settings, too, as it does in
// systemd's EnvironmentFile=.
func TestTrustedCAInAFileOfSettings(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewTLSServer(http.NotFoundHandler())
	defer receiver.Close()
	dir := t.TempDir()
	ca, env := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "gate.env")
	for path, content := range map[string]string{
		ca:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: receiver.Certificate().Raw})),
		env: "USHER_WEBHOOK_FORWARD_URL=" + receiver.URL + "\nSSL_CERT_FILE=" + ca + "\n",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := startProcess(t, nil, "--env-file", env, "check")
	if <-p.Ended; p.Code != 0 {
		t.Errorf("%d %s%s", p.Code, p.Stdout.String(), p.Stderr.String())
	}
}
