//go:build !windows

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"usher/internal/e2e/sdk"
	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// callWithSDK makes as many calls at once as each line of its input says, and says how many were answered, and why
// others were not. The client prints more by itself.
const callWithSDK = `
const Bunny = require("@bunnyapp/api-client");
const [base, options, query] = process.argv.slice(2);
const bunny = new Bunny({ baseUrl: base, ...JSON.parse(options) });
require("readline").createInterface({ input: process.stdin }).on("line", async (n) => {
	const all = await Promise.allSettled(Array.from({ length: +n }, () => bunny.query(query)));
	const ok = all.filter((a) => a.status === "fulfilled" && a.value.data.accounts.length === 1);
	const why = [...new Set(all.filter((a) => a.status === "rejected").map((a) => a.reason))];
	console.log("answered: " + ok.length + " " + why.join());
});`

// sdkClient is a program with the service's own client. The result makes n calls at once, and returns how many were
// answered, and why others were not.
func sdkClient(t *testing.T, base, options string) (call func(n int) string) {
	t.Helper()
	var sent struct{ Query string }
	if err := json.Unmarshal([]byte(testkit.Query), &sent); err != nil {
		t.Fatal(err)
	}
	cmd := sdk.Command(t, callWithSDK, base, options, sent.Query)
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if inErr != nil || outErr != nil || cmd.Start() != nil {
		t.Fatal(inErr, outErr)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	return func(n int) string {
		t.Helper()
		fmt.Fprintln(in, n)
		for lines.Scan() {
			if said, ours := strings.CutPrefix(lines.Text(), "answered: "); ours {
				return strings.TrimSpace(said)
			}
		}
		t.Fatalf("the client has ended: %v", lines.Err())
		return ""
	}
}

// A program with the service's own client changes its address, and nothing else: its client ID and its secret stay,
// or where the port has a key, the key is its secret. It is answered over expired and revoked tokens.
func TestServicesOwnClient(t *testing.T) {
	t.Parallel()
	own := func(secret string) string {
		return `{"clientId":"app","clientSecret":"` + secret + `","scope":"standard:read"}`
	}
	for name, tc := range map[string]struct{ key, options string }{
		"its own credentials":           {"", own("t0psecret")},
		"a token that it was given":     {"", `{"accessToken":"whatever"}`},
		"the port's key":                {"sesame", own("sesame")},
		"the port's key, as it rotates": {"old,sesame", own("sesame")},
		"the port's key as its token":   {"sesame", `{"accessToken":"sesame"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testkit.NewService(t)
			u := run(t, s.Environ("USHER_KEY="+tc.key))
			u.Ready(t)
			call := sdkClient(t, u.URL(t, "main"), tc.options)
			want := func(n, tokenRequests int) {
				t.Helper()
				if got := call(n); got != fmt.Sprint(n) {
					t.Errorf("of %d calls were answered %s", n, got)
				}
				if got := s.TokenRequests(); got != tokenRequests {
					t.Errorf("%d token requests, want %d: usher's alone", got, tokenRequests)
				}
			}
			want(1, 1)
			want(50, 1)
			s.Revoke()
			want(1, 2)
			s.Revoke()
			want(50, 3)
			// From here on tokens expire while the client calls.
			s.EditClient("app", func(c *sandbox.Client) { c.TokenLife = time.Second })
			s.Revoke()
			for s.TokenRequests() < 6 {
				if got := call(5); got != "5" {
					t.Fatalf("of 5 calls were answered %s", got)
				}
			}
			if printed := u.Stderr.String(); strings.Contains(printed, "t0psecret") || strings.Contains(printed, "sesame") {
				t.Errorf("the log has a secret:\n%s", printed)
			}
		})
	}
	t.Run("the real secret where the port has a key", func(t *testing.T) {
		s := testkit.NewService(t)
		u := run(t, s.Environ("USHER_KEY=sesame"))
		u.Ready(t)
		if got := sdkClient(t, u.URL(t, "main"), own("t0psecret"))(1); !strings.HasPrefix(got, "0 ") || !strings.Contains(got, "USHER_KEY") {
			t.Error(got)
		}
	})
}
