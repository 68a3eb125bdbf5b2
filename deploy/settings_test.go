package deploy_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"usher/internal/settings"
	"usher/internal/testkit"
)

// Each deployment, as it stands, is one that usher starts with: every variable is
// known and holds what it should.
func TestDeploymentsAreAccepted(t *testing.T) {
	environments := make(map[string][]string)
	for unit, file := range map[string]string{"systemd/usher.service": "systemd/usher.env", "systemd/usher-gate.service": "systemd/gate.env"} {
		environments[unit] = unitEnvironment(t, unit, file)
	}
	rendered, err := filepath.Glob("helm/testdata/*.yaml")
	if err != nil || len(rendered) == 0 {
		t.Fatalf("%q: %v", rendered, err)
	}
	for _, file := range append(rendered, "compose.yaml", "compose.cluster.yaml", "kubernetes/sidecar.yaml", "kubernetes/gateway.yaml", "kubernetes/job.yaml", "kubernetes/reconcile.yaml") {
		all := yamlEnvironments(t, file)
		if len(all) == 0 {
			t.Errorf("%s has no settings", file)
		}
		for i, env := range all {
			environments[fmt.Sprint(file, " ", i)] = env
		}
	}
	for name, env := range environments {
		t.Run(name, func(t *testing.T) {
			if len(env) < 4 {
				t.Fatalf("only %q was found", env)
			}
			s, err := settings.Read(withFiles(t, env))
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Unknown) > 0 {
				t.Errorf("unknown: %q", s.Unknown)
			}
		})
	}
}

// yamlEnvironments finds the environments with usher's variables in a file: maps, as Compose has them, or
// lists of names and values, as Kubernetes has them.
func yamlEnvironments(t *testing.T, file string) (all [][]string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var walk func(node any)
	walk = func(node any) {
		var env []string
		switch node := node.(type) {
		case []any:
			for _, child := range node {
				walk(child)
				entry, _ := child.(map[string]any)
				name, _ := entry["name"].(string)
				if !strings.HasPrefix(name, "USHER_") {
					continue
				}
				value, ok := entry["value"].(string)
				switch {
				case ok:
				case name == "USHER_WEBHOOK_INBOX": // from a Secret, as an operator for PostgreSQL makes it
					value = "postgresql://usher:t0psecret@db-rw.postgres:5432/usher"
				default:
					value = "t0psecret-of-a-Secret"
				}
				env = append(env, name+"="+value)
			}
		case map[string]any:
			for name, child := range node {
				walk(child)
				if value, ok := child.(string); ok && strings.HasPrefix(name, "USHER_") {
					env = append(env, name+"="+value)
				}
			}
		}
		if len(env) > 0 {
			all = append(all, env)
		}
	}
	for documents := yaml.NewDecoder(f); ; {
		var document any
		if err := documents.Decode(&document); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		walk(document)
	}
}

// unitEnvironment is what a unit's usher reads: its file of settings, and what the unit itself
// sets, which wins.
func unitEnvironment(t *testing.T, unit, file string) []string {
	t.Helper()
	content, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	var env []string
	for line := range strings.Lines(string(content)) {
		if kv, ok := strings.CutPrefix(strings.TrimSpace(line), "Environment="); ok {
			env = append(env, kv)
		}
	}
	if start := "\nExecStart=/usr/local/bin/usher --env-file /etc/usher/" + filepath.Base(file) + "\n"; !strings.Contains(string(content), start) {
		t.Errorf("%s does not start usher with %s", unit, file)
	}
	if env, err = settings.WithFiles(env, file); err != nil {
		t.Fatal(err)
	}
	return env
}

// withFiles puts a file of the test in the place of each that is mounted elsewhere.
func withFiles(t *testing.T, env []string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("whsec_YSBrZXkgb2YgdGhlIHRlc3Q=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, path+"-read", []byte("t0psecret-of-those-who-look\n"), 0o600)
	certificate, _ := testkit.Certificate(t, "db.example.com")
	env = slices.Clone(env)
	for i, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); strings.HasSuffix(name, "_FILE") {
			env[i] = name + "=" + path
			if name == "USHER_ADMIN_READ_TOKEN_FILE" { // no token may be in both
				env[i] += "-read"
			}
		}
		env[i] = strings.Replace(env[i], "sslrootcert=/etc/usher/ca.crt", "sslrootcert="+certificate, 1)
	}
	return env
}
