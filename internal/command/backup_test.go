package command

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/testkit/inboxtest"
)

// A backup is a new file for its user alone, whole or not at all.
func TestBackup(t *testing.T) {
	s := newInboxServer(t, "")
	dir := t.TempDir()
	file := filepath.Join(dir, "copy.db")
	if p := s.run(t, "backup", file); p.Code != 0 || !strings.HasPrefix(p.Stdout.String(), "saved ") {
		t.Fatalf("%d %s", p.Code, p.Stderr.String())
	}
	info, err := os.Stat(file)
	content, _ := os.ReadFile(file)
	if err != nil || info.Mode().Perm() != 0o600 || !strings.HasPrefix(string(content), "SQLite format 3\x00") {
		t.Errorf("%v, mode %o, %.20q", err, info.Mode(), content)
	}
	if p := s.run(t, "backup", file); p.Code != 1 || p.Stderr.String() != "usher: "+file+" exists: name a new file\n" {
		t.Errorf("%d %s", p.Code, p.Stderr.String())
	}
	if p := s.run(t, "backup"); p.Code != 2 {
		t.Errorf("without a file: %d %s", p.Code, p.Stderr.String())
	}
	for what, length := range map[string]string{"cut off": "1000", "without a length": ""} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			_, _ = w.Write([]byte("SQLite"))
			_ = http.NewResponseController(w).Flush()
		}))
		cut := &inboxServer{Box: (*inboxtest.Box)(nil), addr: strings.TrimPrefix(srv.URL, "http://")}
		p := cut.run(t, "backup", filepath.Join(dir, "other.db"))
		if p.Code != 1 || !strings.Contains(p.Stderr.String(), "the backup is not complete, and nothing was saved") {
			t.Errorf("%s: %d %s", what, p.Code, p.Stderr.String())
		}
		srv.Close()
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("left: %v, %v", all, err)
	}
}
