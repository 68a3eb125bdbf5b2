package examples

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"usher/internal/testkit"
)

// question is one that the examples ask: which flags a tenant has.
type question struct {
	Key, Tenant string
	Platform    []string // one, or none
}

// OpenFeature's own clients get booleans, numbers and texts, and the program's default
// where usher does not know.
func TestOpenFeature(t *testing.T) {
	t.Parallel()
	var questions []question
	want := ""
	for _, tc := range []struct {
		question
		answer string
	}{
		{question{theKey, "acme", nil}, "reports true enabled\nusers.limit 25 limited\ntier.value gold enabled\n"},
		{question{theKey, "brücke & söhne", nil}, "reports true enabled\nusers.limit 0 denied\ntier.value  denied\n"},
		// Known, and denied: not the program's default.
		{question{theKey, "small", nil}, "reports false denied\nusers.limit 0 denied\ntier.value  denied\n"},
		{question{theKey, "nobody", nil}, "reports false FLAG_NOT_FOUND\nusers.limit 1 FLAG_NOT_FOUND\ntier.value unknown FLAG_NOT_FOUND\n"},
		{question{"wrong", "acme", nil}, "reports false GENERAL\nusers.limit 1 GENERAL\ntier.value unknown GENERAL\n"},
		{question{theKey, "twin", nil}, "reports false INVALID_CONTEXT\nusers.limit 1 INVALID_CONTEXT\ntier.value unknown INVALID_CONTEXT\n"},
		{question{theKey, "twin", []string{"us"}}, "reports false denied\nusers.limit 0 limited\ntier.value  denied\n"},
		{question{theKey, "large", nil}, "reports true enabled\nusers.limit 9007199254740991 unlimited\ntier.value  denied\n"},
	} {
		questions, want = append(questions, tc.question), want+tc.answer
	}
	for name, ask := range map[string]func(t *testing.T, url string, questions []question) string{"Node": openFeatureNode, "Go": openFeatureGo} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := entitled(t)
			port.webhook(t, "eu", "twin", `{"code":"reports"}`)
			port.webhook(t, "us", "twin", `{"code":"users","quantity":0}`) // the same code on another platform
			port.webhook(t, "eu", "large", `{"code":"reports"},{"code":"users"}`)
			if got := ask(t, port.url, questions); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// openFeatureNode runs the example once for each question, all in one process: Node takes long to start. And it asks
// for all flags with the client that OpenFeature's providers share.
func openFeatureNode(t *testing.T, url string, questions []question) string {
	dir := npm(t, "ask.mjs", `
		for (const q of JSON.parse(process.argv[2])) {
			process.env.ENTITLEMENTS_KEY = q.Key;
			process.argv = ['node', 'features.mjs', q.Tenant, ...(q.Platform ?? [])];
			await import('./features.mjs?' + JSON.stringify(q)); // another name: it runs anew
		}
		import { OFREPApi } from '@openfeature/ofrep-core';
		const api = new OFREPApi(process.env.ENTITLEMENTS_URL);
		const all = (targetingKey, tag) => api.postBulkEvaluateFlags({ context: { targetingKey } },
			{ headers: [['X-API-Key', process.env.ENTITLEMENTS_KEY], ...(tag ? [['If-None-Match', tag]] : [])] });
		const first = await all('acme');
		const tag = first.httpResponse.headers.get('ETag');
		const second = await all('acme', tag);
		const other = await all('small', tag);
		const nobody = await all('nobody');
		console.log(first.httpStatus, first.value.flags.length, second.httpStatus, other.httpStatus, other.value.flags.length, nobody.value.flags.length);`)
	arg, err := json.Marshal(questions)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "ask.mjs", string(arg))
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "ENTITLEMENTS_URL="+url)
	out, err := cmd.CombinedOutput()
	answers, whole := strings.CutSuffix(string(out), "200 9 304 200 0 0\n")
	if err != nil || !whole {
		t.Errorf("%v, or the last line does not fit: %s", err, out)
	}
	return answers
}

// openFeatureGo builds the example, which is a module of its own. "go run" keeps what it has linked in Go's cache.
func openFeatureGo(t *testing.T, url string, questions []question) (answers string) {
	needs(t, "go")
	program := filepath.Join(t.TempDir(), "features")
	if out, err := exec.Command("go", "run", "-C", "openfeature-go", "-ldflags=-w", "-exec", "cp", ".", program).CombinedOutput(); err != nil {
		if strings.Contains(string(out), "main.go:") {
			t.Fatalf("%v: %s", err, out)
		}
		testkit.Missing(t, "go can't fetch OpenFeature: its example is not tried: %v: %s", err, out)
	}
	for _, q := range questions {
		cmd := exec.Command(program, append([]string{q.Tenant}, q.Platform...)...)
		cmd.Env = append(os.Environ(), "ENTITLEMENTS_URL="+url, "ENTITLEMENTS_KEY="+q.Key)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		answers += string(out)
	}
	return answers
}
