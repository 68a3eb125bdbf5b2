// Package sdk runs scripts with the billing service's own client for Node, from npm: usher promises that programs
// with it need no change but the address.
package sdk

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"usher/internal/testkit"
	"usher/internal/testkit/kept"
)

//go:embed package.json package-lock.json
var files embed.FS

// Command returns a command that runs a script in Node. The script can require("@bunnyapp/api-client").
func Command(t testing.TB, script string, args ...string) *exec.Cmd {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			testkit.Missing(t, "%s is not installed: usher is not tried with the service's own client", program)
		}
	}
	installed, err := install()
	if err != nil {
		testkit.Missing(t, "npm cannot install the service's own client: %v", err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "script.js")
	err = cmp.Or(os.Symlink(filepath.Join(installed, "node_modules"), filepath.Join(dir, "node_modules")),
		os.WriteFile(path, []byte(script), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command("node", append([]string{path}, args...)...)
}

// install returns the folder with the packages that the lockfile names.
func install() (string, error) {
	needed, err := files.ReadFile("package.json")
	locked, lockErr := files.ReadFile("package-lock.json")
	if err := errors.Join(err, lockErr); err != nil {
		return "", err
	}
	return kept.Folder(func(dir string) error {
		err := errors.Join(os.WriteFile(filepath.Join(dir, "package.json"), needed, 0o600),
			os.WriteFile(filepath.Join(dir, "package-lock.json"), locked, 0o600))
		if err != nil {
			return err
		}
		cmd := exec.Command("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}, needed, locked)
}
