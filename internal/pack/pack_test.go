package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// tree is a source tree with what belongs into an archive, and what does not.
var tree = fstest.MapFS{
	"README.md": {Data: []byte("# usher")}, "docs/reporting.md": {Data: []byte("# Security")}, "main.go": {},
	"docs/operations.md": {}, "deploy/compose.yaml": {}, "deploy/compose_test.go": {}, "deploy/helm/testdata/file.yaml": {},
}

// dist is what a release is packed of; noise is what differs from one build to the next.
func dist(t *testing.T, noise string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"usher-linux-arm64":          "a binary",
		"usher-linux-arm64.cdx.json": `{"metadata":{"tools":[{"name":"cyclonedx-gomod","hashes":"` + noise + `"}]}}`,
		"usher-windows-amd64.exe":    "a program", "usher-windows-amd64.cdx.json": `{"bomFormat":"CycloneDX"}`,
		"notes.txt": "not ours",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		image(t, filepath.Join(dir, "usher-linux-"+arch+".oci"), arch, noise)
	}
	return dir
}

// image makes one as buildah does.
func image(t *testing.T, folder, arch, noise string) {
	t.Helper()
	b := make(blobs)
	config := fmt.Sprintf(`{"architecture":%q,"os":"linux","container":%q,"container_config":{"Hostname":%[2]q},
		"config":{"Hostname":%[2]q,"User":"65532:65532","Healthcheck":{"Test":["CMD","/usher","healthcheck"]}}}`, arch, noise)
	m := manifest{SchemaVersion: 2, Config: b.add("docker", []byte(config)), Layers: []descriptor{b.add("docker", []byte("layer of "+arch))}}
	d, err := b.addJSON("docker", m)
	if err != nil {
		t.Fatal(err)
	}
	top, err := json.Marshal(index{SchemaVersion: 2, Manifests: []descriptor{d}})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range layout(b, top) {
		path := filepath.Join(folder, f.name)
		content, _ := f.open()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

func packed(t *testing.T, noise string) string {
	t.Helper()
	dir := dist(t, noise)
	if err := pack(dir, tree, "v1.2.3", time.Unix(1_700_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The same bytes, whatever differs between the machines and the moments.
func TestSameBytes(t *testing.T) {
	a, b := packed(t, "monday"), packed(t, "tuesday")
	entries, err := os.ReadDir(a)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		if !bytes.Equal(content(t, a, e.Name()), content(t, b, e.Name())) {
			t.Errorf("%s differs", e.Name())
		}
	}
	want := []string{"SHA256SUMS", "notes.txt", "usher-linux-arm64", "usher-linux-arm64.cdx.json", "usher-v1.2.3-image.tar",
		"usher-v1.2.3-linux-arm64.tar.gz", "usher-v1.2.3-windows-amd64.zip", "usher-windows-amd64.cdx.json", "usher-windows-amd64.exe"}
	if !slices.Equal(names, want) {
		t.Errorf("made %q\nwant %q", names, want)
	}
	if sums := string(content(t, a, "SHA256SUMS")); strings.Count(sums, "\n") != 7 || strings.Contains(sums, "notes.txt") {
		t.Errorf("SHA256SUMS:\n%s", sums)
	}
}

func TestArchives(t *testing.T) {
	dir := packed(t, "")
	z, err := gzip.NewReader(bytes.NewReader(content(t, dir, "usher-v1.2.3-linux-arm64.tar.gz")))
	if err != nil {
		t.Fatal(err)
	}
	checkNames(t, untar(t, z), "usher-v1.2.3-linux-arm64/", "usher")

	archive, err := zip.OpenReader(filepath.Join(dir, "usher-v1.2.3-windows-amd64.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	modes := make(map[string]fs.FileMode)
	for _, f := range archive.File {
		modes[f.Name] = f.Mode()
	}
	checkNames(t, modes, "usher-v1.2.3-windows-amd64/", "usher.exe")
}

func checkNames(t *testing.T, modes map[string]fs.FileMode, top, program string) {
	t.Helper()
	for _, name := range []string{program, "usher.cdx.json", "README.md", "docs/reporting.md", "docs/operations.md", "deploy/compose.yaml"} {
		want := fs.FileMode(0o644)
		if name == program {
			want = 0o755
		}
		if mode, ok := modes[top+name]; !ok || mode != want {
			t.Errorf("%s: %v %v, want %v", name, ok, mode, want)
		}
		delete(modes, top+name)
	}
	for name := range modes {
		t.Errorf("%s should not be there", name)
	}
}

// One image, which has both platforms and the health check.
func TestImageIndex(t *testing.T) {
	dir := t.TempDir()
	r := bytes.NewReader(content(t, packed(t, "noise"), "usher-v1.2.3-image.tar"))
	for name := range untar(t, r, dir) {
		if strings.HasPrefix(name, "blobs/") && bytes.Contains(content(t, dir, name), []byte("noise")) {
			t.Errorf("%s has something of the build in it", name)
		}
	}
	image := os.DirFS(dir)
	var top, list index
	var m manifest
	var config struct {
		Architecture string
		Config       struct{ Healthcheck any }
	}
	if err := readJSON(image, "index.json", &top); err != nil {
		t.Fatal(err)
	}
	if name := top.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; name != "usher:v1.2.3" {
		t.Errorf("the image is called %q", name)
	}
	if err := readJSON(image, blobPath(top.Manifests[0].Digest), &list); err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, d := range list.Manifests {
		if err := errors.Join(readJSON(image, blobPath(d.Digest), &m), readJSON(image, blobPath(m.Config.Digest), &config)); err != nil {
			t.Fatal(err)
		}
		if config.Config.Healthcheck == nil || config.Architecture != d.Platform.Architecture {
			t.Errorf("%+v has the configuration %+v", d.Platform, config)
		}
		if got := content(t, dir, blobPath(m.Layers[0].Digest)); string(got) != "layer of "+config.Architecture {
			t.Errorf("%s has %q", config.Architecture, got)
		}
		platforms = append(platforms, config.Architecture)
	}
	if !slices.Equal(platforms, []string{"amd64", "arm64"}) {
		t.Errorf("platforms %q", platforms)
	}
}

// A release without a bill of materials, or of nothing, is none.
func TestIncomplete(t *testing.T) {
	dir := dist(t, "")
	if err := os.Remove(filepath.Join(dir, "usher-linux-arm64.cdx.json")); err != nil {
		t.Fatal(err)
	}
	if err := pack(dir, tree, "v1.2.3", time.Time{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a bill of materials: %v", err)
	}
	if err := pack(t.TempDir(), tree, "v1.2.3", time.Time{}); err == nil {
		t.Error("nothing was packed, and nothing said")
	}
}

func content(t *testing.T, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// untar returns the files with their modes, and leaves them in a folder if one is given.
func untar(t *testing.T, r io.Reader, into ...string) map[string]fs.FileMode {
	t.Helper()
	modes := make(map[string]fs.FileMode)
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return modes
		} else if err != nil {
			t.Fatal(err)
		}
		modes[h.Name] = h.FileInfo().Mode()
		for _, dir := range into {
			path := filepath.Join(dir, filepath.FromSlash(h.Name))
			b, err := io.ReadAll(archive)
			if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
}
