// Pack makes the archives and images of a release, for .ci/release. It does not use tar and zip,
// because their results differ from machine to machine. The same files and the same toolchain
// give the same bytes here, on any system.
//
//	go run ./internal/pack -dir dist -version v0.1.0 -time 1767225600
//
// It reads from dist the binaries (usher-OS-ARCH), their bills of materials
// (usher-OS-ARCH.cdx.json) and images (usher-OS-ARCH.oci, a folder each). It makes one archive
// for each binary, with the README, the docs and the files under deploy/; one image file for all
// platforms; and SHA256SUMS of all files.
package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	dir := flag.String("dir", "dist", "the folder with the binaries")
	version := flag.String("version", "", "the version, for the names of the archives")
	seconds := flag.Int64("time", 0, "the time of all files in the archives, in seconds since 1970")
	flag.Parse()
	if *version == "" {
		log.Fatal("pack: -version is missing")
	}
	if err := pack(*dir, os.DirFS("."), *version, time.Unix(*seconds, 0).UTC()); err != nil {
		log.Fatal("pack: ", err)
	}
}

// pack makes everything that the files in dir allow; source is the source tree.
func pack(dir string, source fs.FS, version string, at time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	extra, err := documents(source)
	if err != nil {
		return err
	}
	version = strings.ReplaceAll(version, "/", "-") // a tag may contain a slash
	var images []string
	for _, e := range entries {
		name := e.Name()
		platform, ok := strings.CutPrefix(strings.TrimSuffix(name, ".exe"), "usher-")
		long := "usher-" + version + "-" + platform
		switch {
		case !ok:
		case strings.HasSuffix(name, ".oci"):
			images = append(images, filepath.Join(dir, name))
		case strings.HasSuffix(name, ".cdx.json"):
			err = neutral(filepath.Join(dir, name))
		case strings.Count(platform, "-") == 1 && filepath.Ext(platform) == "":
			err = packBinary(dir, name, long, extra, source, at)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if len(images) > 0 {
		if err := packImages(images, filepath.Join(dir, "usher-"+version+"-image.tar"), version, at); err != nil {
			return fmt.Errorf("images: %w", err)
		}
	}
	return writeSums(dir)
}

// file is a file in an archive.
type file struct {
	name string
	mode fs.FileMode
	open func() ([]byte, error)
}

func packBinary(dir, name, long string, extra []string, source fs.FS, at time.Time) error {
	program := "usher" + filepath.Ext(name)
	bom := strings.TrimSuffix(name, ".exe") + ".cdx.json"
	if err := neutral(filepath.Join(dir, bom)); err != nil {
		return err
	}
	here := func(n string) func() ([]byte, error) {
		return func() ([]byte, error) { return os.ReadFile(filepath.Join(dir, n)) }
	}
	files := []file{
		{long + "/" + program, 0o755, here(name)},
		{long + "/usher.cdx.json", 0o644, here(bom)},
	}
	for _, d := range extra {
		files = append(files, file{long + "/" + d, 0o644, func() ([]byte, error) { return fs.ReadFile(source, d) }})
	}
	if program == "usher" {
		return writeTarGz(filepath.Join(dir, long+".tar.gz"), files, at)
	}
	return writeZip(filepath.Join(dir, long+".zip"), files, at)
}

// documents returns the files that go with each binary.
func documents(source fs.FS) ([]string, error) {
	var all []string
	for _, root := range []string{"README.md", "docs", "deploy"} {
		err := fs.WalkDir(source, root, func(p string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return fs.SkipDir
			case d.Type().IsRegular() && path.Ext(p) != ".go":
				all = append(all, p)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// writeSums writes SHA256SUMS of all files in dir, as sha256sum does.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		if e.IsDir() || !strings.HasPrefix(e.Name(), "usher-") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), e.Name())
	}
	if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), "usher-") }) {
		return fmt.Errorf("%s has no files of usher", dir)
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}
