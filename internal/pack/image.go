package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The parts of the OCI image format that are read and written here.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

// blobs are the contents of an image, by their digests.
type blobs map[string][]byte

func (b blobs) add(mediaType string, content []byte) descriptor {
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(content))
	b[digest] = content
	return descriptor{MediaType: mediaType, Digest: digest, Size: int64(len(content))}
}

func (b blobs) addJSON(mediaType string, v any) (descriptor, error) {
	content, err := json.Marshal(v)
	return b.add(mediaType, content), err
}

// packImages makes one image for all platforms from buildah's folders, one for each platform, and
// removes the folders.
func packImages(folders []string, to, version string, at time.Time) error {
	all := make(blobs)
	list := index{SchemaVersion: 2, MediaType: indexType}
	for _, folder := range folders {
		d, err := all.take(os.DirFS(folder))
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(folder), err)
		}
		list.Manifests = append(list.Manifests, d)
	}
	named, err := all.addJSON(indexType, list)
	if err != nil {
		return err
	}
	named.Annotations = map[string]string{"org.opencontainers.image.ref.name": "usher:" + version}
	top, err := json.Marshal(index{SchemaVersion: 2, MediaType: indexType, Manifests: []descriptor{named}})
	if err != nil {
		return err
	}
	if err := writeTar(to, layout(all, top), at); err != nil {
		return err
	}
	for _, folder := range folders {
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	}
	return nil
}

// take reads the one image of a folder. buildah has to write Docker's format, because its OCI
// format has no health check. But Docker's format contains the random name of a container.
// take removes that name, and writes the OCI format with the health check, as Docker's own
// builder does. So the image is the same each time.
func (b blobs) take(folder fs.FS) (descriptor, error) {
	var top index
	var m manifest
	var config map[string]any
	if err := readJSON(folder, "index.json", &top); err != nil {
		return descriptor{}, err
	}
	if len(top.Manifests) != 1 {
		return descriptor{}, fmt.Errorf("%d images, want one", len(top.Manifests))
	}
	if err := readJSON(folder, blobPath(top.Manifests[0].Digest), &m); err != nil {
		return descriptor{}, err
	}
	if err := readJSON(folder, blobPath(m.Config.Digest), &config); err != nil {
		return descriptor{}, err
	}
	for _, name := range []string{"container", "container_config", "docker_version"} {
		delete(config, name)
	}
	if inner, ok := config["config"].(map[string]any); ok {
		delete(inner, "Hostname")
	}
	m.MediaType = manifestType
	var err error
	if m.Config, err = b.addJSON(configType, config); err != nil {
		return descriptor{}, err
	}
	for i, l := range m.Layers {
		content, err := fs.ReadFile(folder, blobPath(l.Digest))
		if err != nil {
			return descriptor{}, err
		}
		m.Layers[i] = b.add(layerType, content)
	}
	d, err := b.addJSON(manifestType, m)
	arch, _ := config["architecture"].(string)
	system, _ := config["os"].(string)
	d.Platform = &platform{Architecture: arch, OS: system}
	return d, err
}

// layout returns the files of an image.
func layout(all blobs, top []byte) []file {
	have := func(content []byte) func() ([]byte, error) { return func() ([]byte, error) { return content, nil } }
	files := []file{{"index.json", 0o644, have(top)}, {"oci-layout", 0o644, have([]byte(`{"imageLayoutVersion":"1.0.0"}`))}}
	for _, digest := range slices.Sorted(maps.Keys(all)) {
		files = append(files, file{blobPath(digest), 0o644, have(all[digest])})
	}
	return files
}

func readJSON(folder fs.FS, name string, into any) error {
	content, err := fs.ReadFile(folder, name)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, into)
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }
