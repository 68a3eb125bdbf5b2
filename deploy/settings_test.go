package deploy_test

import (
	"errors"
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
	for _, file := range append(rendered, "compose.yaml", "compose.cluster.yaml", "kubernetes/sidecar.yaml", "kubernetes/gateway.yaml") {
		environments[file] = yamlEnvironment(t, file)
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

// yamlEnvironment finds the one environment with usher's variables in a file: a map,
// as Compose has it, or a list of names and values, as Kubernetes has it.
func yamlEnvironment(t *testing.T, file string) []string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var env []string
	var walk func(node any)
	walk = func(node any) {
		switch node := node.(type) {
		case []any:
			for _, child := range node {
				walk(child)
			}
		case map[string]any:
			if name, ok := node["name"].(string); ok && strings.HasPrefix(name, "USHER_") {
				value, ok := node["value"].(string)
				if !ok { // from a Secret, as an operator for PostgreSQL makes it
					value = "postgresql://usher:t0psecret@db-rw.postgres:5432/usher"
				}
				env = append(env, name+"="+value)
			}
			for name, child := range node {
				if value, ok := child.(string); ok && strings.HasPrefix(name, "USHER_") {
					env = append(env, name+"="+value)
				}
				walk(child)
			}
		}
	}
	for documents := yaml.NewDecoder(f); ; {
		var document any
		if err := documents.Decode(&document); errors.Is(err, io.EOF) {
			return env
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
	certificate, _ := testkit.Certificate(t, "db.example.com")
	env = slices.Clone(env)
	for i, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); strings.HasSuffix(name, "_FILE") {
			env[i] = name + "=" + path
		}
		env[i] = strings.Replace(env[i], "sslrootcert=/etc/usher/ca.crt", "sslrootcert="+certificate, 1)
	}
	return env
}
