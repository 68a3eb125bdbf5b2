package command

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"usher/internal/settings"
)

// root is where the module is.
const root = "../../"

// Every setting that a page or an example names exists.
func TestNamesInDocsAndExamples(t *testing.T) {
	names := regexp.MustCompile(`USHER_[A-Za-z0-9_]*[A-Za-z0-9]`)
	others := []string{"USHER_URL", "USHER_HISTORY"} // what 'usher exec' sets; a stream on NATS
	files := 0
	for _, file := range documents(t) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		files++
		for _, at := range names.FindAllIndex(content, -1) {
			name := string(content[at[0]:at[1]])
			if bytes.HasPrefix(content[at[1]:], []byte("_")) {
				continue // USHER_PORTS_0_…: the beginning of several
			}
			if !slices.Contains(others, name) && !settings.Known(name) {
				t.Errorf("%s names %s, which is not a setting", file, name)
			}
		}
	}
	if files < 10 {
		t.Errorf("only %d files looked at", files)
	}
}

// documents are the files in which people read what settings there are.
func documents(t *testing.T) []string {
	t.Helper()
	files := []string{root + "README.md", root + "docs/reporting.md", root + "Dockerfile"}
	for _, dir := range []string{"deploy", "examples", "docs"} {
		err := filepath.WalkDir(root+dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && filepath.Ext(path) != ".go" {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// Each deployment, as it stands, is one that usher starts with: every variable is
// known and holds what it should.
func TestDeploymentsAreAccepted(t *testing.T) {
	environments := make(map[string][]string)
	for _, file := range []string{"deploy/systemd/usher.service", "deploy/systemd/usher-gate.service"} {
		environments[file] = unitEnvironment(t, root+file)
	}
	for _, file := range []string{"deploy/compose.yaml", "deploy/compose.cluster.yaml", "deploy/kubernetes/sidecar.yaml", "deploy/kubernetes/gateway.yaml", "deploy/helm/testdata/file.yaml", "deploy/helm/testdata/nats.yaml"} {
		environments[file] = yamlEnvironment(t, root+file)
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
	var visit func(node any)
	visit = func(node any) {
		switch node := node.(type) {
		case []any:
			for _, child := range node {
				visit(child)
			}
		case map[string]any:
			if name, ok := node["name"].(string); ok && strings.HasPrefix(name, "USHER_") {
				env = append(env, name+"="+node["value"].(string))
			}
			for name, child := range node {
				if value, ok := child.(string); ok && strings.HasPrefix(name, "USHER_") {
					env = append(env, name+"="+value)
				}
				visit(child)
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
		visit(document)
	}
}

func unitEnvironment(t *testing.T, file string) []string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var env []string
	for line := range strings.Lines(string(content)) {
		if kv, ok := strings.CutPrefix(strings.TrimSpace(line), "Environment="); ok {
			env = append(env, kv)
		}
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
	env = slices.Clone(env)
	for i, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); strings.HasSuffix(name, "_FILE") {
			env[i] = name + "=" + path
		}
	}
	return env
}
