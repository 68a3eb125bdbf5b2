package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/testkit"
)

// OpenFeature's own clients get booleans, numbers and texts, and the program's default
// where usher does not know.
func TestOpenFeature(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, needs string
		prepare     func(t *testing.T) (command []string, dir string)
	}{
		{"Node", "npm", openFeatureNode},
		{"Go", "go", openFeatureGo},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			needs(t, tc.needs)
			command, dir := tc.prepare(t)
			port := entitled(t)
			ask := func(key string, args ...string) string {
				t.Helper()
				cmd := exec.Command(command[0], append(command[1:], args...)...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "ENTITLEMENTS_URL="+port.url, "ENTITLEMENTS_KEY="+key)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%v: %s", err, out)
				}
				return string(out)
			}
			expect := func(got, want string) {
				t.Helper()
				if got != want {
					t.Errorf("got\n%swant\n%s", got, want)
				}
			}
			expect(ask(theKey, "acme"), "reports true enabled\nusers.limit 25 limited\ntier.value gold enabled\n")
			expect(ask(theKey, "brücke & söhne"), "reports true enabled\nusers.limit 0 denied\ntier.value  denied\n")
			// Known, and denied: not the program's default.
			expect(ask(theKey, "small"), "reports false denied\nusers.limit 0 denied\ntier.value  denied\n")
			expect(ask(theKey, "nobody"), "reports false FLAG_NOT_FOUND\nusers.limit 1 FLAG_NOT_FOUND\ntier.value unknown FLAG_NOT_FOUND\n")
			expect(ask("wrong", "acme"), "reports false GENERAL\nusers.limit 1 GENERAL\ntier.value unknown GENERAL\n")
			port.webhook(t, "us", "acme", `{"code":"users","quantity":0}`) // the same code on another platform
			expect(ask(theKey, "acme"), "reports false INVALID_CONTEXT\nusers.limit 1 INVALID_CONTEXT\ntier.value unknown INVALID_CONTEXT\n")
			expect(ask(theKey, "acme", "us"), "reports false denied\nusers.limit 0 limited\ntier.value  denied\n")
			port.webhook(t, "eu", "small", `{"code":"reports"},{"code":"users"}`)
			expect(ask(theKey, "small"), "reports true enabled\nusers.limit 9007199254740991 unlimited\ntier.value  denied\n")
		})
	}
}

// openFeatureNode installs the example's packages in a folder of the test's.
func openFeatureNode(t *testing.T) (command []string, dir string) {
	dir = copied(t, "openfeature-node", "package.json", "features.mjs")
	install := exec.Command("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		testkit.Missing(t, "npm can't install OpenFeature: its example is not tried: %v: %s", err, out)
	}
	bulk(t, dir)
	return []string{"node", "features.mjs"}, dir
}

// bulk asks for all flags with the client that OpenFeature's providers share.
func bulk(t *testing.T, dir string) {
	port := entitled(t)
	const script = `
		import { OFREPApi } from '@openfeature/ofrep-core';
		const api = new OFREPApi(process.argv[2]);
		const all = (targetingKey, tag) => api.postBulkEvaluateFlags({ context: { targetingKey } },
			{ headers: [['X-API-Key', process.argv[3]], ...(tag ? [['If-None-Match', tag]] : [])] });
		const first = await all('acme');
		const tag = first.httpResponse.headers.get('ETag');
		const second = await all('acme', tag);
		const other = await all('small', tag);
		const nobody = await all('nobody');
		console.log(first.httpStatus, first.value.flags.length, second.httpStatus, other.httpStatus, other.value.flags.length, nobody.value.flags.length);`
	if err := os.WriteFile(filepath.Join(dir, "bulk.mjs"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "bulk.mjs", port.url, theKey)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "200 9 304 200 0 0\n" {
		t.Errorf("all flags: %v: %s", err, out)
	}
}

// openFeatureGo builds the example, which is a module of its own.
func openFeatureGo(t *testing.T) (command []string, dir string) {
	dir = copied(t, "openfeature-go", "go.mod", "go.sum", "main.go")
	build := exec.Command("go", "build", "-o", "features", ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "main.go:") {
			t.Fatalf("%v: %s", err, out)
		}
		testkit.Missing(t, "go can't fetch OpenFeature: its example is not tried: %v: %s", err, out)
	}
	return []string{"./features"}, dir
}

// copied puts files of an example into a folder of the test's.
func copied(t *testing.T, example string, files ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(example, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
